"""CLIPS REF [unsaid]: for each sentence the names that are said in it (unsaid: without them) and 30 others."""

import json
import random
import re
import sys

rows = [line.rstrip("\n").split("\t") for line in open(sys.argv[1])]
names = sorted({row[3] for row in rows if row[2] == "name"})
for line in open(sys.argv[2]):
    id, text = line.rstrip("\n").split("\t")
    said = [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)]
    listed = random.Random(id).sample([name for name in names if name not in said], 30)
    if sys.argv[3:] != ["unsaid"]:
        listed += said
    print(id, text, json.dumps(said), json.dumps(sorted(listed)), sep="\t")
