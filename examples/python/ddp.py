"""Trains a small network on Quick, Draw! with PyTorch's DistributedDataParallel over tutti.

    python examples/python/ddp.py --ranks 2                          # starts its own processes
    torchrun --nproc-per-node 2 examples/python/ddp.py               # or is started
    python examples/python/ddp.py --ranks 2 --backend gloo           # the same over Gloo

Nothing in the program is tutti's but the import and the name of the backend.
"""

import argparse
import gzip
import os
import pathlib
import tempfile
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "quickdraw"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="tutti", choices=["tutti", "gloo"])
    parser.add_argument("--ranks", type=int, default=2, help="when no launcher says it")
    parser.add_argument("--model", default="mlp", choices=["mlp", "cnn"])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128, help="of all ranks together")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--data", type=pathlib.Path, default=DATA)
    return parser.parse_args()


def load(folder):
    """(x, y) for training and for testing; the last sixth of each class is for testing."""
    files = sorted(f for f in folder.iterdir() if f.name.endswith((".npy", ".npy.gz")))
    if not files:
        raise SystemExit(f"no .npy or .npy.gz files in {folder}")
    train, test = ([], []), ([], [])
    for label, file in enumerate(files):
        with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as stream:
            images = torch.from_numpy(numpy.load(stream)).reshape(-1, 1, 28, 28).float() / 255
        labels = torch.full((len(images),), label)
        cut = len(images) - len(images) // 6
        for part, rows in ((train, slice(None, cut)), (test, slice(cut, None))):
            part[0].append(images[rows])
            part[1].append(labels[rows])
    return [tuple(torch.cat(tensors) for tensors in part) for part in (train, test)], len(files)


def make_model(name, classes):
    if name == "mlp":
        layers = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, classes)]
        return nn.Sequential(*layers)
    layers, channels = [], 1
    for out in (16, 32, 64):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    layers += [nn.Flatten(), nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, classes)]
    return nn.Sequential(*layers)


def train_epoch(model, optimizer, data, batch_size, epoch):
    """Images of all ranks together."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, y = data
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    steps = len(x) // batch_size
    for step in range(steps):
        rows = order[step * batch_size : (step + 1) * batch_size][rank::ranks]
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    return steps * batch_size


@torch.no_grad()
def accuracy(model, data):
    """Over the whole test set, each rank its share."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, y = data[0][rank::ranks], data[1][rank::ranks]
    right = sum(
        int((model(part).argmax(1) == labels).sum())
        for part, labels in zip(x.split(1024), y.split(1024))
    )
    counts = torch.tensor([right, len(y)])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


def train(arguments):
    torch.set_num_threads(max(1, torch.get_num_threads() // dist.get_world_size()))
    torch.manual_seed(7)
    (train_data, test_data), classes = load(arguments.data)
    model = make_model(arguments.model, classes)
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.learning_rate, fused=True)
    for epoch in range(arguments.epochs):
        begin = time.perf_counter()
        images = train_epoch(model, optimizer, train_data, arguments.batch_size, epoch)
        rate = images / (time.perf_counter() - begin)
        share = accuracy(model, test_data)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {share:.3f}, {rate:,.0f} images/s", flush=True)


def run(arguments, **group):
    if arguments.backend == "tutti":
        import tutti.torch  # noqa: F401  (makes the backend known)
    dist.init_process_group(arguments.backend, **group)
    train(arguments)
    dist.destroy_process_group()


def run_spawned(rank, arguments, file):
    run(arguments, init_method=f"file://{file}", rank=rank, world_size=arguments.ranks)


def main():
    arguments = parse_arguments()
    if "RANK" in os.environ:  # torchrun tells the rest through the environment
        return run(arguments)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            run_spawned, args=(arguments, f"{folder}/store"), nprocs=arguments.ranks
        )


if __name__ == "__main__":
    main()
