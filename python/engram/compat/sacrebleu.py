"""sacrebleu 2.6: chrF and chrF++ of texts, with confidence intervals.

>>> from engram.compat import sacrebleu
>>> sacrebleu.corpus_chrf(["a cat sat"], [["a cat sits"]])
chrF2 = 42.59
"""

import json
import os
import statistics
from collections.abc import Sequence

from engram import _engram
from engram._engram import __version__

__all__ = [
    "BLEU",
    "CHRF",
    "TER",
    "CHRFScore",
    "Signature",
    "corpus_bleu",
    "corpus_chrf",
    "corpus_ter",
    "raw_corpus_bleu",
    "sentence_bleu",
    "sentence_chrf",
    "sentence_ter",
]

#: The short names of the parts of a signature.
_SHORT_NAMES = {"nrefs": "#", "bs": "bs", "seed": "rs", "case": "c", "eff": "e", "nc": "nc"}
_SHORT_NAMES |= {"nw": "nw", "space": "s", "version": "v"}


class CHRFScore:
    """A score from 0 to 100 with its name."""

    def __init__(self, score, char_order, word_order, beta):
        self.name = f"chrF{beta}" + "+" * word_order
        self.score = score
        self.char_order = char_order
        self.word_order = word_order
        self.beta = beta
        self._mean = self._ci = -1.0

    def estimate_ci(self, scores):
        """Stores the mean and half of the 95 % interval of the scores of resamples."""
        scores = sorted(score.score for score in scores)
        outside = len(scores) // 40
        self._ci = 0.5 * (scores[len(scores) - outside - 1] - scores[outside])
        self._mean = statistics.mean(scores)

    def format(self, width=2, score_only=False, signature="", is_json=False):
        """The score as text or as JSON."""
        number = lambda value: f"{value:.{width}f}"
        text = number(self.score)
        interval = f"μ = {number(self._mean)} ± {number(self._ci)}" if self._mean > 0 else None
        if interval:
            text += f" ({interval})"
        if score_only:
            return text
        if not is_json:
            return f"{self.name}|{signature} = {text}" if signature else f"{self.name} = {text}"
        report = {"name": self.name, "score": float(number(self.score)), "signature": signature}
        if interval:
            report["confidence_mean"] = float(number(self._mean))
            report["confidence_var"] = float(number(self._ci))
            report["confidence"] = interval
        report |= (part.split(":") for part in signature.split("|"))
        return json.dumps(report, indent=1, ensure_ascii=False)

    def __repr__(self):
        return self.format()


class Signature:
    """The settings of a metric, and the version of Engram."""

    def __init__(self, info):
        self.info = info

    def update(self, key, value):
        """Adds or replaces a part."""
        self.info[key] = value

    def format(self, short=False):
        """The parts as text."""
        # The version is last.
        names = sorted(self.info, key=lambda name: name == "version")
        parts = ((name, self.info[name]) for name in names if self.info[name] is not None)
        named = ((_SHORT_NAMES.get(name, name) if short else name, part) for name, part in parts)
        return "|".join(f"{name}:{part}" for name, part in named)

    def __repr__(self):
        return self.format()


class CHRF:
    """chrF, and chrF++ with `word_order=2`."""

    CHAR_ORDER = 6
    WORD_ORDER = 0
    BETA = 2

    def __init__(
        self,
        char_order=CHAR_ORDER,
        word_order=WORD_ORDER,
        beta=BETA,
        lowercase=False,
        whitespace=False,
        eps_smoothing=False,
        references=None,
    ):
        for name, value, most in [("char_order", char_order, 6), ("word_order", word_order, 2)]:
            if not 0 <= value <= most:
                raise NotImplementedError(f"{name}={value}: orders from 0 to {most} are available")
        if char_order + word_order == 0:
            raise NotImplementedError("char_order=0: give an order of characters or words")
        self.char_order = char_order
        self.word_order = word_order
        self.order = char_order + word_order
        self.beta = beta
        self.lowercase = lowercase
        self.whitespace = whitespace
        self.eps_smoothing = eps_smoothing
        self.n_bootstrap = self.seed = self.num_refs = None
        self._settings = {
            "char_order": char_order,
            "word_order": word_order,
            "beta": beta,
            "whitespace": bool(whitespace),
            "eps_smoothing": bool(eps_smoothing),
        }
        self._references = None if references is None else self._by_text(references)

    def sentence_score(self, hypothesis, references):
        """The score of a text against its references."""
        if not isinstance(hypothesis, str):
            raise TypeError("CHRF: The argument `hyp` should be a string.")
        if isinstance(references, str) or not isinstance(references, Sequence):
            raise TypeError("CHRF: The argument `refs` should be a sequence of strings.")
        if not isinstance(references[0], str | None):
            raise TypeError("CHRF: Each element of `refs` should be a string.")
        return self._scores(self._sums([hypothesis], [[text] for text in references]).sum(0))[0]

    def corpus_score(self, hypotheses, references, n_bootstrap=1):
        """The score of texts. `references` has lists with one reference for each text."""
        _check_texts("hyps", hypotheses)
        if any(text is None for text in hypotheses):
            raise TypeError("CHRF: Undefined line in hypotheses stream!")
        if references is not None:
            if not isinstance(references, Sequence):
                raise TypeError("CHRF: `refs` should be a sequence of sequence of strings.")
            _check_texts("refs", references[0], or_none=True)
        sums = self._sums(hypotheses, references)
        score = self._scores(sums.sum(0))[0]
        if n_bootstrap > 1:
            self.n_bootstrap = n_bootstrap
            score.estimate_ci(self._resampled(sums))
        return score

    def get_signature(self):
        """The settings. The number of references is known after an evaluation."""
        if self.num_refs is None:
            raise ValueError("Number of references unknown, please evaluate the metric first.")
        return Signature(
            {
                "version": f"engram-{__version__}",
                "nrefs": self.num_refs,
                "bs": self.n_bootstrap,
                "seed": self.seed,
                "case": "lc" if self.lowercase else "mixed",
                "eff": "no" if self.eps_smoothing else "yes",
                "nc": self.char_order,
                "nw": self.word_order,
                "space": "yes" if self.whitespace else "no",
            }
        )

    def _by_text(self, references):
        """The references of each text, without `None`."""
        lines = [[text for text in texts if text is not None] for texts in zip(*references)]
        counts = set(map(len, lines))
        self.num_refs = counts.pop() if len(counts) == 1 else "var"
        return [self._prepared(texts) for texts in lines]

    def _prepared(self, texts):
        return [text.lower() for text in texts] if self.lowercase else list(texts)

    def _sums(self, hypotheses, references):
        references = self._by_text(references) if references else self._references
        if not references:
            raise RuntimeError("No references provided and the cache is empty.")
        if not all(references):
            raise ValueError("a text has no reference")
        return _engram.chrf_sums(self._prepared(hypotheses), references, self._settings)

    def _scores(self, sums):
        values = _engram.chrf_scores(sums.reshape(-1, 3 * self.order), self._settings)
        return [CHRFScore(value, self.char_order, self.word_order, self.beta) for value in values]

    def _resampled(self, sums):
        """The scores of resamples, with the random numbers of sacrebleu."""
        import numpy

        seed = os.environ.get("SACREBLEU_SEED", "12345")
        self.seed = seed.lower()
        random = numpy.random.default_rng(None if self.seed == "none" else int(seed))
        shape = self.n_bootstrap, len(sums)
        rows = random.choice(len(sums), size=shape, replace=True)
        return self._scores(numpy.stack([sums[chosen].sum(0) for chosen in rows]))


def _check_texts(name, texts, or_none=False):
    if not isinstance(texts, Sequence):
        raise TypeError(f"CHRF: `{name}` should be a sequence of strings.")
    if not (isinstance(texts[0], str) or or_none and texts[0] is None):
        raise TypeError(f"CHRF: Each element of `{name}` should be a string.")


def corpus_chrf(
    hypotheses,
    references,
    char_order=CHRF.CHAR_ORDER,
    word_order=CHRF.WORD_ORDER,
    beta=CHRF.BETA,
    remove_whitespace=True,
    eps_smoothing=False,
):
    """chrF of texts; `references` has lists with one reference for each text."""
    metric = CHRF(char_order, word_order, beta, False, not remove_whitespace, eps_smoothing)
    return metric.corpus_score(hypotheses, references)


def sentence_chrf(
    hypothesis,
    references,
    char_order=CHRF.CHAR_ORDER,
    word_order=CHRF.WORD_ORDER,
    beta=CHRF.BETA,
    remove_whitespace=True,
    eps_smoothing=False,
):
    """chrF of a text against its references."""
    metric = CHRF(char_order, word_order, beta, False, not remove_whitespace, eps_smoothing)
    return metric.sentence_score(hypothesis, references)


def _missing(name):
    def missing(*args, **options):
        raise NotImplementedError(f"sacrebleu.{name} is not available; chrF is")

    missing.__name__ = name
    missing.__doc__ = "Not available."
    return missing


BLEU = _missing("BLEU")
TER = _missing("TER")
corpus_bleu = _missing("corpus_bleu")
corpus_ter = _missing("corpus_ter")
raw_corpus_bleu = _missing("raw_corpus_bleu")
sentence_bleu = _missing("sentence_bleu")
sentence_ter = _missing("sentence_ter")
