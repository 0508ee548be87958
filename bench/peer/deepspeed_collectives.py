"""DeepSpeed's side of `tutti_bench compare --all-reduce`: one rank, which stays and waits for work.

  deepspeed_collectives.py --rank R --ranks N --core C --store FILE --deepspeed LIBRARY

Talks as gloo_collectives.py does, and knows "all_reduce" alone. Operations are timed in C++ (deepspeed_timed.cpp);
Gloo brings the ranks and their figures together.
"""
import argparse
import json
import os
import statistics
import sys

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
    parser.add_argument("--deepspeed", required=True, help="what deepspeed_shm.py compiled")
    return parser.parse_args()


arguments = parse_arguments()
if arguments.core >= 0:
    os.sched_setaffinity(0, {arguments.core})

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import deepspeed_shm  # noqa: E402


def measure(num_bytes, iterations):
    if num_bytes >= LONG_BYTES:
        iterations = (iterations + 2) // 3
    row = ROW if num_bytes < ROW_BYTES else 1
    *times, right = torch.ops.deepspeed_timed.measure(num_bytes, iterations + WARMUP, row, arguments.ranks,
                                                      arguments.rank)
    slowest = torch.tensor(times[WARMUP:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return {"p50_us": statistics.median(slowest.tolist()), "correct": bool(right)}


def main():
    torch.set_num_threads(1)
    store = dist.FileStore(arguments.store, arguments.ranks)
    dist.init_process_group("gloo", store=store, rank=arguments.rank, world_size=arguments.ranks)
    deepspeed_shm.start(arguments.deepspeed, os.path.basename(arguments.store))
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        assert task["collective"] == "all_reduce", task
        print(json.dumps({str(size): measure(size, task["iterations"]) for size in task["bytes"]}), flush=True)
    dist.destroy_process_group()


main()
