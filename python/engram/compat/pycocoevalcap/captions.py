"""The captions that a metric compares."""

from engram import _engram


def captions(gts, res):
    """The captions of two dictionaries from image to tokenized captions."""
    if gts.keys() != res.keys():
        raise AssertionError("`gts` and `res` have different images; give both the same keys")
    for image, references in gts.items():
        hypotheses = res[image]
        if type(hypotheses) is not list or len(hypotheses) != 1:
            raise AssertionError(f"image {image!r}: `res` needs a list of one caption")
        if type(references) is not list or not references:
            raise AssertionError(f"image {image!r}: `gts` needs a list of at least one caption")
    try:
        return _engram.Captions([res[image][0] for image in gts], list(gts.values()))
    except TypeError:
        raise AttributeError("a caption is not a text; give lists of str") from None
