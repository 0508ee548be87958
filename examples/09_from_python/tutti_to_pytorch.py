"""A file that tutti saved becomes a PyTorch state dict; outputs of both are compared.

tutti_to_pytorch.py WEIGHTS.safetensors INPUTS.npy OUTPUTS.npy [SAME.safetensors]

OUTPUTS are tutti's for INPUTS. Every tensor of SAME must have the bytes of the one in WEIGHTS.
"""

import sys

import numpy
import torch
from resnet18 import ResNet18
from safetensors.torch import load_file

# Sums of LibTorch's kernels depend on shapes and threads in their last bits. ResNet-18 adds 18 layers
# of them; float32 has 1.2e-7.
TOLERANCE = 1e-5  # of the largest output


def same_bytes(one, other):
    assert one.keys() == other.keys(), set(one) ^ set(other)
    for name in one:
        a, b = one[name], other[name]
        assert a.dtype == b.dtype and a.shape == b.shape, name
        assert a.numpy().tobytes() == b.numpy().tobytes(), name
    return len(one)


weights = load_file(sys.argv[1])
model = ResNet18(classes=weights["fc.bias"].numel())
model.load_state_dict(weights, strict=True)  # all names, none missing, none left over
model.eval()
with torch.no_grad():
    ours = model(torch.from_numpy(numpy.load(sys.argv[2]))).numpy()
theirs = numpy.load(sys.argv[3])
assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, (ours.shape, theirs.shape)
difference = float(numpy.abs(ours - theirs).max() / numpy.abs(ours).max())
assert difference <= TOLERANCE, difference
print("outputs agree")

if len(sys.argv) > 4:
    print(same_bytes(weights, load_file(sys.argv[4])), "tensors have the same bytes")
