"""PyTorch's side of `tools/gpu_check`: what a training step costs there on a device.

  device_step.py [--device cuda|cpu] [--graph]

--graph  forward, backward and update are one captured graph, replayed with the samples of each step

Adam is the fused one. Commands and answers are those of talk.py; samples are random and stay on the
device, and a measurement ends when the device has done all steps.
"""
import argparse

import torch
from torch import nn

import models
import talk

CAPTURE_AFTER = 3  # steps on a stream of its own, as PyTorch's documentation of graphs asks for


def random_samples(model, batch, device):
    shape, classes = ((3, 224, 224), 1000) if model == "resnet18" else ((1, 28, 28), 10)
    return torch.rand(batch, *shape).to(device), torch.randint(classes, (batch,)).to(device)


class Trainer:
    def __init__(self, name, batch):
        device = torch.device(arguments.device)
        # Channels innermost, as ours lie on a GPU: cuDNN's favourite; nothing else has any.
        self.model = models.make_model(name).to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True,
                                          capturable=arguments.graph)
        self.x, self.y = random_samples(name, batch, device)
        self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.last_loss = None
        self.step = self.captured(self.x.clone(), self.y.clone()) if arguments.graph else self.step_as_written

    def step_as_written(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.last_loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        self.last_loss.backward()
        self.optimizer.step()

    def captured(self, x, y):
        """A step of x and y, which are copied to where the graph reads."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(CAPTURE_AFTER):
                self.step_as_written()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.step_as_written()

        def step():
            self.x.copy_(x)
            self.y.copy_(y)
            graph.replay()

        return step

    def train(self, steps):
        for _ in range(steps):
            self.step()
        if arguments.device == "cuda":
            torch.cuda.synchronize()
        return steps

    def loss(self):
        return self.last_loss.item()


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
parser.add_argument("--graph", action="store_true")
arguments = parser.parse_args()
talk.answer_commands(Trainer, {"torch": torch.__version__})
