"""Drop-in replacement of `pycocoevalcap`, without Java: BLEU, ROUGE-L, CIDEr-D, PTB tokenizer."""
