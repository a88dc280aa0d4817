"""Evaluation of the captions of a COCO data set."""

import warnings

from engram.compat.pycocoevalcap.bleu.bleu import Bleu
from engram.compat.pycocoevalcap.cider.cider import Cider
from engram.compat.pycocoevalcap.rouge.rouge import Rouge
from engram.compat.pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer


class COCOEvalCap:
    """Evaluates the captions `cocoRes` against `coco`: two objects of `pycocotools.coco.COCO`."""

    def __init__(self, coco, cocoRes):
        self.evalImgs = []
        self.eval = {}
        self.imgToEval = {}
        self.coco = coco
        self.cocoRes = cocoRes
        self.params = {"image_id": coco.getImgIds()}

    def evaluate(self):
        """Fills `eval`, `imgToEval` and `evalImgs`; METEOR and SPICE are left out."""
        warnings.warn("METEOR and SPICE are left out; Engram does not have them", stacklevel=2)
        images = self.params["image_id"]
        print("tokenization...")
        tokenizer = PTBTokenizer()
        gts = tokenizer.tokenize({image: self.coco.imgToAnns[image] for image in images})
        res = tokenizer.tokenize({image: self.cocoRes.imgToAnns[image] for image in images})
        print("setting up scorers...")
        bleu_names = ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4"]
        scorers = [(Bleu(4), bleu_names), (Rouge(), ["ROUGE_L"]), (Cider(), ["CIDEr"])]
        for scorer, names in scorers:
            print(f"computing {scorer.method()} score...")
            score, of_images = scorer.compute_score(gts, res)
            if len(names) == 1:
                score, of_images = [score], [of_images]
            for name, value, values in zip(names, score, of_images):
                self.setEval(value, name)
                self.setImgToEvalImgs(values, gts.keys(), name)
                print(f"{name}: {value:0.3f}")
        self.setEvalImgs()

    def setEval(self, score, method):
        """Stores the score of the corpus."""
        self.eval[method] = score

    def setImgToEvalImgs(self, scores, imgIds, method):
        """Stores the score of each image."""
        for image, score in zip(imgIds, scores):
            self.imgToEval.setdefault(image, {"image_id": image})[method] = score

    def setEvalImgs(self):
        """Fills `evalImgs` from `imgToEval`."""
        self.evalImgs = list(self.imgToEval.values())
