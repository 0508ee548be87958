#!/usr/bin/env python3
"""Steps of networks written in Python: eager PyTorch beside the same, exported, in C++ without Python.

    .venv/bin/python bench/exported_steps.py [--build build] [--rounds 7] [--only gpt lstm] [--replicas 2]

Each network is exported by tutti.export, then both sides take turns of steps, on one thread each: forward, the
mean of the first output's squares, backward, SGD. Prints a table: ms of a step as medians over the rounds, the
median of the rounds' ratios eager / ours with its least and most (above 1: ours is faster), and how long the
file took to load. gpt2 is GPT-2 small, 500 MB: --only gpt2.

With --replicas PyTorch has as many processes of DistributedDataParallel over Gloo, buckets of 25 MB or of 1 MB,
whichever is faster in a round, gradients as views of them; ours strategy mirrored. Each replica has that batch
and one thread.
"""

import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.functional as F
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from tutti.export import export  # noqa: E402


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.down = nn.Identity()
        if stride != 1:
            conv = nn.Conv2d(before, after, 1, stride, bias=False)
            self.down = nn.Sequential(conv, nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.down(x))


def resnet18():
    layers, width = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for i in range(4):
        layers += [Residual(width, 64 << i, 1 if i == 0 else 2), Residual(64 << i, 64 << i, 1)]
        width = 64 << i
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        split = lambda y: y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        q, k, v = map(split, self.qkv(self.norm1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, words, width, layers, heads, context):
        super().__init__()
        self.token, self.place = nn.Embedding(words, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        x = self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(1000, 128)
        self.cells, self.head = nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 1000)

    def forward(self, ids):
        return self.head(self.cells(self.token(ids))[0])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        pair = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU())
        self.down1, self.down2, self.middle = pair(3, 32), pair(32, 64), pair(64, 128)
        self.up2, self.join2 = nn.ConvTranspose2d(128, 64, 2, 2), pair(128, 64)
        self.up1, self.join1 = nn.ConvTranspose2d(64, 32, 2, 2), pair(64, 32)
        self.out = nn.Conv2d(32, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        y = self.join2(torch.cat([self.up2(self.middle(F.max_pool2d(b, 2))), b], 1))
        return self.out(self.join1(torch.cat([self.up1(y), a], 1)))


def mlp():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


# name: module, its input for a batch, batch, steps of a round
NETS = {
    "mlp": (mlp, lambda b: torch.randn(b, 20), 32, 500),
    "resnet18": (resnet18, lambda b: torch.randn(b, 3, 64, 64), 8, 4),
    "gpt": (lambda: Gpt(256, 128, 4, 4, 64), lambda b: torch.randint(256, (b, 64)), 8, 10),
    "lstm": (Lstm, lambda b: torch.randint(1000, (b, 32)), 8, 10),
    "unet": (UNet, lambda b: torch.randn(b, 3, 64, 64), 4, 6),
    "gpt2": (lambda: Gpt(50257, 768, 12, 12, 1024), lambda b: torch.randint(50257, (b, 16)), 2, 1),
}
WORDS = {"gpt": 256, "lstm": 1000, "gpt2": 50257}


class Eager:
    def __init__(self, module, given):
        self.module, self.given = module.train(), given
        self.sgd = torch.optim.SGD(module.parameters(), lr=1e-4)

    def milliseconds(self, steps):
        begin = time.perf_counter()
        for _ in range(steps):
            self.sgd.zero_grad()
            self.module(self.given).pow(2).mean().backward()
            self.sgd.step()
        return (time.perf_counter() - begin) * 1000 / steps


def rank_of_ddp(rank, ranks, port, module, given, bucket, pipe):
    warnings.simplefilter("ignore", FutureWarning)  # of broadcast_buffers, which older torch calls nothing else
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    options = {"bucket_cap_mb": bucket, "gradient_as_bucket_view": True, "broadcast_buffers": False}
    eager = Eager(nn.parallel.DistributedDataParallel(module, **options), given)
    while steps := pipe.recv():
        torch.distributed.barrier()
        pipe.send(eager.milliseconds(steps))
    torch.distributed.destroy_process_group()


class Ddp:
    """As Eager; each round the faster of two buckets."""

    def __init__(self, module, given, ranks):
        self.groups, spawn = [], torch.multiprocessing.get_context("spawn")
        for bucket in (25, 1):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            pipes = [spawn.Pipe() for _ in range(ranks)]
            self.groups.append([pipe[0] for pipe in pipes])
            for rank, pipe in enumerate(pipes):
                arguments = (rank, ranks, port, module, given, bucket, pipe[1])
                spawn.Process(target=rank_of_ddp, args=arguments, daemon=True).start()

    def milliseconds(self, steps):
        times = []
        for pipes in self.groups:
            for pipe in pipes:
                pipe.send(steps)
            times.append(max(pipe.recv() for pipe in pipes))
        return min(times)

    def end(self):
        for pipe in sum(self.groups, []):
            pipe.send(0)


class Ours:
    def __init__(self, program, net, batch, words, replicas):
        command = [program, net, str(batch), str(words), *([str(replicas)] if replicas > 1 else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.load_ms = float(self.process.stdout.readline())

    def milliseconds(self, steps):
        print(steps, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def row(name, arguments, folder):
    made, given, batch, steps = NETS[name]
    torch.manual_seed(1)
    module, net = made(), folder / f"{name}.pt2"
    export(module, given(max(2, batch // 2)), net, eval_out=False, check=False)
    ours = Ours(arguments.build / "bin" / "bench_exported_step", net, batch, WORDS.get(name, 2),
                arguments.replicas)
    eager = Ddp(module, given(batch), arguments.replicas) if arguments.replicas > 1 else Eager(module, given(batch))
    eager.milliseconds(1), ours.milliseconds(1)
    rounds = [(eager.milliseconds(steps), ours.milliseconds(steps)) for _ in range(arguments.rounds)]
    ours.process.stdin.close()
    ours.process.wait()
    if arguments.replicas > 1:
        eager.end()
    middle = lambda values: statistics.median(values)
    ratios = [theirs / own for theirs, own in rounds]
    return (
        f"| {name} | {batch} | {middle([r[0] for r in rounds]):.2f} | {middle([r[1] for r in rounds]):.2f} | "
        f"{middle(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {net.stat().st_size / 1e6:.1f} | "
        f"{ours.load_ms:.0f} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=NETS, help="(default: all but gpt2)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    peer = "eager" if arguments.replicas == 1 else "DDP"
    print(f"| network | batch | {peer} ms | ours ms | {peer} / ours | MB | load ms |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only or [name for name in NETS if name != "gpt2"]:
            print(row(name, arguments, pathlib.Path(folder)), flush=True)


if __name__ == "__main__":
    main()
