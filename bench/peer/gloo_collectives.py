"""Gloo's side of `tutti_bench all-reduce`: one rank, which stays and waits for work.

  gloo_collectives.py --rank R --ranks N --core C --store FILE

Says a line when it has started, then answers every line of JSON on stdin, {"collective": NAME,
"bytes": [B, ...], "iterations": K}, by a line {"B": {"p50_us": T, "correct": true}, ...}. A time is
the slowest rank's, and below 8 KiB the mean of a row of operations. Buffers are filled before and
read after, outside the timed region, so that the caches are in the state in which training leaves them.
"""
import argparse
import json
import os
import statistics
import sys
import time

WARMUP = 3
ROW = 20
ROW_BYTES = 8 << 10
LONG_BYTES = 64 << 20


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--core", type=int, default=-1)
    parser.add_argument("--store", required=True)
    return parser.parse_args()


arguments = parse_arguments()
if arguments.core >= 0:
    os.sched_setaffinity(0, {arguments.core})

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

RANK, RANKS = arguments.rank, arguments.ranks


class Work:
    """The buffers of a collective, what fills them, what calls it and what must come out."""

    def __init__(self, collective, num_bytes):
        self.collective = collective
        self.repeats = num_bytes < ROW_BYTES
        self.whole = num_bytes // 4
        part = self.whole // RANKS
        sizes = {"all_reduce": (0, self.whole), "broadcast": (0, self.whole), "all_gather": (part, self.whole),
                 "reduce_scatter": (self.whole, part), "all_to_all": (self.whole, self.whole),
                 "barrier": (0, 0)}
        self.input, self.output = (torch.empty(size) for size in sizes[collective])
        self.op = dist.ReduceOp.MAX if self.repeats else dist.ReduceOp.SUM

    def fill(self):
        self.input.fill_(RANK + 1)
        self.output.fill_(RANK + 1)

    def call(self, number):
        if self.collective == "all_reduce":
            dist.all_reduce(self.output, self.op)
        elif self.collective == "broadcast":
            dist.broadcast(self.output, number % RANKS)
        elif self.collective == "all_gather":
            dist.all_gather_into_tensor(self.output, self.input)
        elif self.collective == "reduce_scatter":
            dist.reduce_scatter_tensor(self.output, self.input, self.op)
        elif self.collective == "barrier":
            dist.barrier()
        else:
            dist.all_to_all_single(self.output, self.input)

    def is_right(self):
        if self.collective == "barrier":
            return True
        if self.collective == "broadcast":
            return bool((self.output == 1).all())
        if self.collective in ("all_gather", "all_to_all"):
            parts = self.output.view(RANKS, -1)
            return bool((parts == torch.arange(1, RANKS + 1).view(-1, 1)).all())
        return bool((self.output == (RANKS if self.repeats else RANKS * (RANKS + 1) / 2)).all())


def measure(collective, num_bytes, iterations):
    work = Work(collective, num_bytes)
    row = ROW if work.repeats else 1
    if num_bytes >= LONG_BYTES:
        iterations = (iterations + 2) // 3
    times, correct = [], True
    for iteration in range(iterations + WARMUP):
        work.fill()
        dist.barrier()
        begin = time.perf_counter()
        for number in range(row):
            work.call(number)
        seconds = (time.perf_counter() - begin) / row
        correct = correct and work.is_right()
        if iteration >= WARMUP:
            times.append(seconds * 1e6)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return {"p50_us": statistics.median(slowest.tolist()), "correct": correct}


def main():
    torch.set_num_threads(1)
    store = dist.FileStore(arguments.store, RANKS)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=RANKS)
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        answer = {str(size): measure(task["collective"], size, task["iterations"]) for size in task["bytes"]}
        print(json.dumps(answer), flush=True)
    dist.destroy_process_group()


main()
