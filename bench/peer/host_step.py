"""One rank of DistributedDataParallel, for bench/host_steps.py: the median of its steps.

Without --ranks it trains by itself. Batches are tensors in memory before the clock starts; fused Adam, gradients as views of buckets.
"""
import argparse
import json
import pathlib
import statistics
import time

import torch
import torch.distributed
from torch import nn

import doodles
import models

WARM_UP = 3
PRELOADED = 32


def arguments_of_user():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    for flag in ("--batch", "--steps"):
        parser.add_argument(flag, type=int, required=True)
    for flag in ("--data", "--text", "--json"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--meet", default="", help="HOST:PORT of rank 0")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--bucket-mb", type=float, default=25)
    return parser.parse_args()


def windows(file, batch, rank, ranks, length=models.GPT_CONTEXT):
    """Windows of a text and the character after each of theirs, and how many characters there are."""
    text = pathlib.Path(file).read_text()
    number = {letter: i for i, letter in enumerate(sorted(set(text)))}
    tokens = torch.tensor([number[letter] for letter in text])
    count = (len(tokens) - 1) // length
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    parts = []
    for step in range(min(PRELOADED, count // (batch * ranks))):
        begins = order[(step * ranks + rank) * batch :][:batch] * length
        rows = begins[:, None] + torch.arange(length)
        parts.append((tokens[rows], tokens[rows + 1]))
    return parts, len(number)


def main():
    arguments = arguments_of_user()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    share = (arguments.batch, arguments.rank, arguments.ranks)
    if arguments.model == "gpt":
        batches, letters = windows(arguments.text, *share)
        model = models.Gpt(letters)
    else:
        batches = doodles.batches(arguments.data, *share, PRELOADED)
        model = models.make_model(arguments.model)
    if arguments.ranks > 1:
        if arguments.backend == "tutti":
            import tutti.torch  # noqa: F401: registers it

        torch.distributed.init_process_group(arguments.backend, init_method=f"tcp://{arguments.meet}", rank=arguments.rank,
                                             world_size=arguments.ranks)
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True,
                                                    bucket_cap_mb=arguments.bucket_mb)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    milliseconds = []
    for step in range(WARM_UP + arguments.steps):
        begin = time.perf_counter()
        x, y = batches[step % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()
        milliseconds.append(1e3 * (time.perf_counter() - begin))
    if arguments.ranks > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    pathlib.Path(arguments.json).write_text(json.dumps({"step_ms_p50": statistics.median(milliseconds[WARM_UP:])}))


main()
