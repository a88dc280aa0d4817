"""Reference fixture for the CTC loss, made by `torch.nn.functional.ctc_loss`.

Writes models/tests/fixtures/ctc/expected.safetensors, for 5 and for 40 classes: the logits of packed clips (exact in f32)
and their lengths; the concatenated targets and their lengths; each clip's loss; and the gradient of the weighted sum of
all losses (`weights`) with respect to the logits, in f64. The gradient includes log_softmax and is zero for clips with an
infinite loss. The clips include repeated labels, an empty target, a target that just fits and a clip with too few frames.

    python tests/reference/ctc.py

Made with Python 3.11, torch 2.15.0, safetensors 0.8.0.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures" / "ctc"

# Number of classes, index of the blank, number of frames of each clip, targets.
CASES = [
    (5, 0, [7, 4, 9, 3, 5], [[1, 2, 2, 4], [], [3, 3, 3, 1, 3], [2, 2, 1], [1, 2, 2, 1]]),
    (40, 39, [30, 12, 17], [[5, 5, 0, 17, 17, 17, 38, 2, 5], [8], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]]),
]


def ctc(logits, target, blank, zero_infinity):
    """Returns the loss of one clip with logits `[frames, classes]`."""
    return torch.nn.functional.ctc_loss(
        logits.log_softmax(-1), torch.tensor(target, dtype=torch.long), torch.tensor(len(logits)), torch.tensor(len(target)),
        blank=blank, reduction="none", zero_infinity=zero_infinity,
    )


def main():
    torch.manual_seed(3)
    tensors = {}
    for classes, blank, lengths, targets in CASES:
        logits = (torch.randn(sum(lengths), classes) * 3).double().requires_grad_(True)
        clips = list(zip(logits.split(lengths), targets))
        weights = torch.tensor([1.0, -0.5, 2.0, 3.0, 0.25][: len(clips)], dtype=torch.float64)
        losses = torch.stack([ctc(clip_logits, target, blank, False) for clip_logits, target in clips])
        (torch.stack([ctc(clip_logits, target, blank, True) for clip_logits, target in clips]) * weights).sum().backward()
        print(classes, losses.tolist())
        expected = {"logits": logits, "losses": losses, "gradient": logits.grad, "weights": weights}
        tensors |= {f"{classes}.{name}": value.detach().float().contiguous() for name, value in expected.items()}
        tensors[f"{classes}.lengths"] = torch.tensor(lengths)
        tensors[f"{classes}.targets"] = torch.tensor(sum(targets, []))
        tensors[f"{classes}.target_lengths"] = torch.tensor([len(target) for target in targets])
        tensors[f"{classes}.blank"] = torch.tensor([blank])
    FOLDER.mkdir(exist_ok=True)
    save_file(tensors, FOLDER / "expected.safetensors")


if __name__ == "__main__":
    main()
