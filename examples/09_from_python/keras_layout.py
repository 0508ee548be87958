"""Weights in Keras's layout, as model.get_weights() gives them, to tutti's and back. NumPy alone.

keras_layout.py to FOLDER                    writes weights.safetensors of an mlp, inputs.npy
keras_layout.py check FOLDER SAVED OUTPUTS   reads what tutti saved, compares both with Keras's formula

Keras has kernels of dense layers as [in, out] and of convolutions as [height, width, in, out]; here
they are [out, in] and [out, in, height, width]. Biases and batch norms are the same but for names:
gamma and beta are weight and bias, moving_mean and moving_variance running_mean and running_var.
"""

import pathlib
import sys

import numpy
from safetensors.numpy import load_file, save_file

LAYERS = ("linear_1", "linear_2")  # tutti's names, in the order of Keras's layers


def to_tutti(kernel):
    axes = {2: (1, 0), 4: (3, 2, 0, 1)}[kernel.ndim]
    return numpy.ascontiguousarray(kernel.transpose(axes))


def to_keras(weight):
    axes = {2: (1, 0), 4: (2, 3, 1, 0)}[weight.ndim]
    return numpy.ascontiguousarray(weight.transpose(axes))


def keras_weights():
    """What model.get_weights() gives: kernel and bias of each layer."""
    random = numpy.random.default_rng(1)
    sizes = [(784, 128), (128, 10)]
    shapes = [shape for inputs, outputs in sizes for shape in ((inputs, outputs), (outputs,))]
    return [random.normal(0, 0.1, shape).astype(numpy.float32) for shape in shapes]


def keras_outputs(weights, inputs):
    """Dense(128, activation="relu"), Dense(10) on flattened images, in double."""
    kernel1, bias1, kernel2, bias2 = (array.astype(numpy.float64) for array in weights)
    hidden = numpy.maximum(inputs.reshape(len(inputs), -1) @ kernel1 + bias1, 0)
    return hidden @ kernel2 + bias2


def write(folder):
    weights = keras_weights()
    tensors = {}
    for name, kernel, bias in zip(LAYERS, weights[::2], weights[1::2]):
        tensors[f"{name}.weight"] = to_tutti(kernel)
        tensors[f"{name}.bias"] = bias
    save_file(tensors, folder / "weights.safetensors")
    inputs = numpy.random.default_rng(2).random((5, 1, 28, 28), numpy.float32)
    numpy.save(folder / "inputs.npy", inputs)


def check(folder, saved, outputs):
    tensors, weights = load_file(saved), keras_weights()
    back = [
        array
        for name in LAYERS
        for array in (to_keras(tensors[f"{name}.weight"]), tensors[f"{name}.bias"])
    ]
    for one, other in zip(weights, back, strict=True):
        assert one.shape == other.shape and one.tobytes() == other.tobytes()
    expected = keras_outputs(weights, numpy.load(folder / "inputs.npy"))
    difference = numpy.abs(numpy.load(outputs) - expected).max() / numpy.abs(expected).max()
    assert difference <= 1e-5, difference  # float32 sums of 784 products
    print("the same weights, and outputs agree")


# A convolution moves all of its elements, and comes back.
kernel = numpy.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
assert to_tutti(kernel)[4, 3, 1, 2] == kernel[1, 2, 3, 4]
assert (to_keras(to_tutti(kernel)) == kernel).all()

folder = pathlib.Path(sys.argv[2])
write(folder) if sys.argv[1] == "to" else check(folder, sys.argv[3], sys.argv[4])
