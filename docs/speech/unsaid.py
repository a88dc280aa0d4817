"""LISTS: lists of words to listen for, without the words that are said."""

import json
import sys

for line in open(sys.argv[1]):
    id, text, said, listed = line.rstrip("\n").split("\t")
    said = json.loads(said)
    listed = [word for word in json.loads(listed) if word not in said]
    print(id, text, json.dumps(said), json.dumps(listed), sep="\t")
