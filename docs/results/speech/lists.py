"""Prints a list of words to boost for each sentence: the spoken names and 30 other names.

    python3 lists.py CLIPS REFERENCES [unsaid]

CLIPS is `clips.tsv` of data/assets/speech, and REFERENCES has lines of `id<TAB>text`. With `unsaid`, the lists have
only the 30 other names.
"""

import json
import random
import re
import sys

rows = [line.rstrip("\n").split("\t") for line in open(sys.argv[1])]
names = sorted({row[3] for row in rows if row[2] == "name"})
for line in open(sys.argv[2]):
    id, text = line.rstrip("\n").split("\t")
    spoken = [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)]
    listed = random.Random(id).sample([name for name in names if name not in spoken], 30)
    if sys.argv[3:] != ["unsaid"]:
        listed += spoken
    print(id, text, json.dumps(spoken), json.dumps(sorted(listed)), sep="\t")
