#!/usr/bin/env bash
# AVFormer on real voices: data, training of all arms, and a table for each language. espeak-ng and jq are needed.
#
#   engram data stamps tuxpaint-stamps --on-error skip --out stamps
#   train/recipes/avformer/stamps.sh stamps whisper-base mobilenet photographs runs/stamps [LANGUAGE…]
#
# Arms: the frozen ASR model; the same with the ten best names of the image encoder as boosted words; the adapters of
# the curriculum without, with the right and with wrong pictures; adapters alone and joint training for the same number
# of steps. A recording does not match its text if the frozen ASR model's transcript of it, clean, is the name of another
# thing; such recordings are left out and counted. Finished steps are reused, so a stopped call can be continued.
# STEPS=200 changes the steps of each phase, SEED=2 the seed, TEST='clean|-6dB' the kinds of noise in the test.
set -euo pipefail
recipe="$(cd "$(dirname "$0")" && pwd)/stamps.toml"
[ $# -ge 5 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1 >&2; exit 2; }
stamps="$1" whisper="$2" encoder="$3" photographs="$4" out="$5"
languages=("${@:6}")
[ ${#languages[@]} -gt 0 ] || languages=(fr es ro ca)
engram=${ENGRAM:-engram} seed=${SEED:-1} steps=${STEPS:-400} test=${TEST:-.*}
for program in "$engram" jq espeak-ng; do
    command -v "$program" > /dev/null || { echo "$program is missing; install it" >&2; exit 2; }
done
mkdir -p "$out"

# The articles of the recipe. Only with IFS= does `read` keep the space at the end of an article.
score=(--normalizer basic)
while IFS= read -r article; do score+=(--article "$article"); done \
    < <(sed -n '/^articles/,/^]/p' "$recipe" | grep -o '"[^"]*"' | tr -d '"')
articles="^($(sed -n '/^articles/,/^]/p' "$recipe" | grep -o '"[^"]*"' | tr -d '"' | paste -sd'|'))"

transcribe() { # manifest, language, output, further options
    [ -f "$3" ] || "$engram" transcribe "$1" --model "$whisper" --language "$2" --padding short --out "$3" "${@:4}"
}

# Recordings that do not match their texts.
: > "$out/leave-out.txt"
for language in "${languages[@]}"; do
    clean="$out/$language-clean"
    jq -c . "$stamps/voices/$language"-{train,validation,test}.jsonl > "$clean.jsonl"
    transcribe "$clean.jsonl" "$language" "$clean.tsv"
    jq -rn --arg language "$language" --arg article "$articles" --slurpfile clips "$clean.jsonl" \
        --rawfile texts "$clean.tsv" '
        def name: ascii_downcase | gsub("[.!?,]"; "") | sub("^ +"; "") | sub($article; ""; "i");
        ($texts | split("\n") | map(select(. != "") | split("\t") | { key: .[0], value: .[1] }) | from_entries) as $said
        | ([$clips[].text | name] | map({ key: ., value: true }) | from_entries) as $names
        | $clips[] | ($said[.id] // "" | name) as $heard
        | select($names[$heard] and $heard != (.text | name)) | $language + "/" + .id' >> "$out/leave-out.txt"
    echo "$language: $(grep -c "^$language/" "$out/leave-out.txt" || true) of $(wc -l < "$clean.jsonl") recordings" \
        "do not match their texts"
done

leave_out=()
[ ! -s "$out/leave-out.txt" ] || leave_out=(--leave-out "$out/leave-out.txt")
[ -d "$out/voices" ] || "$engram" data voices "$stamps" --backgrounds "$photographs" --sounds-db 0 --seed "$seed" \
    --languages "$(IFS=,; echo "${languages[*]}")" "${leave_out[@]}" --out "$out/voices"
[ -d "$out/memory" ] || "$engram" memory build --model "$encoder" --entries "$stamps/entries.jsonl" --out "$out/memory"

train() { # language, name, settings
    local language="$1" run="$out/$1-$2-$seed" set=()
    for change in "${@:3}"; do set+=(--set "$change"); done
    [ -f "$run/summary.json" ] || "$engram" train avformer --recipe "$recipe" --run "$run" --resume --set seed="$seed" \
        --set model.asr_model="$whisper" --set model.language="$language" --set model.image_encoder="$encoder" \
        --set data.train="$out/voices/$language-train.jsonl" --set data.cache="$out/cache" \
        --set data.validation="$out/voices/$language-validation.jsonl" --set data.test="$out/$language-test.jsonl" \
        "${set[@]}" > /dev/null
}

# The items of a system: of the study, or of a transcript by the frozen ASR model.
items() { # language, system
    case "$2" in
        frozen | boosted) echo "$out/$1-$2.items.jsonl" ;;
        adapters) echo "$out/$1-adapters-$seed/test/test.no_frames.items.jsonl" ;;
        joint) echo "$out/$1-joint-$seed/test/test.right_frames.items.jsonl" ;;
        *) echo "$out/$1-curriculum-$seed/test/test.$2_frames.items.jsonl" ;;
    esac
}

part_of() { # language, system, part and noise, output
    grep "\"id\":\"$3/" "$(items "$1" "$2")" > "$4"
}

# Prints the error rate of each system in a part of the test, and the differences with their intervals by thing.
table() { # language, part and noise
    local systems=(frozen boosted adapters joint no right wrong) values=() pair a b
    part_of "$1" frozen "$2" "$out/a.items.jsonl" || return 0
    for system in "${systems[@]}"; do
        part_of "$1" "$system" "$2" "$out/a.items.jsonl"
        values+=("$system $(jq -s 'map(.statistic) | (map(.numerator) | add) / (map(.denominator) | add) * 1000
            | round / 1000' "$out/a.items.jsonl")")
    done
    echo "$1 $2 ($(wc -l < "$out/a.items.jsonl") clips): $(IFS=,; echo "${values[*]}")"
    for pair in "right no" "right wrong" "no frozen" "right boosted" "right adapters" "right joint"; do
        read -r a b <<< "$pair"
        part_of "$1" "$a" "$2" "$out/a.items.jsonl" && part_of "$1" "$b" "$2" "$out/b.items.jsonl"
        "$engram" eval compare "$out/a.items.jsonl" "$out/b.items.jsonl" --json | jq -r --arg pair "$a - $b" '
            def round3: . * 1000 | round / 1000;
            .difference | "    \($pair): \(.value | round3) [\(.interval.low | round3), \(.interval.high | round3)]"'
    done
}

for language in "${languages[@]}"; do
    manifest="$out/$language-test.jsonl"
    # The files of the manifest get absolute paths.
    jq -c --arg folder "$(realpath "$out/voices")" --arg test "^(un)?seen/($test)/" 'select(.id | test($test))
        | .audio = $folder + "/" + .audio | .frames |= map($folder + "/" + .)' \
        "$out/voices/$language-test.jsonl" > "$manifest"
    train "$language" curriculum phase.adapters.steps="$steps" phase.projection.steps="$steps"
    train "$language" adapters phase.adapters.steps=$((2 * steps)) phase.projection.steps=0 \
        'phase.projection.feed={ frames = false }' data.frames=0
    train "$language" joint phase.adapters.steps=0 phase.projection.steps=$((2 * steps)) 'phase.projection.group=[]' \
        'data.test_frames=["right"]'

    { printf 'id\tname\n'; jq -r '[.id, .text] | @tsv' "$manifest"; } > "$out/names.tsv"

    # The frozen ASR model, and the ten best names of the memory for the views of each clip.
    transcribe "$manifest" "$language" "$out/$language-frozen.tsv"
    queries="$out/$language-queries.jsonl" boost="$out/$language-boost.tsv"
    jq -c '{ image: .frames[] }' "$manifest" | sort -u > "$queries"
    "$engram" memory search "$out/memory" --texts "$queries" -k 10 --json > "$out/hits.json"
    jq -rn --arg language "$language" --slurpfile entries "$stamps/entries.jsonl" --slurpfile queries "$queries" \
        --slurpfile clips "$manifest" --slurpfile found "$out/hits.json" --arg article "$articles" '
        ([$found[0].queries[] | { key: $queries[.query].image, value: .hits }] | from_entries) as $hits
        | $clips[] | . as $clip
        | (reduce ([.frames[] as $frame | $hits[$frame][]] | sort_by(-.score))[] as $hit ([];
            ($entries[$hit.id].names[$language] // empty) as $name
            | if index($name) or length == 10 then . else . + [$name] end)) as $names
        | [$clip.id, $clip.text, "[]", ($names | map(sub("[.!]+$"; "") | sub($article; ""; "i")) | tojson)] | join("\t")' > "$boost"
    transcribe "$manifest" "$language" "$out/$language-boosted.tsv" --boost "$boost"
    for system in frozen boosted; do
        "$engram" eval wer --ref "$manifest" --hyp "$out/$language-$system.tsv" "${score[@]}" --table "$out/names.tsv" \
            --cluster name --items "$(items "$language" "$system")" --json > /dev/null
    done
    for part in $(jq -r '.id | split("/")[:2] | join("/")' "$manifest" | sort -u); do
        table "$language" "$part"
    done
done
