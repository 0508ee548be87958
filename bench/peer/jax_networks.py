"""The networks of networks.py as JAX computes them fastest on CPU cores: images with channels last, attention by einsum,
sequences by lax.scan.

Each takes its parameters in the order of our graph and a batch, and gives outputs, and the statistics of its batch norms.
"""
import functools

import jax
from jax import lax
from jax import numpy as jnp


def plain_conv(x, w, padding):
    return lax.conv_general_dilated(x, w, (1, 1), [padding, padding], dimension_numbers=("NHWC", "HWIO", "NHWC"))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def conv(x, w, padding):
    """Its gradient by x is a plain convolution, for which XLA has a fast kernel; of its own it does not find that."""
    return plain_conv(x, w, padding)


def conv_backward(padding, kept, dy):
    x, w = kept
    beyond = tuple(len(w) - 1 - pixels for pixels in padding)
    dx = plain_conv(dy, w[::-1, ::-1].transpose(0, 1, 3, 2), beyond)
    return dx, jax.vjp(lambda w: plain_conv(x, w, padding), w)[1](dy)[0]


conv.defvjp(lambda x, w, padding: (plain_conv(x, w, padding), (x, w)), conv_backward)


def conv_of(x, w, stride=1):
    """Of an odd kernel, padded by half of it. With a stride of 2 a convolution of squares of two by two pixels: XLA has no
    fast gradient of one with strides."""
    kernel, padding = len(w), len(w) // 2
    if kernel == 1:
        return x[:, ::stride, ::stride] @ w[0, 0]
    if stride == 1:
        return conv(x, w, (padding, padding))
    n, height, width, channels = x.shape
    x = x.reshape(n, height // 2, 2, width // 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(n, height // 2, width // 2, 4 * channels)
    blocks = (kernel + 1) // 2
    w = jnp.pad(w, ((1, 0), (1, 0), (0, 0), (0, 0))).reshape(blocks, 2, blocks, 2, channels, -1)
    w = w.transpose(0, 2, 1, 3, 4, 5).reshape(blocks, blocks, 4 * channels, -1)
    before = (padding + 1) // 2
    return conv(x, w, (before, blocks - 1 - before))


def pool(x):
    """Maximum of two by two; four slices are faster than lax.reduce_window, whose gradient is slow."""
    x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
    return jnp.maximum(jnp.maximum(x[:, ::2, ::2], x[:, 1::2, ::2]), jnp.maximum(x[:, ::2, 1::2], x[:, 1::2, 1::2]))


def pool_of_three(x):
    """Maximum of three by three, at each second pixel."""
    height, width = x.shape[1:3]
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    return functools.reduce(jnp.maximum, [x[:, i : i + height : 2, j : j + width : 2] for i in range(3) for j in range(3)])


class Layers:
    """Takes parameters in turn."""

    def __init__(self, parameters):
        self.next = iter(parameters).__next__
        self.statistics = []

    def dense(self, x):
        return x @ self.next().T + self.next()

    def conv_norm(self, x, stride=1):
        x = conv_of(x, self.next(), stride)
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        self.statistics += [mean, variance * (x.size // len(mean)) / (x.size // len(mean) - 1)]
        factor = self.next() * lax.rsqrt(variance + 1e-5)
        return x * factor + (self.next() - mean * factor)

    def layer_norm(self, x, epsilon):
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(variance + epsilon) * self.next() + self.next()

    def attention(self, x, heads, causal):
        parts = self.dense(x).reshape(*x.shape[:2], 3, heads, -1)
        q, k, v = (parts[:, :, i] for i in range(3))
        scores = jnp.einsum("bqhf,bkhf->bhqk", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        return self.dense(jnp.einsum("bhqk,bkhf->bqhf", jax.nn.softmax(scores, -1), v).reshape(x.shape))


def resnet(layers_of, blocks):
    def outputs(layers, x):
        x = pool_of_three(jax.nn.relu(layers.conv_norm(x, 2)))
        for part, count in enumerate(blocks):
            for block in range(count):
                other_shape = block == 0 and (part > 0 or layers_of is bottleneck)
                x = layers_of(layers, x, 2 if part > 0 and block == 0 else 1, other_shape)
        return layers.dense(x.mean((1, 2)))

    return outputs


def basic(layers, x, stride, other_shape):
    y = layers.conv_norm(jax.nn.relu(layers.conv_norm(x, stride)))
    return jax.nn.relu(y + (layers.conv_norm(x, stride) if other_shape else x))


def bottleneck(layers, x, stride, other_shape):
    y = jax.nn.relu(layers.conv_norm(x))
    y = layers.conv_norm(jax.nn.relu(layers.conv_norm(y, stride)))
    return jax.nn.relu(y + (layers.conv_norm(x, stride) if other_shape else x))


def vit(layers, x, patch=8, blocks=6, heads=4):
    n, height, width, channels = x.shape
    x = x.reshape(n, height // patch, patch, width // patch, patch, channels).transpose(0, 1, 3, 2, 4, 5)
    token, weight = layers.next(), layers.next()
    x = x.reshape(n, -1, patch * patch * channels) @ weight.reshape(-1, weight.shape[-1]) + layers.next()
    x = jnp.concatenate([jnp.broadcast_to(token, (n, 1, x.shape[-1])), x], 1) + layers.next()
    for _ in range(blocks):
        x = x + layers.attention(layers.layer_norm(x, 1e-6), heads, False)
        x = x + layers.dense(jax.nn.gelu(layers.dense(layers.layer_norm(x, 1e-6)), approximate=False))
    return layers.dense(layers.layer_norm(x, 1e-6)[:, 0])


def gpt(layers, x, blocks, heads):
    tokens = layers.next()
    x = tokens[x] + layers.next()
    for _ in range(blocks):
        x = x + layers.attention(layers.layer_norm(x, 1e-5), heads, True)
        x = x + layers.dense(jax.nn.gelu(layers.dense(layers.layer_norm(x, 1e-5)), approximate=True))
    return layers.layer_norm(x, 1e-5) @ tokens.T


def lstm(layers, x, count=2):
    x = x.swapaxes(0, 1)
    for _ in range(count):
        inner, outer, *biases = (layers.next() for _ in range(4))
        gates = x @ inner.T + sum(biases)

        def cell(state, gate, outer=outer):
            hidden, kept = state
            take, forget, new, give = jnp.split(gate + hidden @ outer.T, 4, -1)
            kept = jax.nn.sigmoid(forget) * kept + jax.nn.sigmoid(take) * jnp.tanh(new)
            hidden = jax.nn.sigmoid(give) * jnp.tanh(kept)
            return (hidden, kept), hidden

        zeros = jnp.zeros((x.shape[1], outer.shape[1]), x.dtype)
        x = lax.scan(cell, (zeros, zeros), gates)[1]
    return layers.dense(x[-1])


def unet(layers, x, levels=3):
    def two_convolutions(x):
        return jax.nn.relu(layers.conv_norm(jax.nn.relu(layers.conv_norm(x))))

    passed = []
    for _ in range(levels):
        passed.append(two_convolutions(x))
        x = pool(passed[-1])
    x = two_convolutions(x)
    while passed:
        weight = layers.next()  # height, width, out, in
        x = jnp.einsum("nhwi,aboi->nhawbo", x, weight)
        n, height, _, width, _, channels = x.shape
        x = x.reshape(n, 2 * height, 2 * width, channels) + layers.next()
        x = two_convolutions(jnp.concatenate([passed.pop(), x], -1))
    return conv_of(x, layers.next()) + layers.next()


def dlrm(layers, x, rows, counts=13):
    """rows: what was looked up, [batch, words, features]."""

    def dense(x, count):
        for layer in range(count):
            x = layers.dense(x)
            x = x if layer == count - 1 else jax.nn.relu(x)
        return x

    first = dense(jnp.log1p(x[:, :counts].astype(jnp.float32)), 4)
    vectors = jnp.concatenate([first[:, None], rows], 1)
    lower = jnp.tril_indices(vectors.shape[1], -1)
    products = jnp.einsum("bvf,bwf->bvw", vectors, vectors)[:, lower[0], lower[1]]
    return dense(jnp.concatenate([first, products], 1), 3)


OUTPUTS = {
    "vit": vit,
    "gpt4x128": functools.partial(gpt, blocks=4, heads=4),
    "gpt6x384": functools.partial(gpt, blocks=6, heads=6),
    "lstm": lstm,
    "unet": unet,
}
for side in (64, 224):
    OUTPUTS[f"resnet18@{side}"] = resnet(basic, (2, 2, 2, 2))
    OUTPUTS[f"resnet50@{side}"] = resnet(bottleneck, (3, 4, 6, 3))


def outputs_of(name, parameters, x):
    layers = Layers(parameters)
    return OUTPUTS[name](layers, x), layers.statistics
