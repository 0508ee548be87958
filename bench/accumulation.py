#!/usr/bin/env python3
"""Loops that accumulate: tutti::DistributedOptimizer beside DistributedDataParallel over Gloo.

    .venv/bin/python bench/accumulation.py [--build build] [--rounds 7] [--ranks 2] [--passes 1 4]

Both sides take turns, as new processes each round, one thread a rank: PASSES backward passes a step, all but the
last in no_sync(), and SGD. DDP has gradients as views of its buckets, of 25 MB or of 1 MB, whichever is faster in a
round. Prints a table: ms of a step as medians over the rounds, and the median of the rounds' ratios DDP / ours with
its least and most (above 1: ours is faster).
"""

import argparse
import contextlib
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn

STEPS = {"mlp": 1000, "cnn": 60, "transformer": 30}


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0)
        self.layers, self.head = nn.TransformerEncoder(layer, 4), nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.layers(x).mean(0))


def make_model(name):
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    if name == "transformer":
        return Transformer()
    layers, channels = [], 1
    for out in (16, 32, 64):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 9, 10))


def rank_of_ddp(rank, ranks, name, passes, steps, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    x = torch.randn(32, 8, 128) if name == "transformer" else torch.randn(32, 1, 28, 28)
    y = torch.randint(10, (8 if name == "transformer" else 32,))
    best = float("inf")
    for bucket_mb in (25, 1):
        model = nn.parallel.DistributedDataParallel(
            make_model(name), gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def train(count):
            for _ in range(count):
                optimizer.zero_grad(set_to_none=True)
                for number in range(passes):
                    with model.no_sync() if number + 1 < passes else contextlib.nullcontext():
                        (nn.functional.cross_entropy(model(x), y) / passes).backward()
                optimizer.step()

        train(max(1, steps // 5))
        torch.distributed.barrier()
        begin = time.perf_counter()
        train(steps)
        best = min(best, 1000 * (time.perf_counter() - begin) / steps)
    if rank == 0:
        pathlib.Path(folder, "ms").write_text(str(best))
    torch.distributed.destroy_process_group()


def ddp(ranks, *what):
    with tempfile.TemporaryDirectory() as folder:
        written = pathlib.Path(folder, "ms")
        try:
            torch.multiprocessing.spawn(rank_of_ddp, (ranks, *what, folder), ranks)
        except torch.multiprocessing.ProcessExitedException:
            if not written.exists():  # else the process group died while it ended, after it was timed
                raise
        return float(written.read_text())


def ours(build, ranks, name, passes, steps):
    command = [build / "bin/tutti", "run", "-n", str(ranks), build / "bin/bench_accumulation", name, str(passes),
               str(steps)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"ms ([\d.]+)", done.stdout + done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return float(found[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--passes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    arguments = parser.parse_args()
    print("| model | passes | ours, ms | DDP, ms | DDP / ours |\n|---|---|---|---|---|")
    for name in arguments.only:
        for passes in arguments.passes:
            what = (arguments.ranks, name, passes, max(1, STEPS[name] // passes))
            rounds = [(ours(arguments.build, *what), ddp(*what)) for _ in range(arguments.rounds)]
            ratios = [theirs / own for own, theirs in rounds]
            own, theirs = (statistics.median(column) for column in zip(*rounds))
            print(f"| {name} | {passes} | {own:.3f} | {theirs:.3f} | {statistics.median(ratios):.2f} "
                  f"({min(ratios):.2f} to {max(ratios):.2f}) |", flush=True)


if __name__ == "__main__":
    main()
