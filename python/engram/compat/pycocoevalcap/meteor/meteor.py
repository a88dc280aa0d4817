"""METEOR, which Engram does not have."""


class Meteor:
    """METEOR is a Java program; use `pycocoevalcap` itself."""

    def __init__(self):
        raise NotImplementedError("Meteor: Engram has BLEU, ROUGE-L and CIDEr-D, but not METEOR")
