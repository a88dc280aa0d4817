"""The tokenizer of the COCO caption metrics."""

from engram import _engram


class PTBTokenizer:
    """Stanford's PTBTokenizer, lower-cased and without punctuation."""

    def tokenize(self, captions_for_image):
        """Tokenizes a dictionary from image to a list of dictionaries with a `caption`."""
        images = captions_for_image.items()
        texts = [row["caption"].replace("\n", " ") for _, rows in images for row in rows]
        lines, end, tokenized = _engram.tokenize_captions(texts), 0, {}
        for image, rows in images:
            if rows:
                start, end = end, end + len(rows)
                tokenized[image] = lines[start:end]
        return tokenized
