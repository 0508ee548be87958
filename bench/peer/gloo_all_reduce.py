"""Gloo's side of `tutti bench compare --all-reduce`: one rank.

  gloo_all_reduce.py --rank R --ranks N --core C --store FILE --bytes 1024,1048576 --iterations 20

Prints one JSON line a size on rank 0. Each rank fills its buffer before and reads it after, outside
the timed region, so that the caches are in the state in which training leaves them.
"""
import argparse
import json
import os
import statistics
import time


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--core", type=int, default=-1)
    parser.add_argument("--store", required=True)
    parser.add_argument("--bytes", required=True)
    parser.add_argument("--iterations", type=int, default=20)
    return parser.parse_args()


arguments = parse_arguments()
if arguments.core >= 0:
    os.sched_setaffinity(0, {arguments.core})

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def measure(num_bytes):
    data = torch.empty(max(1, num_bytes // 4), dtype=torch.float32)
    times, correct = [], True
    for iteration in range(arguments.iterations + 3):
        data.fill_(arguments.rank + 1)
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(data)
        seconds = time.perf_counter() - begin
        expected = arguments.ranks * (arguments.ranks + 1) / 2
        correct = correct and bool((data == expected).all())
        if iteration >= 3:
            times.append(seconds * 1e6)
    return {"bytes": num_bytes, "p50_us": statistics.median(times), "correct": correct}


def main():
    torch.set_num_threads(1)
    store = dist.FileStore(arguments.store, arguments.ranks)
    dist.init_process_group("gloo", store=store, rank=arguments.rank, world_size=arguments.ranks)
    for size in arguments.bytes.split(","):
        figures = measure(int(size))
        if arguments.rank == 0:
            print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


main()
