"""SPICE, which Engram does not have."""


class Spice:
    """SPICE is a Java program; use `pycocoevalcap` itself."""

    def __init__(self):
        raise NotImplementedError("Spice: Engram has BLEU, ROUGE-L and CIDEr-D, but not SPICE")
