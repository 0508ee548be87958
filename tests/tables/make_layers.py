#!/usr/bin/env python3
"""Writes layers.json beside itself: what PyTorch and Keras give for layers of nn::Graph.

  KERAS_BACKEND=tensorflow python tests/tables/make_layers.py     # PyTorch, Keras 3 and TensorFlow

Everything is computed in float64, but Keras has some constants in float32. Inputs are multiples of 1/64, away from kinks; a case has layer,
options, inputs, parameters by torch's names and in torch's shapes (Keras's are turned into these),
the output, and the gradients of the sum of outputs times `weights`. Images have their channels
first, sequences their features last. tests/unit/nn/test_layers_table.cpp reads them.
"""

import json
import pathlib

import keras
import numpy as np
import tensorflow as tf
import torch
from torch.nn.utils import rnn

FILE = pathlib.Path(__file__).with_name("layers.json")
keras.backend.set_floatx("float64")
torch.set_default_dtype(torch.float64)
RNG = np.random.default_rng(53)
CASES = []


def numbers(shape, low=-2, high=2):
    values = RNG.integers(low * 64, high * 64, shape, endpoint=True)
    return (values + (values % 32 == 0)) / 64  # away from kinks at halves


def listed(a):
    a = np.asarray(a)
    return {"shape": list(a.shape), "values": [float(f"{v:.12g}") for v in a.flatten()]}


def record(by, name, layer, options, inputs, run):
    """run(inputs) -> output, parameters, {name: gradient}, where inputs are gradients "input 0"..."""
    output, weights, parameters, gradients = run(inputs)
    CASES.append({
        "name": f"{name}, {by}",
        "layer": layer,
        "options": options,
        "inputs": [listed(x) for x in inputs],
        "parameters": {key: listed(value) for key, value in parameters.items()},
        "output": listed(output),
        "weights": listed(weights),
        "gradients": {key: listed(value) for key, value in gradients.items()},
    })


def by_torch(name, layer, options, inputs, function, module=None):
    """function(*tensors) -> output; floating inputs have gradients."""

    def run(arrays):
        tensors = [torch.tensor(a).requires_grad_(a.dtype == np.float64) for a in arrays]
        if module is not None:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.copy_(torch.tensor(numbers(tuple(parameter.shape), -1, 1)))
        y = function(*tensors)
        weights = numbers(tuple(y.shape))
        (y * torch.tensor(weights)).sum().backward()
        gradients = {f"input {i}": t.grad.numpy() for i, t in enumerate(tensors) if t.grad is not None}
        parameters = {}
        for key, parameter in module.named_parameters() if module is not None else []:
            parameters[key] = parameter.detach().numpy()
            gradients[key] = parameter.grad.numpy()
        return y.detach().numpy(), weights, parameters, gradients

    record("torch", name, layer, options, inputs, run)


def by_keras(name, layer, options, inputs, module, turned=None, function=None):
    """turned(variables) -> {torch's name: array}, of values and of gradients alike."""

    def run(arrays):
        tensors = [tf.Variable(a) if a.dtype == np.float64 else tf.constant(a) for a in arrays]
        of = function or (lambda *t: module(*t))
        of(*tensors)
        variables = getattr(module, "trainable_variables", [])
        for variable in variables:
            variable.assign(numbers(tuple(variable.shape), -1, 1))
        with tf.GradientTape() as tape:
            y = of(*tensors)
            weights = numbers(tuple(y.shape))
            loss = tf.reduce_sum(y * weights)
        wanted = [t for t in tensors if isinstance(t, tf.Variable)]
        found = tape.gradient(loss, wanted + [v.value for v in variables])
        gradients = {f"input {i}": g.numpy() for i, g in enumerate(found[: len(wanted)])}
        of_variables = [tf.convert_to_tensor(g).numpy() for g in found[len(wanted):]]
        parameters = turned([v.numpy() for v in variables]) if turned else {}
        if turned:
            gradients |= turned(of_variables)
            if layer == "lstm":  # each half has the gradient of the sum
                gradients |= {key: 2 * g for key, g in gradients.items() if key.startswith("bias_")}
        return y.numpy(), weights, parameters, gradients

    record("Keras", name, layer, options, inputs, run)


# ---- element by element ----

X = (numbers((2, 7)) * 2,)
ACTIVATIONS = [
    ("sigmoid", {}, torch.sigmoid, keras.activations.sigmoid),
    ("tanh", {}, torch.tanh, keras.activations.tanh),
    ("gelu", {}, torch.nn.functional.gelu, lambda x: keras.activations.gelu(x, approximate=False)),
    ("leaky_relu", {"slope": 0.25}, lambda x: torch.nn.functional.leaky_relu(x, 0.25),
     lambda x: keras.activations.leaky_relu(x, negative_slope=0.25)),
    ("elu", {"alpha": 0.75}, lambda x: torch.nn.functional.elu(x, 0.75),
     lambda x: keras.activations.elu(x, alpha=0.75)),
    ("selu", {}, torch.nn.functional.selu, keras.activations.selu),
    ("silu", {}, torch.nn.functional.silu, keras.activations.silu),
    ("hard_sigmoid", {}, torch.nn.functional.hardsigmoid, keras.activations.hard_sigmoid),
    ("hard_swish", {}, torch.nn.functional.hardswish, keras.activations.hard_swish),
    ("softplus", {}, torch.nn.functional.softplus, keras.activations.softplus),
    ("mish", {}, torch.nn.functional.mish, keras.activations.mish),
    ("relu6", {}, torch.nn.functional.relu6, keras.activations.relu6),
    ("softmax", {}, lambda x: torch.softmax(x, -1), keras.activations.softmax),
    ("log_softmax", {}, lambda x: torch.log_softmax(x, -1), keras.activations.log_softmax),
]
for kind, told, of_torch, of_keras in ACTIVATIONS:
    by_torch(kind, kind, told, X, of_torch)
    by_keras(kind, kind, told, X, None, function=of_keras)

TWO = (numbers((2, 3, 2)), numbers((2, 3, 2)) + 1 / 128)
for kind, of_torch, of_keras in [
    ("subtract", torch.sub, keras.ops.subtract),
    ("multiply", torch.mul, keras.ops.multiply),
    ("maximum", torch.maximum, keras.ops.maximum),
    ("minimum", torch.minimum, keras.ops.minimum),
]:
    by_torch(kind, kind, {}, TWO, of_torch)
    by_keras(kind, kind, {}, TWO, None, function=of_keras)

# ---- along sequences ----

SEQUENCE = (numbers((2, 6, 4)),)


def features_first(module):
    return lambda x: module(x.transpose(1, 2)).transpose(1, 2)


def of_conv1d(arrays):
    return {"weight": arrays[0].transpose(2, 1, 0)} | ({"bias": arrays[1]} if len(arrays) > 1 else {})


def of_conv_transpose1d(arrays):  # Keras: [kernel, outputs, inputs]
    return {"weight": arrays[0].transpose(2, 1, 0), "bias": arrays[1]}


for told in [{"kernel": 3}, {"kernel": 2, "stride": 2, "padding": 1, "groups": 2, "bias": False}]:
    own = torch.nn.Conv1d(4, 6, told["kernel"], told.get("stride", 1), told.get("padding", 0),
                          groups=told.get("groups", 1), bias=told.get("bias", True))
    by_torch("conv1d", "conv1d", {"out_channels": 6} | told, SEQUENCE, features_first(own), own)
by_keras("conv1d", "conv1d", {"out_channels": 6, "kernel": 3, "stride": 2, "groups": 2}, SEQUENCE,
         keras.layers.Conv1D(6, 3, strides=2, groups=2), of_conv1d)
for told in [{"kernel": 3}, {"kernel": 3, "stride": 2, "padding": 1, "output_padding": 1}]:
    own = torch.nn.ConvTranspose1d(4, 2, told["kernel"], told.get("stride", 1),
                                   told.get("padding", 0), told.get("output_padding", 0))
    by_torch("conv_transpose1d", "conv_transpose1d", {"out_channels": 2} | told, SEQUENCE,
             features_first(own), own)
by_keras("conv_transpose1d", "conv_transpose1d", {"out_channels": 2, "kernel": 3, "stride": 2},
         SEQUENCE, keras.layers.Conv1DTranspose(2, 3, strides=2), of_conv_transpose1d)
by_torch("max_pool1d", "max_pool1d", {"kernel": 3, "stride": 2, "padding": 1}, SEQUENCE,
         features_first(torch.nn.MaxPool1d(3, 2, 1)))
by_keras("max_pool1d", "max_pool1d", {"kernel": 3, "stride": 2}, SEQUENCE,
         keras.layers.MaxPooling1D(3, 2))
by_torch("avg_pool1d", "avg_pool1d", {"kernel": 3, "stride": 2, "padding": 1}, SEQUENCE,
         features_first(torch.nn.AvgPool1d(3, 2, 1)))
by_keras("avg_pool1d", "avg_pool1d", {"kernel": 2}, SEQUENCE, keras.layers.AveragePooling1D(2))
by_keras("global_avg_pool1d", "global_avg_pool1d", {}, SEQUENCE,
         keras.layers.GlobalAveragePooling1D())
by_keras("global_max_pool1d", "global_max_pool1d", {}, SEQUENCE, keras.layers.GlobalMaxPooling1D())

# ---- embedding ----

TOKENS = (np.array([[1, 4, 4, 0], [2, 1, 0, 3]]),)
OWN = torch.nn.Embedding(5, 3)
by_torch("embedding", "embedding", {"vocabulary": 5, "features": 3}, TOKENS, OWN, OWN)
by_keras("embedding", "embedding", {"vocabulary": 5, "features": 3}, TOKENS,
         keras.layers.Embedding(5, 3), lambda a: {"weight": a[0]})

# ---- recurrent ----

COUNTS = np.array([[6], [2], [0]])
HOLES = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 1]])
PREFIX = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]])
STEPS = numbers((3, 6, 2))


def last_states(hidden, directions):
    """Of h_n [layers * directions, batch, units]: the last layer's, side by side."""
    return torch.cat(list(hidden[-directions:]), 1)


def of_torch_cell(kind, told):
    make = torch.nn.LSTM if kind == "lstm" else torch.nn.GRU
    own = make(2, told["units"], told.get("layers", 1), batch_first=True,
               bidirectional=told.get("bidirectional", False))
    directions = 2 if told.get("bidirectional", False) else 1

    def run(x, counts=None):
        if counts is None:
            y, state = own(x)
        else:
            # PyTorch takes no sample without a step.
            packed = rnn.pack_padded_sequence(x, counts[:, 0].clamp(min=1), True, False)
            packed, state = own(packed)
            y, _ = rnn.pad_packed_sequence(packed, True, total_length=x.size(1))
        state = state[0] if kind == "lstm" else state
        return y if told.get("sequences", False) else last_states(state, directions)

    return own, run


for kind in ["lstm", "gru"]:
    for told in [{"units": 3}, {"units": 2, "layers": 2, "bidirectional": True},
                 {"units": 2, "layers": 2, "sequences": True}]:
        own, run = of_torch_cell(kind, told)
        by_torch(kind, kind, told, (STEPS,), run, own)
        own, run = of_torch_cell(kind, told)
        by_torch(f"{kind} of counts", kind, told, (STEPS, np.maximum(COUNTS, 1)), run, own)

GATES = {"lstm": [0, 1, 2, 3], "gru": [1, 0, 2]}  # Keras's GRU has update, reset, new


def of_keras_cell(kind, arrays, end):
    def ordered(a):
        parts = np.split(a, len(GATES[kind]), axis=-1)
        return np.concatenate([parts[i] for i in GATES[kind]], axis=-1)

    kernel, recurrent, bias = (ordered(a) for a in arrays)
    biases = [bias / 2, bias / 2] if kind == "lstm" else [bias[0], bias[1]]  # Keras's LSTM has their sum
    return {f"weight_ih_l0{end}": kernel.T, f"weight_hh_l0{end}": recurrent.T,
            f"bias_ih_l0{end}": biases[0], f"bias_hh_l0{end}": biases[1]}


def turned_cell(kind, two):
    def turned(arrays):
        one = of_keras_cell(kind, arrays[:3], "")
        return one | of_keras_cell(kind, arrays[3:], "_reverse") if two else one

    return turned


def keras_cell(name, kind, told, mask=None):
    make = keras.layers.LSTM if kind == "lstm" else keras.layers.GRU
    own = make(told["units"], return_sequences=told.get("sequences", False))
    two = told.get("bidirectional", False)
    if two:
        own = keras.layers.Bidirectional(own)

    def run(x, given=None):
        if given is None:
            return own(x)
        y = own(x, mask=tf.cast(given, tf.bool))
        return y * tf.cast(given, y.dtype)[:, :, None] if told.get("sequences", False) else y

    by_keras(name, kind, told, (STEPS,) if mask is None else (STEPS, mask), own,
             turned_cell(kind, two), run)


for kind in ["lstm", "gru"]:
    keras_cell(kind, kind, {"units": 3})
    keras_cell(kind, kind, {"units": 2, "bidirectional": True, "sequences": True})
    keras_cell(f"{kind} of a mask", kind, {"units": 3}, PREFIX)
    keras_cell(f"{kind} of a mask with holes", kind, {"units": 3}, HOLES)
    keras_cell(f"{kind} of a mask both ways", kind, {"units": 2, "bidirectional": True}, PREFIX)
    keras_cell(f"{kind} of a mask, all steps", kind, {"units": 2, "sequences": True}, HOLES)

# ---- images and shapes ----

IMAGES = (numbers((2, 4, 3, 4)),)
for told in [{"kernel": [2, 3]}, {"kernel": [3, 3], "stride": 2, "padding": [1, 0],
                                  "output_padding": 1, "bias": False}]:
    own = torch.nn.ConvTranspose2d(4, 2, told["kernel"], told.get("stride", 1),
                                   told.get("padding", 0), told.get("output_padding", 0),
                                   bias=told.get("bias", True))
    by_torch("conv_transpose2d", "conv_transpose2d", {"out_channels": 2} | told, IMAGES, own, own)


def channels_last(module):
    return lambda x: tf.transpose(module(tf.transpose(x, [0, 2, 3, 1])), [0, 3, 1, 2])


OWN = keras.layers.Conv2DTranspose(2, (3, 2), strides=2)
by_keras("conv_transpose2d", "conv_transpose2d", {"out_channels": 2, "kernel": [3, 2], "stride": 2},
         IMAGES, OWN, lambda a: {"weight": a[0].transpose(3, 2, 0, 1), "bias": a[1]},
         channels_last(OWN))
OWN = torch.nn.GroupNorm(2, 4)
by_torch("group_norm", "group_norm", {"groups": 2}, IMAGES, OWN, OWN)
OWN = keras.layers.GroupNormalization(2, epsilon=1e-3)
by_keras("group_norm", "group_norm", {"groups": 2, "epsilon": 1e-3}, IMAGES, OWN,
         lambda a: {"weight": a[0], "bias": a[1]}, channels_last(OWN))
by_torch("reshape", "reshape", {"shape": [6, -1]}, IMAGES, lambda x: x.reshape(2, 6, -1))
by_keras("reshape", "reshape", {"shape": [6, -1]}, IMAGES, keras.layers.Reshape((6, -1)))
by_torch("permute", "permute", {"order": [1, 2, 0]}, IMAGES, lambda x: x.permute(0, 2, 3, 1))
by_keras("permute", "permute", {"order": [2, 0, 1]}, IMAGES, keras.layers.Permute((3, 1, 2)))

by_torch("slice", "slice", {"begin": 1, "end": 3}, IMAGES, lambda x: x[..., 1:3])
by_keras("slice", "slice", {"begin": 0, "end": 2}, IMAGES, None, function=lambda x: x[..., :2])


def write():
    lines = ",\n".join(json.dumps(case) for case in CASES)
    FILE.write_text(f"[\n{lines}\n]\n")


write()
