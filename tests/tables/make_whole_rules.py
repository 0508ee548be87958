#!/usr/bin/env python3
"""Writes whole_rules.json: what torch.optim.Muon, Adafactor and AdamW make of the same gradients.

    pip install torch numpy
    python tests/tables/make_whole_rules.py

float64 tensors, twelve steps. PyTorch's Muon takes its Newton-Schulz steps in bfloat16 and has two
dimensions: here `bfloat16()` leaves float64 as it is (but for one case, "bfloat16"), and four
dimensions are [first, all others] beforehand.
"""

import json
import pathlib
from unittest import mock

import numpy as np
import torch

torch.set_default_dtype(torch.float64)

STEPS = 12
SHAPES = ([4, 6], [7, 3], [2, 3, 2, 2], [1, 5], [5])
RANDOM = np.random.default_rng(11)
START = [RANDOM.normal(size=shape) for shape in SHAPES]
GRADIENTS = [
    [RANDOM.normal(size=shape) * np.exp(RANDOM.normal(size=shape)) for shape in SHAPES]
    for _ in range(STEPS)
]
GRADIENTS[0][0][1, 2] = 0.0


def trained(make, of=lambda array: array):
    parameters = [torch.tensor(of(x), requires_grad=True) for x in START]
    optimizers = make(parameters)
    for gradients in GRADIENTS:
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = torch.tensor(of(gradient))
        for optimizer in optimizers:
            optimizer.step()
    return [parameter.detach().flatten().tolist() for parameter in parameters]


def muon(adamw_rate=1e-3, exact=True, **options):
    def make(parameters):
        matrices = [p for p in parameters if p.dim() > 1]
        return [
            torch.optim.Muon(matrices, **options),
            torch.optim.AdamW([p for p in parameters if p.dim() == 1], lr=adamw_rate),
        ]

    def as_matrix(array):
        return array.reshape(array.shape[0], -1) if array.ndim > 1 else array

    if not exact:
        return trained(make, as_matrix)
    with mock.patch.object(torch.Tensor, "bfloat16", lambda tensor: tensor.clone()):
        return trained(make, as_matrix)


def adafactor(**options):
    return trained(lambda parameters: [torch.optim.Adafactor(parameters, foreach=False, **options)])


def case(name, options, values, arithmetic="float64"):
    return {"name": name, "options": options, "arithmetic": arithmetic, "parameters": values}


def all_cases():
    return [
        case("muon", {}, muon()),
        case("muon", {}, muon(exact=False), "bfloat16"),
        case(
            "muon",
            {"learning_rate": 0.05, "momentum": 0.8, "nesterov": False, "steps": 3},
            # Without being told otherwise AdamW's rate stays 1e-3 where Muon's is 0.05.
            muon(lr=0.05, momentum=0.8, nesterov=False, ns_steps=3),
        ),
        case(
            "muon",
            {
                "learning_rate": 0.02,
                "weight_decay": 0.01,
                "match_rms_adamw": True,
                "adamw_learning_rate": 0.004,
            },
            muon(lr=0.02, weight_decay=0.01, adjust_lr_fn="match_rms_adamw", adamw_rate=0.004),
        ),
        case("adafactor", {}, adafactor()),
        case(
            "adafactor",
            {"learning_rate": 0.1, "beta2_decay": -0.5, "clip": 1.5, "weight_decay": 0.02},
            adafactor(lr=0.1, beta2_decay=-0.5, d=1.5, weight_decay=0.02),
        ),
        case(
            "adafactor",
            {"learning_rate": 2.0, "epsilon1": 0.125, "epsilon2": 0.5},
            adafactor(lr=2.0, eps=(0.125, 0.5)),
        ),
    ]


def main():
    table = {
        "versions": {"torch": torch.__version__.split("+")[0]},
        "shapes": SHAPES,
        "start": [x.flatten().tolist() for x in START],
        "gradients": [[g.flatten().tolist() for g in gradients] for gradients in GRADIENTS],
        "cases": all_cases(),
    }
    path = pathlib.Path(__file__).with_name("whole_rules.json")
    path.write_text(json.dumps(table) + "\n")


main()
