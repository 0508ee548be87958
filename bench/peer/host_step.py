"""One rank of DistributedDataParallel, or of sums by MPI, for bench/host_steps.py: the median of its steps.

Without --ranks it trains by itself. Batches are tensors in memory before the clock starts; fused Adam (dlrm: Adagrad, whose
gradients of rows are sparse), gradients as views of buckets, no batch statistics sent. --backend mpi: under mpirun.
"""
import argparse
import json
import os
import pathlib
import statistics
import time

import torch
import torch.distributed
from torch import nn

import dlrm
import doodles
import models
import mpi_sums

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
    parser.add_argument("--backend", default="gloo", help="of DDP; or mpi: one all-reduce after backward")
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


def made(arguments):
    """The model, its batches, its loss and what updates it."""
    share = (arguments.batch, arguments.rank, arguments.ranks)
    loss = nn.functional.cross_entropy
    torch.manual_seed(7)  # by mpi nobody sends the first weights
    if arguments.model == "dlrm":
        batches = dlrm.batches(*share, min(PRELOADED, WARM_UP + arguments.steps))
        model, loss = dlrm.Dlrm(), nn.functional.binary_cross_entropy_with_logits
        return model, batches, loss, torch.optim.Adagrad(model.parameters(), lr=0.01)
    if arguments.model == "gpt":
        batches, letters = windows(arguments.text, *share)
        model = models.Gpt(letters)
        loss = loss_of_windows
    else:
        batches = doodles.batches(arguments.data, *share, PRELOADED)
        model = models.ResNet18(1, 10) if arguments.model == "resnet18" else models.make_model(arguments.model)
    return model, batches, loss, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def loss_of_windows(y, wanted):
    return nn.functional.cross_entropy(y.flatten(0, -2), wanted.flatten())


def distributed(model, arguments):
    if arguments.backend == "tutti":
        # As torchrun says it: towards there each rank finds the address at which others reach it.
        os.environ["MASTER_ADDR"] = arguments.meet.partition(":")[0]
        import tutti.torch  # noqa: F401: registers it

    torch.distributed.init_process_group(arguments.backend, init_method=f"tcp://{arguments.meet}", rank=arguments.rank,
                                         world_size=arguments.ranks)
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False,
                                               bucket_cap_mb=arguments.bucket_mb)


def main():
    arguments = arguments_of_user()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    by_mpi = arguments.ranks > 1 and arguments.backend == "mpi"
    mpi = mpi_sums.Mpi() if by_mpi else None
    model, batches, loss, optimizer = made(arguments)
    sums = mpi_sums.Averages(mpi, model, arguments.ranks) if by_mpi else None
    if arguments.ranks > 1 and not by_mpi:
        model = distributed(model, arguments)
    milliseconds = []
    for step in range(WARM_UP + arguments.steps):
        begin = time.perf_counter()
        x, y = batches[step % len(batches)]
        if by_mpi:
            sums.clear()
        else:
            optimizer.zero_grad(set_to_none=True)
        loss(model(x), y).backward()
        if by_mpi:
            sums.take()
        optimizer.step()
        milliseconds.append(1e3 * (time.perf_counter() - begin))
    if by_mpi:
        mpi.end()
    elif arguments.ranks > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    pathlib.Path(arguments.json).write_text(json.dumps({"step_ms_p50": statistics.median(milliseconds[WARM_UP:])}))


main()
