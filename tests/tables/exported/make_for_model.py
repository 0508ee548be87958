"""Writes the exported networks that tests of Model and of the command line train.

    python tests/tables/exported/make_for_model.py      # torch 2.13

pictures.pt2, pictures.eval.pt2: images [1, 12, 12] to two classes, with batch norm and dropout.
in_place.pt2: changes its input.
both.pt2: the network of tests/support/two_outputs.h, with two inputs and a dictionary of outputs.
tests/unit/train/test_exported_model.cpp and tests/jobs/command_line/test_exported.cpp use them.
"""

import pathlib
import sys

import torch
from torch import nn

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[2] / "python"))

from tutti.export import export  # noqa: E402


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(4 * 36, 2)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(self.drop(torch.flatten(x, 1)))


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.place_in, self.both = nn.Linear(4, 8), nn.Linear(10, 6)
        self.kind, self.height = nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, place, size):
        x = torch.relu(self.place_in(place))
        x = torch.relu(self.both(torch.cat((x, size), 1)))
        return {"kind": self.kind(x), "height": self.height(x)}


class InPlace(nn.Module):
    """Changes what it is given, through a view; and makes a tensor on a device, and asks for a type."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x.view(-1, 2, 3).mul_(0.5)
        return self.head(x + torch.arange(6.0, device=x.device)).float()


torch.manual_seed(51)
print(export(Pictures(), torch.randn(4, 1, 12, 12), FOLDER / "pictures.pt2"))
print(export(Both(), (torch.randn(4, 4), torch.randn(4, 2)), FOLDER / "both.pt2", eval_out=False))
print(export(InPlace(), torch.randn(4, 6), FOLDER / "in_place.pt2", eval_out=False))
