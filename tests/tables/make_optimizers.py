#!/usr/bin/env python3
"""Writes optimizers.json: what PyTorch's and Keras's optimizers make of the same gradients.

    pip install torch keras tensorflow numpy
    python tests/tables/make_optimizers.py

Two float64 tensors, twelve steps; Keras keeps rates and decays in float32, so these are
powers of 2. LARS, and LAMB with weight decay, are in neither: these are the
papers' formulas in NumPy (arXiv:1708.03888, arXiv:1904.00962).
"""

import json
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

torch.set_default_dtype(torch.float64)  # also of NAdam's product of momenta

STEPS = 12
SIZES = (5, 3)
RANDOM = np.random.default_rng(7)
START = [RANDOM.normal(size=size) for size in SIZES]
GRADIENTS = [
    [RANDOM.normal(size=size) * np.exp(RANDOM.normal(size=size)) for size in SIZES]
    for _ in range(STEPS)
]
GRADIENTS[3][0][1] = 0.0  # a sign of zero, a mean of zeros


def with_torch(make):
    parameters = [torch.tensor(x, requires_grad=True) for x in START]
    optimizer = make(parameters)
    for gradients in GRADIENTS:
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
    return [parameter.detach().tolist() for parameter in parameters]


def with_keras(optimizer):
    variables = [keras.Variable(x, dtype="float64") for x in START]
    for gradients in GRADIENTS:
        optimizer.apply_gradients(
            [(keras.ops.convert_to_tensor(g, "float64"), v) for g, v in zip(gradients, variables)]
        )
    return [np.asarray(variable).tolist() for variable in variables]


def lars(rate, momentum, decay, trust, epsilon):
    result = [x.copy() for x in START]
    buffers = [np.zeros_like(x) for x in START]
    for gradients in GRADIENTS:
        for x, g, v in zip(result, gradients, buffers):
            norm, of_gradient = np.linalg.norm(x), np.linalg.norm(g)
            local = trust * norm / (of_gradient + decay * norm + epsilon)
            v[:] = momentum * v + local * (g + decay * x)
            x -= rate * v
    return [x.tolist() for x in result]


def lamb(rate, beta1, beta2, epsilon, decay):
    result = [x.copy() for x in START]
    moments = [(np.zeros_like(x), np.zeros_like(x)) for x in START]
    for t, gradients in enumerate(GRADIENTS, 1):
        for x, g, (m, v) in zip(result, gradients, moments):
            m[:] = beta1 * m + (1 - beta1) * g
            v[:] = beta2 * v + (1 - beta2) * g * g
            step = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon) + decay * x
            x -= rate * np.linalg.norm(x) / np.linalg.norm(step) * step
    return [x.tolist() for x in result]


def case(source, name, options, values):
    return {"source": source, "name": name, "options": options, "parameters": values}


def all_cases():
    rms, nadam, adam = torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adam
    return [
        case("torch", "rmsprop", {}, with_torch(lambda p: rms(p))),
        case(
            "torch",
            "rmsprop",
            {"learning_rate": 0.05, "rho": 0.9, "momentum": 0.8, "weight_decay": 0.01},
            with_torch(lambda p: rms(p, 0.05, 0.9, momentum=0.8, weight_decay=0.01)),
        ),
        case(
            "torch",
            "rmsprop",
            {"rho": 0.9, "centered": True, "epsilon": 1e-3},
            with_torch(lambda p: rms(p, 0.01, 0.9, eps=1e-3, centered=True)),
        ),
        case(
            "torch",
            "rmsprop",
            {"centered": True, "momentum": 0.5},
            with_torch(lambda p: rms(p, centered=True, momentum=0.5)),
        ),
        case("torch", "adadelta", {}, with_torch(lambda p: torch.optim.Adadelta(p))),
        case(
            "torch",
            "adadelta",
            {"learning_rate": 0.5, "rho": 0.8, "epsilon": 1e-4, "weight_decay": 0.02},
            with_torch(lambda p: torch.optim.Adadelta(p, 0.5, 0.8, 1e-4, 0.02)),
        ),
        case("torch", "adamax", {}, with_torch(lambda p: torch.optim.Adamax(p))),
        case(
            "torch",
            "adamax",
            {"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.02},
            with_torch(lambda p: torch.optim.Adamax(p, 0.1, (0.8, 0.9), weight_decay=0.02)),
        ),
        case("torch", "nadam", {}, with_torch(lambda p: nadam(p))),
        case(
            "torch",
            "nadam",
            {"learning_rate": 0.05, "beta1": 0.8, "momentum_decay": 0.1, "weight_decay": 0.02},
            with_torch(lambda p: nadam(p, 0.05, (0.8, 0.999), 1e-8, 0.02, 0.1)),
        ),
        case(
            "torch",
            "adam",
            {"learning_rate": 0.05, "beta2": 0.8, "weight_decay": 0.02, "amsgrad": True},
            with_torch(lambda p: adam(p, 0.05, (0.9, 0.8), 1e-8, 0.02, True)),
        ),
        case(
            "torch",
            "adamw",
            {"learning_rate": 0.05, "beta2": 0.8, "amsgrad": True},
            with_torch(lambda p: torch.optim.AdamW(p, 0.05, (0.9, 0.8), 1e-8, 1e-2, True)),
        ),
        case(
            "keras",
            "adam",
            {"learning_rate": 1 / 64, "beta1": 0.875, "beta2": 0.75, "amsgrad": True},
            with_keras(keras.optimizers.Adam(1 / 64, 0.875, 0.75, 1e-8, amsgrad=True)),
        ),
        case("keras", "lion", {"learning_rate": 1 / 128}, with_keras(keras.optimizers.Lion(1 / 128))),
        case(
            "keras",
            "lion",
            {"learning_rate": 1 / 8, "beta1": 0.8, "beta2": 0.95, "weight_decay": 1 / 8},
            with_keras(keras.optimizers.Lion(1 / 8, 0.8, 0.95, weight_decay=1 / 8)),
        ),
        case(
            "keras",
            "lamb",
            {"learning_rate": 1 / 64, "epsilon": 1e-6},
            with_keras(keras.optimizers.Lamb(1 / 64, epsilon=1e-6)),
        ),
        case(
            "formula",
            "lamb",
            {"learning_rate": 0.02, "weight_decay": 0.1},
            lamb(0.02, 0.9, 0.999, 1e-6, 0.1),
        ),
        case(
            "formula",
            "lars",
            {"learning_rate": 0.5, "weight_decay": 0.01, "trust": 0.02},
            lars(0.5, 0.9, 0.01, 0.02, 1e-8),
        ),
    ]


def main():
    table = {
        "versions": {"torch": torch.__version__.split("+")[0], "keras": keras.__version__},
        "start": [x.tolist() for x in START],
        "gradients": [[g.tolist() for g in gradients] for gradients in GRADIENTS],
        "cases": all_cases(),
    }
    path = pathlib.Path(__file__).with_name("optimizers.json")
    path.write_text(json.dumps(table) + "\n")


main()
