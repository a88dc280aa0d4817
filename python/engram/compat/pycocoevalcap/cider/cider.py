"""CIDEr-D."""

from engram.compat.pycocoevalcap.captions import captions


class Cider:
    """CIDEr-D of captions: similarity of n-grams, weighted by how few images have them."""

    def __init__(self, test=None, refs=None, n=4, sigma=6.0):
        if n != 4:
            raise NotImplementedError(f"n={n}: Engram has n-grams of up to 4 words; leave out `n`")
        if sigma != 6.0:
            raise NotImplementedError(f"sigma={sigma}: Engram has 6.0; leave out `sigma`")

    def compute_score(self, gts, res):
        """The mean, and an array with the score of each image."""
        corpus = captions(gts, res)
        if not any(text.split() for references in gts.values() for text in references):
            raise ValueError("the references have no words; give at least one image with words")
        scores = corpus.cider_d()
        return scores.mean(), scores

    def method(self):
        """The name of the metric."""
        return "CIDEr"
