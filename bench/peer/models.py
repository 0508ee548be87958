"""The models of `tutti_bench compare` and `tools/gpu_check`, as PyTorch's."""
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
        import torchvision  # which only this one needs

        return torchvision.models.resnet18()
    assert name == "cnn", name
    layers, channels = [], 1
    for out in (16, 32, 64):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, 10))
