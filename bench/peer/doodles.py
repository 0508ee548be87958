"""Doodles as tensors, the same samples that tutti trains on: all but the last sixth of each class."""
import gzip
import pathlib

import numpy
import torch

_IMAGE = 28


def load_train(folder):
    """All training samples: x float32 [n, 1, 28, 28] in 0..1, y int64 [n], classes sorted by name."""
    files = sorted(f for f in pathlib.Path(folder).iterdir() if f.name.endswith((".npy", ".npy.gz")))
    xs, ys = [], []
    for label, file in enumerate(files):
        opener = gzip.open if file.suffix == ".gz" else open
        with opener(file, "rb") as stream:
            rows = numpy.load(stream)
        rows = rows[: len(rows) - len(rows) // 6]
        xs.append(torch.from_numpy(rows))
        ys.append(torch.full((len(rows),), label, dtype=torch.int64))
    x = torch.cat(xs).reshape(-1, 1, _IMAGE, _IMAGE).float() / 255
    return x, torch.cat(ys)


def batches(folder, batch, rank, ranks, count):
    """The first `count` global batches of a shuffled epoch; of each, the part of `rank`."""
    x, y = load_train(folder)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    count = min(count, len(x) // (batch * ranks))
    parts = []
    for step in range(count):
        begin = (step * ranks + rank) * batch
        rows = order[begin : begin + batch]
        parts.append((x[rows].clone(), y[rows].clone()))
    return parts
