"""BLEU."""

from engram.compat.pycocoevalcap.captions import captions


class Bleu:
    """BLEU-1 to BLEU-n of captions, with the closest reference length."""

    def __init__(self, n=4):
        if n not in (1, 2, 3, 4):
            raise NotImplementedError(f"n={n}: Engram has n-grams of up to 4 words; give 1 to 4")
        self._n = n

    def compute_score(self, gts, res, verbose=1):
        """The scores of the corpus, and for each order a list with the score of each image."""
        scores, of_images, counts = captions(gts, res).bleu()
        length, reference_length, guesses, matches = counts
        if verbose > 0:
            print(
                {
                    "testlen": length,
                    "reflen": reference_length,
                    "guess": guesses[: self._n],
                    "correct": matches[: self._n],
                }
            )
            print("ratio:", (length + 1e-15) / (reference_length + 1e-9))
        return scores[: self._n], of_images[: self._n]

    def method(self):
        """The name of the metric."""
        return "Bleu"
