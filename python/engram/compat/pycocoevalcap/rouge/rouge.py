"""ROUGE-L."""

from engram.compat.pycocoevalcap.captions import captions


class Rouge:
    """ROUGE-L of captions: the longest common subsequence of words."""

    def __init__(self):
        self.beta = 1.2

    def calc_score(self, candidate, refs):
        """The score of one caption, a list of one text, with its references."""
        return float(self.compute_score({0: refs}, {0: candidate})[0])

    def compute_score(self, gts, res):
        """The mean, and an array with the score of each image."""
        if self.beta != 1.2:
            raise NotImplementedError(f"beta={self.beta}: Engram has 1.2; leave `beta` unchanged")
        scores = captions(gts, res).rouge_l()
        return scores.mean(), scores

    def method(self):
        """The name of the metric."""
        return "Rouge"
