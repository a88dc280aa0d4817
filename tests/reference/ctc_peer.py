"""The PyTorch side of `cargo bench -p engram-models --bench ctc`, which starts this script.

    python tests/reference/ctc_peer.py FILE CLIPS FRAMES CLASSES LABELS

FILE has the logits (f32, clip after clip), then the labels (u32). For each line on standard input, prints the time in
milliseconds of log_softmax, ctc_loss and backward to the logits (float32, 2 threads), and the mean loss.
"""

import sys
import time

import numpy as np
import torch

torch.set_num_threads(2)
clips, frames, classes, labels = map(int, sys.argv[2:6])
count = clips * frames * classes
logits = torch.tensor(np.fromfile(sys.argv[1], "<f4", count).reshape(clips, frames, classes))
targets = np.fromfile(sys.argv[1], "<u4", offset=4 * count).reshape(clips, labels)
targets = torch.tensor(targets.astype(np.int64))
# ctc_loss expects frames first; this layout avoids a copy.
logits = logits.transpose(0, 1).contiguous().requires_grad_(True)
frames, labels = torch.full((clips,), frames), torch.full((clips,), labels)

for _ in sys.stdin:
    logits.grad = None
    start = time.perf_counter()
    loss = torch.nn.functional.ctc_loss(logits.log_softmax(-1), targets, frames, labels, reduction="none").mean()
    loss.backward()
    print(1e3 * (time.perf_counter() - start), loss.item(), flush=True)
