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

model_folder, batches_file = sys.argv[1:3]
equal_length, mixed_length = json.load(open(batches_file))
dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
model = AutoModel.from_pretrained(model_folder, **dropout)
head = torch.nn.Linear(model.config.hidden_size, 1)
parameters = list(model.parameters()) + list(head.parameters())
optimiser = torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.01, fused=True)


def pad(sequences):
    longest = max(map(len, sequences))
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, sequence in enumerate(sequences):
        ids[i, : len(sequence)] = torch.tensor(sequence)
        mask[i, : len(sequence)] = 1
    return ids, mask


def step(batch):
    model.train()
    ids, mask = pad(batch[0])
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask[..., None].float()
    scores = head((hidden * weights).sum(1) / weights.sum(1)).squeeze(-1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.tensor(batch[1]))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimiser.step()
    optimiser.zero_grad()
    return loss.item()


def forward():
    model.eval()
    with torch.no_grad():
        ids, mask = pad(equal_length[0])
        model(input_ids=ids, attention_mask=mask)


def length_bucketed():
    rows = [row for batch in mixed_length for row in zip(*batch)]
    rows.sort(key=lambda row: len(row[0]))
    chunks = [rows[i : i + 64] for i in range(0, len(rows), 64)]
    return [[list(side) for side in zip(*chunk)] for chunk in chunks]


for _ in range(3):
    step(equal_length)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(memory, flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    request = line.strip()
    if request == "memory":
        print(memory, flush=True)
        continue
    if request == "step":
        step(equal_length)
    elif request == "forward":
        forward()
    elif request == "epoch":
        for batch in length_bucketed():
            step(batch)
    print((time.perf_counter() - start) * 1e3, flush=True)
