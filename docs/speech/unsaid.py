"""Prints the lists of words to boost of a file, without the spoken words.

    python3 unsaid.py LISTS

A line of LISTS is `id<TAB>text<TAB>spoken rare words<TAB>words to boost`; the last two are lists in JSON.
"""

import json
import sys

for line in open(sys.argv[1]):
    id, text, spoken, listed = line.rstrip("\n").split("\t")
    spoken = json.loads(spoken)
    listed = [word for word in json.loads(listed) if word not in spoken]
    print(id, text, json.dumps(spoken), json.dumps(listed), sep="\t")
