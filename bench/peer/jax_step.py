"""JAX's side of `tutti_bench compare`: what a training step costs there, by one process with the cores it is given.

  jax_step.py --data DIR --rank R --ranks N --cores 0,1 --devices D

With two or more devices of the CPU, which share the cores, it is data parallel: each has its part of the batch and a
copy of the state, and XLA adds the gradients.
Jitted with its state donated; Adam by hand, as optax computes it; the first weights and the batches are PyTorch's.
Commands and answers are those of talk.py; the first of a model compiles it.
"""
import argparse
import functools
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

import dlrm  # noqa: E402
import jax_networks  # noqa: E402
import networks  # noqa: E402
import talk  # noqa: E402

# Steps of a call, by lax.scan: where a step is shorter than the way from Python into XLA and back.
SCANNED = {"mlp": 32}
FLATTENED = (64, 3, 3)  # channels, height, width of what the cnn's first dense layer gets


def weights_of(name):
    """As JAX computes with them: of convolutions HWIO; of doodles' networks (weight, bias) of each layer, inputs by outputs."""
    network = networks.NETWORKS[name]
    parameters = [p.detach().numpy() for p in network.in_order(networks.make_model(name))]
    if network.samples is not None:
        return [jnp.array(p.transpose(2, 3, 1, 0) if p.ndim == 4 else p) for p in parameters]
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
            x = jax_networks.pool(jax.nn.relu(jax_networks.conv_of(x, w) + b))
        else:
            x = jax.nn.relu(x.reshape(len(x), -1) @ w + b)
    w, b = layers[-1]
    return x @ w + b


def crossentropy(z, y):
    return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, y[..., None], -1)[..., 0])


def doodles_loss(layers, x, y):
    return crossentropy(outputs_of(layers, x), y), []


def network_loss(name, parameters, x, y):
    """And the statistics of its batch norms."""
    z, statistics = jax_networks.outputs_of(name, parameters, x)
    return crossentropy(z, y), statistics


def step(loss_of, state, batch):
    layers, means, squares, steps, running = state
    (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(layers, *batch)
    running = jax.tree.map(lambda kept, new: 0.9 * kept + 0.1 * new, running, statistics)
    steps = steps + 1
    mean_bias, square_bias = 1 - 0.9**steps, jnp.sqrt(1 - 0.999**steps)
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
    squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, gradients)
    layers = jax.tree.map(lambda p, m, v: p - 1e-3 / mean_bias * m / (jnp.sqrt(v) / square_bias + 1e-8),
                          layers, means, squares)
    return (layers, means, squares, steps, running), loss


def adagrad(p, g, total):
    total = total + g * g
    return p - 0.01 * g / (jnp.sqrt(total) + 1e-10), total


def sparse_step(state, batch):
    """Of dlrm: the rows that are looked up, each once, and nothing of the others."""
    parameters, totals, table, row_totals = state
    x, y = batch
    numbers = x[:, dlrm.COUNTS:]

    def loss_of(parameters, rows):
        z = jax_networks.dlrm(jax_networks.Layers(parameters), x, rows)
        return jnp.mean(jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z))))

    loss, (gradients, of_rows) = jax.value_and_grad(loss_of, (0, 1))(parameters, table[numbers])
    updated = [adagrad(*three) for three in zip(parameters, gradients, totals)]
    keys, places = jnp.unique(numbers, return_inverse=True, size=numbers.size, fill_value=len(table))
    gradient = jax.ops.segment_sum(of_rows.reshape(-1, dlrm.FEATURES), places.reshape(-1), numbers.size)
    rows, sums = adagrad(table[keys], gradient, row_totals[keys])
    table, row_totals = (whole.at[keys].set(part, mode="drop", unique_indices=False) for whole, part in
                         ((table, rows), (row_totals, sums)))
    return ([p for p, _ in updated], [total for _, total in updated], table, row_totals), loss


def step_of(name):
    network = networks.NETWORKS[name]
    if network.sparse:
        return sparse_step
    loss_of = doodles_loss if network.samples is None else functools.partial(network_loss, name)
    return functools.partial(step, loss_of)


def first_state(name, x):
    layers = weights_of(name)
    zeros = jax.tree.map(jnp.zeros_like, layers)
    network = networks.NETWORKS[name]
    if network.sparse:
        table = jnp.full((dlrm.WORDS * dlrm.ROWS_OF_A_WORD, dlrm.FEATURES), 0.05, jnp.float32)
        return layers, zeros, table, jnp.zeros_like(table)
    running = []
    if network.samples is not None:
        shapes = jax.eval_shape(functools.partial(jax_networks.outputs_of, name), layers, x)[1]
        running = [jnp.full(shape.shape, float(i % 2)) for i, shape in enumerate(shapes)]  # mean, variance, mean, ...
    return layers, zeros, jax.tree.map(jnp.zeros_like, layers), jnp.float32(0), running


def as_here(x, y):
    """Channels last, and whole numbers of 32 bits."""
    arrays = [(x.permute(0, 2, 3, 1) if x.dim() == 4 else x).numpy(), y.numpy()]
    return tuple(a.astype(numpy.int32) if a.dtype == numpy.int64 else a for a in arrays)


class Trainer:
    """One model with its optimizer, kept between commands."""

    def __init__(self, name, batch):
        self.scanned = SCANNED.get(name, 1)
        batches = [as_here(*pair) for pair in
                   networks.batches(name, arguments.data, batch, arguments.rank, arguments.ranks)]
        state = first_state(name, batches[0][0])
        if self.scanned > 1:  # one call takes as many as there are, in turn
            batches = [batches[number % len(batches)] for number in range(self.scanned)]
            batches = [tuple(numpy.stack(parts) for parts in zip(*batches))]
        mesh = Mesh(numpy.array(jax.devices()), ("data",))
        parts = NamedSharding(mesh, PartitionSpec(*[None] * (self.scanned > 1), "data"))
        self.batches = [jax.device_put(batch, parts) for batch in batches]
        self.state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
        step = step_of(name)
        call = step if self.scanned == 1 else (lambda state, batches: lax.scan(step, state, batches))
        self.call = jax.jit(call, donate_argnums=0)
        self.losses, self.number = None, 0

    def train(self, steps):
        calls = max(1, round(steps / self.scanned))
        call, batches, state = self.call, self.batches, self.state
        for number in range(self.number, self.number + calls):
            state, self.losses = call(state, batches[number % len(batches)])
        self.state = jax.block_until_ready(state)
        self.number += calls
        return calls * self.scanned

    def loss(self):
        return float(numpy.ravel(self.losses)[-1])


talk.answer_commands(Trainer, {"jax": jax.__version__})
