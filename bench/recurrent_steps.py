#!/usr/bin/env python3
"""Steps of recurrent networks: ours beside DistributedDataParallel over Gloo, two replicas each.

    .venv/bin/python bench/recurrent_steps.py [--build build] [--rounds 7] [--cells lstm gru] [--batch 64]

Sequences of 100 points of three numbers, two layers of 128 units, a dense layer to ten classes, Adam (fused in
PyTorch), one thread a replica; --batch is of a replica. `counted`: of each sequence at least half of the points are
there, in PyTorch by pack_padded_sequence. Both sides stay alive and take turns; who begins changes from round to
round. DDP has the faster of buckets of 25 MB and 1 MB, of each round. Prints ms of a step as medians over the rounds
and the median of the rounds' ratios DDP / ours, with its least and most (above 1: ours is faster). Of lstm the bound
is 1.0, the aim 1.3.
"""

import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn

REPLICAS, FEATURES, CLASSES = 2, 3, 10
BUCKETS_MB = (25, 1)


class Recurrent(nn.Module):
    def __init__(self, cell, units, layers):
        super().__init__()
        self.cell = {"lstm": nn.LSTM, "gru": nn.GRU}[cell](FEATURES, units, layers, batch_first=True)
        self.head = nn.Linear(units, CLASSES)

    def forward(self, x, counts=None):
        if counts is not None:
            x = nn.utils.rnn.pack_padded_sequence(x, counts, batch_first=True, enforce_sorted=False)
        _, state = self.cell(x)
        return self.head((state[0] if isinstance(state, tuple) else state)[-1])


def rank_of_ddp(rank, store, job, commands, answers):
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=REPLICAS)
    torch.manual_seed(1)
    cell, batch, length, units, layers, counted = job
    x, y = torch.randn(batch, length, FEATURES), torch.randint(CLASSES, (batch,))
    counts = torch.randint(length // 2, length + 1, (batch,)) if counted else None
    trainings = []
    for bucket_mb in BUCKETS_MB:
        model = nn.parallel.DistributedDataParallel(
            Recurrent(cell, units, layers), gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=bucket_mb)
        trainings.append((model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)))

    def train(model, optimizer, steps):
        torch.distributed.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x, counts), y).backward()
            optimizer.step()
        return 1000 * (time.perf_counter() - begin) / steps

    for steps in iter(commands.get, 0):
        answers.put(min(train(*training, steps) for training in trainings))
    torch.distributed.destroy_process_group()


class Ddp:
    def __init__(self, job):
        context = torch.multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.answers = context.Queue()
        self.commands = [context.Queue() for _ in range(REPLICAS)]
        self.ranks = [
            context.Process(target=rank_of_ddp, args=(rank, f"{self.folder.name}/store", job, commands, self.answers),
                            daemon=True)
            for rank, commands in enumerate(self.commands)
        ]
        for rank in self.ranks:
            rank.start()

    def ms(self, steps):
        for commands in self.commands:
            commands.put(steps)
        return max(self.answers.get(timeout=600) for _ in self.ranks)

    def end(self):
        for commands in self.commands:
            commands.put(0)
        for rank in self.ranks:
            rank.join(timeout=60)
        self.folder.cleanup()


class Ours:
    def __init__(self, build, job):
        cell, batch, length, units, layers, counted = job
        command = [build / "bin/bench_recurrent_step", cell, *map(str, (batch, length, units, layers))]
        self.process = subprocess.Popen(command + ["counted"] * counted, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def ms(self, steps):
        print(steps, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"bench_recurrent_step ended with {self.process.wait()}: see its error above")
        return float(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def measure(arguments, cell, counted):
    job = (cell, arguments.batch, arguments.length, 128, 2, counted)
    sides = [Ours(arguments.build, job), Ddp(job)]
    for side in sides:
        side.ms(max(1, arguments.steps // 4))
    rounds = []
    for number in range(arguments.rounds):
        times = {side: side.ms(arguments.steps) for side in (sides if number % 2 == 0 else reversed(sides))}
        rounds.append([times[side] for side in sides])
    for side in sides:
        side.end()
    ratios = [theirs / own for own, theirs in rounds]
    own, theirs = (statistics.median(column) for column in zip(*rounds))
    print(f"| {cell}{', counted' if counted else ''} | {arguments.batch} | {own:.1f} | {theirs:.1f} | "
          f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="of a replica")
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--cells", nargs="+", choices=["lstm", "gru"], default=["lstm", "gru"])
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.steps, arguments.batch, arguments.length) < 1:
        parser.error("--rounds, --steps, --batch and --length: expected 1 or more")
    print("| cell | batch | ours, ms | DDP, ms | DDP / ours |\n|---|---|---|---|---|")
    for cell in arguments.cells:
        for counted in (False, True):
            measure(arguments, cell, counted)


if __name__ == "__main__":
    main()
