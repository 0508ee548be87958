"""JAX's side of `tutti_bench compare`: what a training step costs there, by one process with the cores it is given.

  jax_step.py --data DIR --rank R --ranks N --cores 0,1 --devices D

With two or more devices of the CPU, which share the cores, it is data parallel: each has its part of the batch and a
copy of the state, and XLA adds the gradients.
Jitted with its state donated; Adam by hand, as optax computes it; the first weights and the batches are PyTorch's.
Commands and answers are those of talk.py; the first of a model compiles it.
"""
import argparse
import os
import sys


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--cores", default="", help="pinned to these")
    parser.add_argument("--devices", type=int, default=1, help="of the CPU")
    return parser.parse_args()


arguments = parse_arguments()
if arguments.cores:  # before JAX counts them for its threads
    os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={arguments.devices}"
if arguments.devices > 1:  # sums that wait in one device take the threads that the other's need: XLA gives up after 40 s
    os.environ["NPROC"] = str(8 * arguments.devices)

try:
    import jax  # noqa: E402
except ImportError as error:
    sys.exit(f"no JAX in .venv ({error}); tools/setup --bench installs it there")
import numpy  # noqa: E402
from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import doodles  # noqa: E402
import models  # noqa: E402
import talk  # noqa: E402

# Steps of a call, by lax.scan: where a step is shorter than the way from Python into XLA and back.
SCANNED = {"mlp": 32}
FLATTENED = (64, 3, 3)  # channels, height, width of what the cnn's first dense layer gets


def plain_conv(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@jax.custom_vjp
def conv(x, w):
    """Its gradient by x is a plain convolution, for which XLA has a fast kernel; of its own it does not find that."""
    return plain_conv(x, w)


def conv_backward(kept, dy):
    x, w = kept
    dx = plain_conv(dy, w[::-1, ::-1].transpose(0, 1, 3, 2))
    return dx, jax.vjp(lambda w: plain_conv(x, w), w)[1](dy)[0]


conv.defvjp(lambda x, w: (plain_conv(x, w), (x, w)), conv_backward)


def pool(x):
    """Maximum of two by two; four slices are faster than lax.reduce_window, whose gradient is slow."""
    x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
    return jnp.maximum(jnp.maximum(x[:, ::2, ::2], x[:, 1::2, ::2]),
                       jnp.maximum(x[:, ::2, 1::2], x[:, 1::2, 1::2]))


def weights_of(name):
    """(weight, bias) of each layer, as JAX computes with them: HWIO, and inputs by outputs."""
    parameters = [p.detach().numpy() for p in models.make_model(name).parameters()]
    layers = []
    for w, b in zip(parameters[::2], parameters[1::2]):
        if w.ndim == 4:
            w = w.transpose(2, 3, 1, 0)
        elif layers and layers[-1][0].ndim == 4:  # flattened channels last here
            w = w.reshape(-1, *FLATTENED).transpose(2, 3, 1, 0).reshape(-1, len(w))
        else:
            w = w.T
        layers.append((jnp.array(w), jnp.array(b)))
    return layers


def outputs_of(layers, x):
    for w, b in layers[:-1]:
        if w.ndim == 4:
            x = pool(jax.nn.relu(conv(x, w) + b))
        else:
            x = jax.nn.relu(x.reshape(len(x), -1) @ w + b)
    w, b = layers[-1]
    return x @ w + b


def loss_of(layers, x, y):
    z = outputs_of(layers, x)
    return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, y[:, None], -1)[:, 0])


def step(state, batch):
    layers, means, squares, steps = state
    loss, gradients = jax.value_and_grad(loss_of)(layers, *batch)
    steps = steps + 1
    mean_bias, square_bias = 1 - 0.9**steps, jnp.sqrt(1 - 0.999**steps)
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
    squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, gradients)
    layers = jax.tree.map(lambda p, m, v: p - 1e-3 / mean_bias * m / (jnp.sqrt(v) / square_bias + 1e-8),
                          layers, means, squares)
    return (layers, means, squares, steps), loss


class Trainer:
    """One model with its optimizer, kept between commands."""

    def __init__(self, name, batch):
        self.scanned = SCANNED.get(name, 1)
        batches = [(x.permute(0, 2, 3, 1).numpy(), y.numpy().astype(numpy.int32)) for x, y in
                   doodles.batches(arguments.data, batch, arguments.rank, arguments.ranks, talk.PRELOADED)]
        if self.scanned > 1:  # one call takes as many as there are, in turn
            batches = [batches[number % len(batches)] for number in range(self.scanned)]
            batches = [tuple(numpy.stack(parts) for parts in zip(*batches))]
        mesh = Mesh(numpy.array(jax.devices()), ("data",))
        parts = NamedSharding(mesh, PartitionSpec(*[None] * (self.scanned > 1), "data"))
        self.batches = [jax.device_put(batch, parts) for batch in batches]
        layers = weights_of(name)
        zeros = [jax.tree.map(jnp.zeros_like, layers) for _ in range(2)]
        self.state = jax.device_put((layers, *zeros, jnp.float32(0)), NamedSharding(mesh, PartitionSpec()))
        call = step if self.scanned == 1 else (lambda state, batches: lax.scan(step, state, batches))
        self.call = jax.jit(call, donate_argnums=0)
        self.losses = None

    def train(self, steps):
        calls = max(1, round(steps / self.scanned))
        call, batches, state = self.call, self.batches, self.state
        for number in range(calls):
            state, self.losses = call(state, batches[number % len(batches)])
        self.state = jax.block_until_ready(state)
        return calls * self.scanned

    def loss(self):
        return float(numpy.ravel(self.losses)[-1])


talk.answer_commands(Trainer, {"jax": jax.__version__})
