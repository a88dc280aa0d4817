"""The transforms of jiwer 4.0, which turn texts into lists of words or of characters."""

import re
import string
import unicodedata

__all__ = [
    "AbstractTransform",
    "Compose",
    "ExpandCommonEnglishContractions",
    "ReduceToListOfListOfChars",
    "ReduceToListOfListOfWords",
    "ReduceToSingleSentence",
    "RemoveEmptyStrings",
    "RemoveKaldiNonWords",
    "RemoveMultipleSpaces",
    "RemovePunctuation",
    "RemoveSpecificWords",
    "RemoveWhiteSpace",
    "Strip",
    "SubstituteRegexes",
    "SubstituteWords",
    "ToLowerCase",
    "ToUpperCase",
    "cer_contiguous",
    "cer_default",
    "wer_contiguous",
    "wer_default",
    "wer_standardize",
    "wer_standardize_contiguous",
]


class AbstractTransform:
    """A transform of a text or of a list of texts. Subclasses define `process_string`."""

    def __call__(self, sentences):
        if isinstance(sentences, str):
            return self.process_string(sentences)
        if isinstance(sentences, list):
            return self.process_list(sentences)
        raise ValueError(f"input {sentences} was expected to be a string or list of strings")

    def process_string(self, s):
        """Transforms a text."""
        raise NotImplementedError

    def process_list(self, inp):
        """Transforms each text of a list."""
        return [self.process_string(s) for s in inp]


class Compose:
    """Applies transforms one after the other."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, text):
        for transform in self.transforms:
            text = transform(text)
        return text


class _Reduce(AbstractTransform):
    """Splits each text into a list."""

    def process_string(self, s):
        return [self._split(s)]

    def process_list(self, inp):
        return [self.process_string(s)[0] for s in inp] or [[]]


class ReduceToListOfListOfWords(_Reduce):
    """Splits each text into a list of words."""

    def __init__(self, word_delimiter=" "):
        self.word_delimiter = word_delimiter

    def _split(self, s):
        return [word for word in s.split(self.word_delimiter) if word]


class ReduceToListOfListOfChars(_Reduce):
    """Splits each text into a list of characters."""

    def _split(self, s):
        return list(s)


class ReduceToSingleSentence(AbstractTransform):
    """Joins a list of texts to one text, without empty texts."""

    def __init__(self, word_delimiter=" "):
        self.word_delimiter = word_delimiter

    def process_string(self, s):
        return s

    def process_list(self, inp):
        texts = [text for text in inp if len(text) > 0]
        return [str(self.word_delimiter).join(texts)] if texts else []


class SubstituteRegexes(AbstractTransform):
    """Replaces the matches of regular expressions, given as a mapping to replacements."""

    def __init__(self, substitutions):
        self.substitutions = substitutions

    def process_string(self, s):
        for pattern, replacement in self.substitutions.items():
            s = re.sub(pattern, replacement, s)
        return s


class SubstituteWords(AbstractTransform):
    """Replaces whole words, given as a mapping to replacements."""

    def __init__(self, substitutions):
        self.substitutions = substitutions

    def process_string(self, s):
        for word, replacement in self.substitutions.items():
            s = re.sub(rf"\b{re.escape(word)}\b", replacement, s)
        return s


class RemoveSpecificWords(SubstituteWords):
    """Replaces each of the given words by a space."""

    def __init__(self, words_to_remove):
        super().__init__(dict.fromkeys(words_to_remove, " "))


class RemoveWhiteSpace(AbstractTransform):
    """Removes ASCII white space, or replaces each white-space character by a space."""

    def __init__(self, replace_by_space=False):
        self.tokens_to_remove = list(string.whitespace)
        self.replace_token = " " if replace_by_space else ""
        self._table = str.maketrans(dict.fromkeys(self.tokens_to_remove, self.replace_token))

    def process_string(self, s):
        return s.translate(self._table)


class _Punctuation(dict):
    """For `str.translate`: removes the characters whose Unicode category starts with P."""

    def __missing__(self, code):
        is_punctuation = unicodedata.category(chr(code)).startswith("P")
        self[code] = None if is_punctuation else code
        return self[code]


class RemovePunctuation(AbstractTransform):
    """Removes all characters whose Unicode category starts with P."""

    _table = _Punctuation()

    def process_string(self, s):
        return s.translate(self._table)


class RemoveMultipleSpaces(AbstractTransform):
    """Replaces two or more white-space characters in a row by one space."""

    def process_string(self, s):
        return re.sub(r"\s\s+", " ", s)


class Strip(AbstractTransform):
    """Removes white space at both ends."""

    def process_string(self, s):
        return s.strip()


class RemoveEmptyStrings(AbstractTransform):
    """Removes texts without characters other than white space from a list."""

    def process_string(self, s):
        return s.strip()

    def process_list(self, inp):
        return [text for text in inp if self.process_string(text) != ""]


class ExpandCommonEnglishContractions(AbstractTransform):
    """Expands contractions, such as `let's` to `let us` and `we'll` to `we will`."""

    _EXPANSIONS = [
        ("won't", "will not"),
        ("can't", "can not"),
        ("let's", "let us"),
        ("n't", " not"),
        ("'re", " are"),
        ("'s", " is"),
        ("'d", " would"),
        ("'ll", " will"),
        ("'t", " not"),
        ("'ve", " have"),
        ("'m", " am"),
    ]

    def process_string(self, s):
        if "'" in s:
            for contraction, expansion in self._EXPANSIONS:
                s = s.replace(contraction, expansion)
        return s


class ToLowerCase(AbstractTransform):
    """Converts to lower case."""

    def process_string(self, s):
        return s.lower()


class ToUpperCase(AbstractTransform):
    """Converts to upper case."""

    def process_string(self, s):
        return s.upper()


class RemoveKaldiNonWords(AbstractTransform):
    """Removes text between brackets `[]` or `<>`, such as `[laugh]` and `<unk>`."""

    def process_string(self, s):
        return re.sub(r"[<\[][^>\]]*[>\]]", "", s)


_SPACES = [RemoveMultipleSpaces(), Strip()]
_STANDARDIZE = [
    ToLowerCase(),
    ExpandCommonEnglishContractions(),
    RemoveKaldiNonWords(),
    RemoveWhiteSpace(replace_by_space=True),
]
_ONE_TEXT = [ReduceToSingleSentence()]
_WORDS = [ReduceToListOfListOfWords()]
_CHARS = [ReduceToListOfListOfChars()]

#: The words of each text.
wer_default = Compose(_SPACES + _WORDS)
#: The words of all texts as one text.
wer_contiguous = Compose(_SPACES + _ONE_TEXT + _WORDS)
#: The words of each text: lower case, contractions expanded, without non-words.
wer_standardize = Compose(_STANDARDIZE + _SPACES + _WORDS)
#: Like `wer_standardize`, as one text.
wer_standardize_contiguous = Compose(_STANDARDIZE + _SPACES + _ONE_TEXT + _WORDS)
#: The characters of each text.
cer_default = Compose([Strip(), *_CHARS])
#: The characters of all texts as one text.
cer_contiguous = Compose([Strip(), *_ONE_TEXT, *_CHARS])
