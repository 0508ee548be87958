"""What `tutti_bench compare` trains: of each model the network, its samples, its loss and its optimizer, as PyTorch's.

  networks.py MODEL BATCH FILE

writes what ours reads (bench/network_step.cpp): the first values of all parameters, in the order of our graph, and the
global batches. Of a model all peers, and ours, have the same of both.
"""
import dataclasses
import sys
from typing import Callable

import torch
from torch import nn

import dlrm
import doodles
import models
import talk

BATCHES = 8  # in memory, taken in turn; of doodles talk.PRELOADED
PATTERNS, GRID = 10, 8  # kinds of photos; each is a pattern of this many squares a side, and noise
POINTS = 100  # of a sequence
VOCABULARY = 65
MASKS = 4  # kinds of pixels


class Bottleneck(models.Residual):
    """torchvision's, which halves images in its 3x3 convolution."""

    def __init__(self, inputs, channels, stride):
        nn.Module.__init__(self)
        widths = (inputs, channels, channels, 4 * channels)
        for i, (kernel, step) in enumerate(((1, 1), (3, stride), (1, 1))):
            self.add_module(f"conv{i + 1}", nn.Conv2d(widths[i], widths[i + 1], kernel, step, kernel // 2, bias=False))
            self.add_module(f"bn{i + 1}", nn.BatchNorm2d(widths[i + 1]))
        self.downsample = nn.Sequential()
        if inputs != 4 * channels:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, 4 * channels, 1, stride, bias=False),
                                            nn.BatchNorm2d(4 * channels))

    def forward(self, x):
        y = nn.functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn3(self.conv3(nn.functional.relu(self.bn2(self.conv2(y)), inplace=True)))
        return nn.functional.relu(y.add_(self.downsample(x)), inplace=True)


def resnet50(classes=1000):
    layers, inputs = [], 64
    for width, stride, blocks in ((64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                         nn.MaxPool2d(3, 2, 1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Encoder(nn.Module):
    def __init__(self, hidden, heads, mlp):
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(hidden, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(hidden, mlp), nn.GELU(), nn.Linear(mlp, hidden))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Vit(nn.Module):
    """torchvision's VisionTransformer, for photos of 64 x 64."""

    def __init__(self, side=64, patch=8, layers=6, heads=4, hidden=256, mlp=1024, classes=1000):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, hidden, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.pos_embedding = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, hidden))
        self.layers = nn.Sequential(*(Encoder(hidden, heads, mlp) for _ in range(layers)))
        self.ln = nn.LayerNorm(hidden, eps=1e-6)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embedding
        return self.head(self.ln(self.layers(x))[:, 0])


class Recurrent(nn.Module):
    def __init__(self, units=256, layers=2):
        super().__init__()
        self.cell = nn.LSTM(3, units, layers, batch_first=True)
        self.head = nn.Linear(units, PATTERNS)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


def two_convolutions(inputs, channels):
    return [layer for width in (inputs, channels)
            for layer in (nn.Conv2d(width, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())]


class UNet(nn.Module):
    """tutti::models::unet."""

    def __init__(self, channels=32, levels=3, classes=MASKS):
        super().__init__()
        widths = [channels << level for level in range(levels + 1)]
        self.down = nn.ModuleList(nn.Sequential(*two_convolutions(inputs, width))
                                  for inputs, width in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in reversed(widths[:-1]))
        self.joined = nn.ModuleList(nn.Sequential(*two_convolutions(2 * width, width)) for width in reversed(widths[:-1]))
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x):
        passed = []
        for layers in self.down[:-1]:
            passed.append(layers(x))
            x = nn.functional.max_pool2d(passed[-1], 2)
        x = self.down[-1](x)
        for up, joined in zip(self.up, self.joined):
            x = joined(torch.cat([passed.pop(), up(x)], dim=1))
        return self.head(x).permute(0, 2, 3, 1)

    def in_order(self):
        """Its parameters as they come in a forward pass."""
        parts = [*self.down, *(part for pair in zip(self.up, self.joined) for part in pair), self.head]
        return [parameter for part in parts for parameter in part.parameters()]


def of_vit(model):
    """Its parameters in the order of our module."""
    return [model.class_token, *model.conv_proj.parameters(), model.pos_embedding, *model.layers.parameters(),
            *model.ln.parameters(), *model.head.parameters()]


def of_gpt(model):
    """Its parameters in the order of our graph."""
    blocks = [parameter for block in model.blocks for part in
              (block.before_attention, block.attended, block.projected, block.before_mlp, block.up, block.down)
              for parameter in part.parameters()]
    return [model.tokens.weight, model.positions, *blocks, *model.norm.parameters()]


def squares(samples, kinds, side, channels):
    return nn.functional.interpolate(torch.randn(samples * kinds, channels, GRID, GRID), size=side).unflatten(
        0, (samples, kinds))


def photos(count, side):
    y = torch.randint(PATTERNS, (count,))
    return squares(1, PATTERNS, side, 3)[0][y] + torch.randn(count, 3, side, side), y


def masks(count, side=64):
    """Each pixel's kind is the largest of smooth fields; its colours are the kind's, and noise."""
    fields = nn.functional.interpolate(torch.randn(count, MASKS, GRID, GRID), size=side, mode="bilinear")
    y = fields.argmax(1)
    return torch.randn(MASKS, 3)[y].permute(0, 3, 1, 2) + torch.randn(count, 3, side, side), y


def sequences(count):
    y = torch.randint(PATTERNS, (count,))
    return torch.randn(count, POINTS, 3) + torch.randn(PATTERNS, 3)[y][:, None], y


def texts(count, length):
    """Nine of ten tokens follow from the one before."""
    following = torch.randperm(VOCABULARY)
    tokens = torch.randint(VOCABULARY, (count, length + 1))
    known = torch.rand(count, length) < 0.9
    for i in range(length):
        tokens[:, i + 1] = torch.where(known[:, i], following[tokens[:, i]], tokens[:, i + 1])
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def mean_crossentropy(y, wanted):
    """Over all positions, of which each has its logits last."""
    return nn.functional.cross_entropy(y.flatten(0, -2), wanted.flatten())


@dataclasses.dataclass(frozen=True)
class Network:
    make: Callable
    samples: Callable = None  # of so many; None: doodles
    in_order: Callable = lambda model: list(model.parameters())  # of our graph
    loss: Callable = mean_crossentropy
    images: bool = False  # channels last may be faster
    sparse: bool = False  # its table's gradient has only the rows of the step; by Adagrad
    not_compiled: str = ""  # why PyTorch does not compile its step as one graph

    def optimizer(self, model):
        if self.sparse:
            return torch.optim.Adagrad(model.parameters(), lr=0.01)
        return torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


NETWORKS = {name: Network(lambda name=name: models.make_model(name), images=name == "cnn")
            for name in ("mlp", "cnn", "wide")}
for side in (64, 224):
    NETWORKS[f"resnet18@{side}"] = Network(models.ResNet18, lambda count, side=side: photos(count, side), images=True)
    NETWORKS[f"resnet50@{side}"] = Network(resnet50, lambda count, side=side: photos(count, side), images=True)
NETWORKS |= {
    "vit": Network(Vit, lambda count: photos(count, 64), of_vit),
    "gpt4x128": Network(lambda: models.Gpt(VOCABULARY, 4, 128, 4, 64), lambda count: texts(count, 64), of_gpt),
    "gpt6x384": Network(lambda: models.Gpt(VOCABULARY, 6, 384, 6, 256), lambda count: texts(count, 256), of_gpt),
    "lstm": Network(Recurrent, sequences,
                    not_compiled="dynamo takes no nn.LSTM into a graph: compiled it would run as eager does"),
    "dlrm": Network(lambda: dlrm.Dlrm(low=0.05), dlrm.samples, lambda model: [p for p in model.parameters() if p is not model.rows.weight],
                    nn.functional.binary_cross_entropy_with_logits, sparse=True,
                    not_compiled="inductor has no sparse gradients: its table would be updated whole"),
    "unet": Network(UNet, masks, UNet.in_order, images=True),
}


def make_model(name):
    """With first weights that are the same in every program that asks for it."""
    torch.manual_seed(7)
    return NETWORKS[name].make()


def batches(name, data, batch, rank, ranks):
    """Of the global batches the part of `rank`; data: the folder of doodles."""
    network = NETWORKS[name]
    if network.samples is None:
        return doodles.batches(data, batch, rank, ranks, talk.PRELOADED)
    torch.manual_seed(1)
    x, y = network.samples(batch * ranks * BATCHES)
    parts = [slice(begin, begin + batch) for begin in range(rank * batch, len(x), batch * ranks)]
    return [(x[part].clone(), y[part].clone()) for part in parts]


def main():
    name, batch, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    pairs = batches(name, None, batch, 0, 1)
    torch.save({"parameters": [p.detach() for p in NETWORKS[name].in_order(make_model(name))],
                "inputs": [x for x, _ in pairs], "targets": [y for _, y in pairs]}, file)


if __name__ == "__main__":
    main()
