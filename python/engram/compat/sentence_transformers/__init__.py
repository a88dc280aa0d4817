"""Drop-in replacement of `sentence_transformers`, without PyTorch."""

from engram.compat.sentence_transformers import util
from engram.compat.sentence_transformers.sentence_transformer import SentenceTransformer
from engram.compat.sentence_transformers.util import SimilarityFunction

__all__ = ["SentenceTransformer", "SimilarityFunction", "util"]
