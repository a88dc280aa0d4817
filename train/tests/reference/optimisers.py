"""Expected parameters after a few optimiser steps, for tests/optimisers.rs.

AdamW comes from torch.optim.AdamW; Adafactor from numpy with optax's arithmetic
(optax/_src/alias.py, factorized.py). Parameters and gradients follow a formula that the test
repeats, so only some elements are stored.

Usage: python optimisers.py > optimisers.json      (needs numpy and torch)
"""
import json

import numpy as np
import torch

SHAPES = [[5], [7, 9], [130, 140], [140, 130], [129, 2, 131], [128, 150, 3]]
STEPS = 4
LEARNING_RATE = 0.01
RATES = [1.0, 0.5, 1.0, 2.0, 1.0, 1.0]


def formula(count, salt):
    index = np.arange(count, dtype=np.int64)
    return (((index * 7919 + salt * 104729) % 1000).astype(np.float32) / np.float32(1000)) - np.float32(0.5)


def start(i, shape):
    return formula(int(np.prod(shape)), 17 * i + 1).reshape(shape)


def gradient(i, shape, step):
    return formula(int(np.prod(shape)), 17 * i + 100 * (step + 1)).reshape(shape)


def sample(values):
    flat = np.asarray(values, dtype=np.float64).ravel()
    indices = sorted(set(np.linspace(0, flat.size - 1, 9).astype(int).tolist()))
    return {"indices": indices, "values": [float(flat[i]) for i in indices], "sum": float(flat.sum())}


def adamw(weight_decay, clip):
    parameters = [torch.nn.Parameter(torch.tensor(start(i, s))) for i, s in enumerate(SHAPES)]
    groups = [
        dict(params=[p], lr=LEARNING_RATE * rate, weight_decay=weight_decay if p.dim() >= 2 else 0.0)
        for p, rate in zip(parameters, RATES)
    ]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-6)
    for step in range(STEPS):
        for i, p in enumerate(parameters):
            p.grad = torch.tensor(gradient(i, SHAPES[i], step))
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimiser.step()
    return [sample(p.detach().numpy()) for p in parameters]


def factored_dims(shape):
    if len(shape) < 2:
        return None
    order = np.argsort(shape, kind="stable")
    if shape[order[-2]] < 128:
        return None
    return int(order[-2]), int(order[-1])


def adafactor(weight_decay, momentum):
    found = []
    for i, shape in enumerate(SHAPES):
        p = start(i, shape).astype(np.float64)
        dims = factored_dims(shape)
        row = col = full = 0.0
        running = np.zeros(shape)
        for step in range(STEPS):
            g = gradient(i, shape, step).astype(np.float64)
            decay = 1.0 - float(step + 1) ** -0.8
            square = g * g + 1e-30
            if dims:
                d1, d0 = dims
                row = decay * row + (1 - decay) * square.mean(axis=d0)
                col = decay * col + (1 - decay) * square.mean(axis=d1)
                reduced = d1 - 1 if d1 > d0 else d1
                row_factor = (row / row.mean(axis=reduced, keepdims=True)) ** -0.5
                u = g * np.expand_dims(row_factor, d0) * np.expand_dims(col ** -0.5, d1)
            else:
                full = decay * full + (1 - decay) * square
                u = g * full ** -0.5
            u = u / max(1.0, np.sqrt((u * u).mean()) / 1.0)
            u = u * LEARNING_RATE
            u = u * max(np.sqrt((p * p).mean()), 1e-3)
            if momentum:
                running = momentum * running + (1 - momentum) * u
                u = running
            u = u + (weight_decay if len(shape) >= 2 else 0.0) * p
            p = p - RATES[i] * u
        found.append(sample(p))
    return found


print(json.dumps({
    "shapes": SHAPES,
    "rates": RATES,
    "steps": STEPS,
    "learning_rate": LEARNING_RATE,
    "adamw": adamw(0.1, 0.0),
    "adamw_clipped": adamw(0.1, 1.5),
    "adafactor": adafactor(0.002, 0.0),
    "adafactor_momentum": adafactor(0.0, 0.9),
}))
