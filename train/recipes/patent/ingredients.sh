#!/usr/bin/env bash
# Ablation of minilm.toml: one member of its first variant (fold 0 of 8) with and without each ingredient, with three
# seeds, two epochs each, and predictions in one pass. Takes about 70 minutes on 2 cores.
#
#   train/recipes/patent/ingredients.sh DATA/patent runs/ingredients [SEED…]
#
# EPOCHS=6 ROWS="no-title mse" changes the number of epochs and the configurations in the table. Finished
# runs are reused, so a stopped call can be continued.
set -euo pipefail
cd "$(dirname "$0")/../../.."

data="$1"
out="$2"
seeds=("${@:3}")
[ ${#seeds[@]} -gt 0 ] || seeds=(1 2 3)
[ ${#seeds[@]} -le 10 ] || { echo "at most 10 seeds" >&2; exit 2; }
rows=${ROWS:-no-title apart one-target mse bce no-comparison words-trained}
epochs=${EPOCHS:-2}
engram=${ENGRAM:-target/release/engram}
[ -x "$engram" ] || cargo build --release

train() {
    local name="$1" seed="$2" set=()
    for change in "${@:3}"; do set+=(--set "$change"); done
    [ ! -f "$out/$name-$epochs-$seed/summary.json" ] || return 0
    "$engram" train patent --recipe train/recipes/patent/minilm.toml --resume \
        --set data.dir="$data" --set variant=[] --set data.combine=mean --set data.folds=8 --set data.members=1 --set check.metric_value=0 --set seed="$seed" \
        --set phase.train.epochs="$epochs" --set model.passes=1 "${set[@]}" --run "$out/$name-$epochs-$seed" > /dev/null
}

for row in all $rows; do
    case "$row" in
        all) change=() ;;
        no-title) change=(model.context_title=false) ;;
        apart) change=(model.targets_apart=true model.group=context) ;;
        one-target) change=(model.group=row) ;;
        mse | bce) change=("model.loss=$row") ;;
        no-comparison) change=(model.compare_anchor=false) ;;
        words-trained) change=(group.0.rate=1.0) ;;
        *) echo "unknown configuration $row" >&2; exit 2 ;;
    esac
    for seed in "${seeds[@]}"; do
        train "$row" "$seed" "${change[@]}"
    done
done

python3 - "$data" "$out" "$epochs" "$rows" "${seeds[@]}" <<'PYTHON'
import csv, json, math, statistics, sys

data, out, epochs, rows, *seeds = sys.argv[1:]
names = ["all", *rows.split()]
# Student's t for a 95 % interval, by degrees of freedom.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def metric_values(name, part):
    def of(seed):
        with open(f"{out}/{name}-{epochs}-{seed}/summary.json") as file:
            return json.load(file)[part]["value"]

    return [of(seed) for seed in seeds]


def spread(values):
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:+.4f}"
    half = T[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:+.4f} ± {half:.4f}"


print(f"{'':16}{'held-out r':>12}{'validation r':>14}   held-out − `all`      validation − `all`")
for name in names:
    held_out, validation = metric_values(name, "held_out"), metric_values(name, "validation")
    line = f"{name:16}{statistics.mean(held_out):12.4f}{statistics.mean(validation):14.4f}"
    if name != "all":
        for part, values in (("held_out", held_out), ("validation", validation)):
            differences = [a - b for a, b in zip(values, metric_values("all", part))]
            line += f"   {spread(differences):20}"
    print(line)


def scores(path):
    with open(path, newline="") as file:
        return {row["id"]: float(row["score"]) for row in csv.DictReader(file)}


# The ensemble of members that differ only in their seed, on one fold.
gold = {**scores(f"{data}/train.csv"), **scores(f"{data}/validation.csv")}
for part in ("held_out", "validation"):
    runs = [scores(f"{out}/all-{epochs}-{seed}/{part}.csv") for seed in seeds]
    ids = sorted(runs[0])
    mean = [statistics.mean(run[i] for run in runs) for i in ids]
    r = statistics.correlation(mean, [gold[i] for i in ids])
    print(f"mean of the {len(seeds)} seeds' scores, {part} rows: {r:.4f}")
PYTHON
