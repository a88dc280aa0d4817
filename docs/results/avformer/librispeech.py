"""Splits the utterances of a folder: LibriSpeech's utterances of some speakers, and all others.

    python3 librispeech.py FOLDER SPEAKER...

Reads FOLDER/utterances.tsv. Writes two manifests: libri.jsonl with the speakers' utterances and their texts, and
unlabelled.jsonl with all other utterances, without texts.
"""

import csv
import json
import sys

folder, speakers = sys.argv[1], sys.argv[2:]
with open("libri.jsonl", "w") as tested, open("unlabelled.jsonl", "w") as others:
    for row in csv.DictReader(open(f"{folder}/utterances.tsv"), delimiter="\t", quoting=csv.QUOTE_NONE):
        is_tested = row["id"].startswith("libri-") and row["id"].split("-")[1] in speakers
        line = {"id": row["id"], "audio": f"{folder}/{row['wav']}"}
        if is_tested:
            line["text"] = row["text"]
        print(json.dumps(line), file=tested if is_tested else others)
