"""The PyTorch part of `cargo bench -p engram-train --bench minilm`, which starts this script.

Usage: minilm_torch.py MODEL_FOLDER BATCHES_JSON
Answers each line on standard input (step, forward, epoch, memory) with one number: milliseconds,
or MB of peak resident memory. `epoch` sorts the rows by length before it pads, as length-bucketed
training does. Needs: pip install torch transformers
"""
import json
import resource
import sys
import time

import torch

torch.set_num_threads(2)
from transformers import AutoModel

folder, file = sys.argv[1:3]
even, real = json.load(open(file))
net = AutoModel.from_pretrained(folder, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
head = torch.nn.Linear(net.config.hidden_size, 1)
parameters = list(net.parameters()) + list(head.parameters())
optimiser = torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.01, fused=True)


def padded(sequences):
    longest = max(map(len, sequences))
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, sequence in enumerate(sequences):
        ids[i, : len(sequence)] = torch.tensor(sequence)
        mask[i, : len(sequence)] = 1
    return ids, mask


def step(batch):
    net.train()
    ids, mask = padded(batch[0])
    hidden = net(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask[..., None].float()
    scores = head((hidden * weights).sum(1) / weights.sum(1)).squeeze(-1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.tensor(batch[1]))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimiser.step()
    optimiser.zero_grad()
    return loss.item()


def forward():
    net.eval()
    with torch.no_grad():
        ids, mask = padded(even[0])
        net(input_ids=ids, attention_mask=mask)


def bucketed():
    rows = sorted((row for batch in real for row in zip(*batch)), key=lambda row: len(row[0]))
    chunks = [rows[i : i + 64] for i in range(0, len(rows), 64)]
    return [[list(side) for side in zip(*chunk)] for chunk in chunks]


for _ in range(3):
    step(even)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(memory, flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    request = line.strip()
    if request == "memory":
        print(memory, flush=True)
        continue
    if request == "step":
        step(even)
    elif request == "forward":
        forward()
    elif request == "epoch":
        for batch in bucketed():
            step(batch)
    print((time.perf_counter() - start) * 1e3, flush=True)
