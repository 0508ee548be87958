"""A PyTorch state dict becomes a file that tutti loads.

pytorch_to_tutti.py FOLDER   writes weights.safetensors, and inputs.npy and outputs.npy of the same
                             network, to compare with
"""

import pathlib
import sys

import numpy
import torch
from resnet18 import ResNet18
from safetensors.torch import save_file

folder = pathlib.Path(sys.argv[1])
torch.manual_seed(1)
model = ResNet18()

# A training of your own stands here; two steps, so that batch norms have statistics.
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 3, 64, 64)), torch.arange(8))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

save_file(model.state_dict(), folder / "weights.safetensors")

model.eval()
inputs = torch.randn(5, 3, 64, 64)
with torch.no_grad():
    numpy.save(folder / "outputs.npy", model(inputs).numpy())
numpy.save(folder / "inputs.npy", inputs.numpy())
