"""Expected parameters after a few optimiser steps, for tests/optimisers.rs.

AdamW, SGD and Muon come from torch.optim (Muon in f32 instead of bf16, with a tensor of
rank above 2 as a matrix with its first dimension as rows), Lion from optax, Adafactor from numpy
with optax's arithmetic (optax/_src/alias.py, factorized.py). Parameters and gradients follow a
formula that the test repeats, so only some elements are stored.

Usage: python optimisers.py > optimisers.json      (torch 2.15.0, optax 0.2.8)
"""
import inspect
import json

import numpy as np
import optax
import torch
import torch.optim._muon as torch_muon

SHAPES = [[5], [7, 9], [130, 140], [140, 130], [129, 2, 131], [128, 150, 3]]
STEPS = 4
LEARNING_RATE = 0.01
RATE_FACTORS = [1.0, 0.5, 1.0, 2.0, 1.0, 1.0]


def formula(count, salt):
    """`count` values of [-0.5, 0.5) that differ for each `salt`."""
    index = np.arange(count, dtype=np.int64)
    return (((index * 7919 + salt * 104729) % 1000).astype(np.float32) / np.float32(1000)) - np.float32(0.5)


def start(i, shape):
    return formula(int(np.prod(shape)), 17 * i + 1).reshape(shape)


def gradient(i, shape, step):
    return formula(int(np.prod(shape)), 17 * i + 100 * (step + 1)).reshape(shape)


def sample(values):
    """Up to nine evenly spaced elements, and the sum of all."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    indices = sorted(set(np.linspace(0, flat.size - 1, 9).astype(int).tolist()))
    return {"indices": indices, "values": [float(flat[i]) for i in indices], "sum": float(flat.sum())}


def decay_of_shape(shape, weight_decay):
    return weight_decay if len(shape) >= 2 else 0.0


def with_torch(make, weight_decay, clip=0.0):
    """Steps of a torch optimiser; `make` makes it for one parameter."""
    parameters = [torch.nn.Parameter(torch.tensor(start(i, s))) for i, s in enumerate(SHAPES)]
    optimisers = [
        make(p, lr=LEARNING_RATE * rate_factor, weight_decay=decay_of_shape(s, weight_decay))
        for p, rate_factor, s in zip(parameters, RATE_FACTORS, SHAPES)
    ]
    for step in range(STEPS):
        for i, p in enumerate(parameters):
            p.grad = torch.tensor(gradient(i, SHAPES[i], step))
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        for optimiser in optimisers:
            optimiser.step()
    return [sample(p.detach().numpy()) for p in parameters]


def adamw(p, **shared):
    return torch.optim.AdamW([p], betas=(0.9, 0.98), eps=1e-6, **shared)


def sgd(momentum, nesterov):
    return lambda p, **shared: torch.optim.SGD([p], momentum=momentum, nesterov=nesterov, **shared)


source = inspect.getsource(torch_muon._zeropower_via_newtonschulz)
exec(source.replace("bfloat16", "float32"), torch_muon.__dict__)


class Muon:
    """torch.optim.Muon for tensors of any rank; AdamW for vectors."""

    def __init__(self, p, adjust, nesterov, **shared):
        self.p = p
        if p.dim() < 2:
            self.reshaped, self.inner = p, adamw(p, **shared)
        else:
            self.reshaped = torch.nn.Parameter(p.detach().reshape(p.shape[0], -1))
            self.inner = torch.optim.Muon(
                [self.reshaped], momentum=0.9, nesterov=nesterov, adjust_lr_fn=adjust, **shared
            )

    def step(self):
        self.reshaped.grad = self.p.grad.reshape(self.reshaped.shape)
        self.inner.step()
        with torch.no_grad():
            self.p.copy_(self.reshaped.reshape(self.p.shape))


def muon(adjust, nesterov):
    return lambda p, **shared: Muon(p, adjust, nesterov, **shared)


def lion(weight_decay):
    samples = []
    for i, shape in enumerate(SHAPES):
        p = start(i, shape)
        decay = decay_of_shape(shape, weight_decay)
        rule = optax.lion(LEARNING_RATE * RATE_FACTORS[i], b1=0.8, b2=0.95, weight_decay=decay)
        state = rule.init(p)
        for step in range(STEPS):
            update, state = rule.update(gradient(i, shape, step), state, p)
            p = np.asarray(optax.apply_updates(p, update))
        samples.append(sample(p))
    return samples


def factored_dims(shape):
    """The two largest dimensions, the largest last; None if the second moment is not factored."""
    if len(shape) < 2:
        return None
    order = np.argsort(shape, kind="stable")
    if shape[order[-2]] < 128:
        return None
    return int(order[-2]), int(order[-1])


def adafactor(weight_decay, momentum):
    samples = []
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
            u = u + decay_of_shape(shape, weight_decay) * p
            p = p - RATE_FACTORS[i] * u
        samples.append(sample(p))
    return samples


def running_means():
    """The sums of the running means of rules with a decay of 0.999, after 1,000 steps."""
    decay, count = 0.999, 4096
    p = torch.nn.Parameter(torch.tensor(start(0, [64, 64])))
    torch_rules = {
        "adamw": (torch.optim.AdamW([p], betas=(decay, decay)), ["exp_avg", "exp_avg_sq"]),
        "muon": (torch.optim.Muon([p], momentum=decay), ["momentum_buffer"]),
    }
    rule = optax.lion(1e-4, b2=decay)
    lion_state = rule.init(p.detach().numpy())
    for step in range(1000):
        g = formula(count, 100 * (step + 1)).reshape(64, 64) + np.float32(1)
        p.grad = torch.tensor(g)
        for optimiser, _ in torch_rules.values():
            optimiser.step()
        _, lion_state = rule.update(g, lion_state, p.detach().numpy())
    total = lambda mean: float(np.asarray(mean, dtype=np.float64).sum())
    sums = {
        name: [total(optimiser.state[p][state]) for state in states]
        for name, (optimiser, states) in torch_rules.items()
    }
    return {**sums, "lion": [total(lion_state[0].mu)]}


print(json.dumps({
    "shapes": SHAPES,
    "rates": RATE_FACTORS,
    "steps": STEPS,
    "learning_rate": LEARNING_RATE,
    "adamw": with_torch(adamw, 0.1),
    "adamw_clipped": with_torch(adamw, 0.1, clip=1.5),
    "adafactor": adafactor(0.002, 0.0),
    "adafactor_momentum": adafactor(0.0, 0.9),
    "sgd": with_torch(sgd(0.0, False), 0.1),
    "sgd_momentum": with_torch(sgd(0.9, False), 0.1),
    "sgd_nesterov": with_torch(sgd(0.9, True), 0.1),
    "lion": lion(0.1),
    "muon": with_torch(muon("match_rms_adamw", True), 0.1),
    "muon_original": with_torch(muon("original", False), 0.1),
    "running_means": running_means(),
}))
