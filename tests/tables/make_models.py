#!/usr/bin/env python3
"""Writes models.json beside itself: torchvision's networks, as tutti's zoo must give them.

  python tests/tables/make_models.py            # torch and torchvision 0.28

For each network: names and shapes of parameters and of buffers with its usual sizes, the number of
parameters, and the logits of a thin one, in float64, for weights and inputs that a formula gives
(see `fill`; tests/unit/models/test_models_table.cpp has the same one).
"""

import json
import pathlib

import torch
from torch import nn
import torchvision.models as zoo

FILE = pathlib.Path(__file__).with_name("models.json")
PERIOD = 1009
THIN = 8


def pattern(count, begin):
    """Numbers between -0.5 and 0.5 that look like noise: 7919 i modulo 1009."""
    places = (torch.arange(PERIOD) + begin) * 7919 % PERIOD
    return (places.double() / PERIOD - 0.5).repeat(count // PERIOD + 1)[:count]


def fill(tensor, name, number):
    """`number` counts the floating tensors of a state dict in the order of their names."""
    values = pattern(tensor.numel(), 31 * number).reshape(tensor.shape)
    scale = name.endswith("running_var") or (name.endswith("weight") and tensor.dim() == 1)
    if tensor.dim() >= 2 and "embedding" not in name and "token" not in name:
        values = values * (24 * tensor.shape[0] / tensor.numel()) ** 0.5
    return values * 0.5 + 1 if scale else values


def thin(model):
    """The same network with an eighth of the units in every hidden layer."""
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    for group in list(model.modules()):
        for name, layer in group.named_children():
            bias = getattr(layer, "bias", None) is not None
            if isinstance(layer, nn.Conv2d):
                inputs = 3 if layer.in_channels == 3 else layer.in_channels // THIN
                new = nn.Conv2d(inputs, layer.out_channels // THIN, layer.kernel_size,
                                layer.stride, layer.padding, bias=bias)
            elif isinstance(layer, nn.BatchNorm2d):
                new = nn.BatchNorm2d(layer.num_features // THIN, layer.eps)
            elif isinstance(layer, nn.Linear):
                outputs = 5 if layer is last else layer.out_features // THIN
                new = nn.Linear(layer.in_features // THIN, outputs)
            else:
                continue
            setattr(group, name, new)
    return model


def logits(model, shape):
    model = model.double().eval()
    state = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    with torch.no_grad():
        for number, name in enumerate(sorted(state)):
            state[name].copy_(fill(state[name], name, number))
        x = pattern(2 * shape[0] * shape[1] * shape[2], 5).reshape(2, *shape) * 2
        return model(x).reshape(-1).tolist()


def entry(name, model, small=None, shape=None):
    listed = lambda tensors: [[key, list(value.shape)] for key, value in tensors]
    case = {
        "name": name,
        "count": sum(p.numel() for p in model.parameters()),
        "parameters": listed(model.named_parameters()),
        "buffers": listed(model.named_buffers()),
    }
    if small is not None:
        case |= {"input": shape, "logits": logits(small, shape)}
    return case


def main():
    inception = {"init_weights": False}
    vit = zoo.VisionTransformer(28, 7, 2, 4, 32, 64, num_classes=5)
    cases = [
        entry("alexnet", zoo.alexnet(), thin(zoo.alexnet()), [3, 64, 64]),
        entry("vgg11", zoo.vgg11(), thin(zoo.vgg11()), [3, 32, 32]),
        entry("vgg11_bn", zoo.vgg11_bn(), thin(zoo.vgg11_bn()), [3, 32, 32]),
        entry("resnet18", zoo.resnet18(), thin(zoo.resnet18()), [3, 40, 40]),
        entry("resnet50", zoo.resnet50(), thin(zoo.resnet50()), [3, 40, 40]),
        entry("inception_v3", zoo.inception_v3(aux_logits=False, **inception),
              thin(zoo.inception_v3(aux_logits=False, **inception)), [3, 75, 75]),
        entry("inception_v3, auxiliary", zoo.inception_v3(**inception)),
        entry("vit", zoo.vit_b_16(), vit, [3, 28, 28]),
    ]
    lines = ",\n".join(json.dumps(case) for case in cases)
    FILE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
