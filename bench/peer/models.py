"""The models of `tutti_bench compare`, `tools/gpu_check` and bench/host_steps.py, as PyTorch's."""
import torch
from torch import nn


def make_model(name):
    """A model whose first weights are the same in every program that asks for it."""
    torch.manual_seed(7)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    if name == "wide":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048),
                             nn.ReLU(), nn.Linear(2048, 10))
    if name == "resnet18":
        return ResNet18()
    assert name == "cnn", name
    layers, channels = [], 1
    for out in (16, 32, 64):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, 10))


GPT_CONTEXT = 64


class Block(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(features), nn.LayerNorm(features)
        self.attended, self.projected = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

    def forward(self, x):
        parts = self.attended(self.before_attention(x)).chunk(3, dim=-1)
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.projected(y.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class Gpt(nn.Module):
    """That of `tutti train gpt`, with the head's weight that of the tokens."""

    def __init__(self, letters, layers=4, features=256, heads=4, context=GPT_CONTEXT):
        super().__init__()
        self.tokens = nn.Embedding(letters, features)
        self.positions = nn.Parameter(0.02 * torch.randn(context, features))
        self.blocks = nn.Sequential(*(Block(features, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(features)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, x):
        x = self.blocks(self.tokens(x) + self.positions)
        return nn.functional.linear(self.norm(x), self.tokens.weight)


class Residual(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)
        self.downsample = nn.Sequential()
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = self.bn2(self.conv2(nn.functional.relu(self.bn1(self.conv1(x)), inplace=True)))
        return nn.functional.relu(y.add_(self.downsample(x)), inplace=True)


class ResNet18(nn.Sequential):
    """torchvision's, of so many channels and classes, without torchvision: that of `tutti train resnet18`."""

    def __init__(self, channels=3, classes=1000):
        layers, inputs = [], 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [Residual(inputs, width, stride), Residual(width, width, 1)]
            inputs = width
        super().__init__(nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                         nn.MaxPool2d(3, 2, 1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
