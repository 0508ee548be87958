"""Exports a training step of JAX as StableHLO: SGD of a small network with two dense layers.

  python tests/data/jax_step/export_step.py FOLDER

writes step.mlir, the text, and step.mlirbc, the bytecode, into FOLDER, and trained.json: the loss of
each of 20 steps of JAX itself, and the parameters after them. The files beside this one are of JAX
0.10.2. tests/unit/train/test_program_trainer.cpp trains by them.
"""

import functools
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

jax.config.update("jax_traceback_in_locations_limit", 0)  # no paths of this machine in the files

ROWS, INPUTS, HIDDEN, CLASSES = 16, 4, 8, 3
STEPS = 20
LEARNING_RATE = 0.5


def numbers(shape, seed):
    """Arbitrary numbers from -0.5 to 0.5: the test makes the same."""
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    return ((((i + seed) * 37 + 11) % 101) / 101 - 0.5).astype(np.float32).reshape(shape)


def labels(seed):
    return ((np.arange(ROWS, dtype=np.int64) * 7 + seed) % CLASSES).astype(np.int32)


def loss_of(parameters, x, y):
    w0, b0, w1, b1 = parameters
    logits = jnp.tanh(x @ w0 + b0) @ w1 + b1
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
    return -chosen.mean(), (logits.argmax(axis=1) == y).sum()


@functools.partial(jax.jit, donate_argnums=(0, 1, 2, 3))
def step(w0, b0, w1, b1, x, y):
    parameters = (w0, b0, w1, b1)
    (loss, right), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters, x, y)
    updated = [p - LEARNING_RATE * g for p, g in zip(parameters, gradients)]
    return *updated, loss, right


def main(folder):
    shapes = [(INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
    parameters = [numbers(shape, seed) for seed, shape in enumerate(shapes)]
    batch = [numbers((ROWS, INPUTS), 100), labels(0)]
    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in parameters + batch]
    exported = export.export(step, platforms=["cpu"])(*types)
    (folder / "step.mlir").write_text(str(exported.mlir_module()))
    (folder / "step.mlirbc").write_bytes(exported.mlir_module_serialized)

    losses = []
    for i in range(STEPS):
        *parameters, loss, _ = step(*parameters, numbers((ROWS, INPUTS), 100 + i), labels(i))
        losses.append(float(loss))
    trained = {"losses": losses, "parameters": [np.ravel(p).tolist() for p in parameters]}
    (folder / "trained.json").write_text(json.dumps(trained))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
