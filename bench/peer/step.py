"""PyTorch's side of `tutti bench compare`: what a training step costs there.

  step.py MODE --data DIR --rank R --ranks N --threads T --cores 0,1 --store FILE

MODE  ddp     one of N ranks of DistributedDataParallel (bucket views, fused Adam), over Gloo unless
              --backend tutti says otherwise
      alone   trains by itself with T threads: one process of N threads, or one of N that never talk

Reads a command a line from stdin and answers each with a line, until stdin ends:
  {"model": "mlp", "batch": 64, "steps": 500, "warmup": 20}
  {"images_per_second": 123456.0, "step_ms": 0.5, "loss": 1.2}      of this process alone
Batches are tensors in memory before the clock starts, as with `tutti bench step --preload`.
"""
import argparse
import gc
import json
import os
import sys
import time

_PRELOADED = 32


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["ddp", "alone"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cores", default="", help="pinned to these")
    parser.add_argument("--backend", default="gloo", choices=["gloo", "tutti"], help="of ddp")
    parser.add_argument("--store", default="", help="file through which the ranks of ddp meet")
    return parser.parse_args()


arguments = parse_arguments()
if arguments.cores:  # before torch makes its threads
    os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})

import torch  # noqa: E402
import torch.distributed  # noqa: E402
from torch import nn  # noqa: E402

import doodles  # noqa: E402


def make_model(name):
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    if name == "wide":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048),
                             nn.ReLU(), nn.Linear(2048, 10))
    assert name == "cnn", name
    layers, channels = [], 1
    for out in (16, 32, 64):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, 10))


class Trainer:
    """One model with its optimizer, kept between commands."""

    def __init__(self, name, batch):
        torch.manual_seed(7)
        self.model = make_model(name)
        if arguments.mode == "ddp":
            self.model = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)
        self.batches = doodles.batches(arguments.data, batch, arguments.rank, arguments.ranks,
                                       _PRELOADED)

    def train(self, steps):
        model, optimizer, batches = self.model, self.optimizer, self.batches
        loss = None
        for step in range(steps):
            x, y = batches[step % len(batches)]
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        return loss


def measure(trainer, batch, steps, warmup):
    trainer.train(warmup)
    if arguments.mode == "ddp":
        torch.distributed.barrier()
    begin = time.perf_counter()
    loss = trainer.train(steps)
    seconds = time.perf_counter() - begin
    return {"images_per_second": batch * steps / seconds, "step_ms": 1000 * seconds / steps,
            "loss": loss.item()}


def main():
    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    if arguments.mode == "ddp":
        if arguments.backend == "tutti":
            import tutti.torch  # noqa: F401  (makes the backend known)
        store = torch.distributed.FileStore(arguments.store, arguments.ranks)
        torch.distributed.init_process_group(arguments.backend, store=store, rank=arguments.rank,
                                             world_size=arguments.ranks)
    gc.disable()
    trainers = {}
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        key = (command["model"], command["batch"])
        if key not in trainers:
            trainers.clear()  # one model in memory, as in the program beside it
            gc.collect()
            trainers[key] = Trainer(*key)
        answer = measure(trainers[key], command["batch"], command["steps"], command["warmup"])
        print(json.dumps(answer), flush=True)
    if arguments.mode == "ddp":
        torch.distributed.destroy_process_group()


main()
