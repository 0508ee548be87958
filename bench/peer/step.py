"""PyTorch's side of `tutti_bench compare`: what a training step costs there.

  step.py MODE --data DIR --rank R --ranks N --threads T --cores 0,1 --store FILE

MODE  ddp     one of N ranks of DistributedDataParallel (bucket views, static graph, fused Adam), over
              Gloo unless --backend tutti says otherwise
      alone   trains by itself with T threads: one process of N threads, or one of N that never talk

Each model is trained in the fastest of its settings (memory format of convolutions, size of DDP's
buckets), which a short trial finds and each answer says. Commands and answers are those of talk.py.
"""
import argparse
import itertools
import os
import time


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
import models  # noqa: E402
import talk  # noqa: E402


FORMATS = {"cnn": (torch.channels_last, torch.contiguous_format)}
BUCKETS = (25, 1, 2, 5, 100)  # MB, of ddp; the first is DDP's own
TRIAL_STEPS = 20


class Training:
    """A model and its optimizer in one setting."""

    def __init__(self, name, batches, memory_format, bucket_mb):
        self.model = models.make_model(name).to(memory_format=memory_format)
        if arguments.mode == "ddp":
            self.model = nn.parallel.DistributedDataParallel(
                self.model, gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=bucket_mb)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)
        self.batches = [(x.contiguous(memory_format=memory_format), y) for x, y in batches]
        self.words = f"{memory_format}" + (f", buckets of {bucket_mb} MB" if bucket_mb else "")
        self.last_loss = None

    def train(self, steps):
        model, optimizer, batches = self.model, self.optimizer, self.batches
        for step in range(steps):
            x, y = batches[step % len(batches)]
            optimizer.zero_grad(set_to_none=True)
            self.last_loss = nn.functional.cross_entropy(model(x), y)
            self.last_loss.backward()
            optimizer.step()
        return steps

    def seconds(self):
        """Of TRIAL_STEPS: of the slowest rank."""
        begin = time.perf_counter()
        self.train(TRIAL_STEPS)
        taken = torch.tensor([time.perf_counter() - begin])
        if arguments.mode == "ddp":
            torch.distributed.all_reduce(taken, torch.distributed.ReduceOp.MAX)
        return taken.item()


class Trainer:
    """The training of a model that is the fastest, kept between commands."""

    def __init__(self, name, batch):
        batches = doodles.batches(arguments.data, batch, arguments.rank, arguments.ranks,
                                  talk.PRELOADED)
        settings = list(itertools.product(FORMATS.get(name, (torch.contiguous_format,)),
                                          BUCKETS if arguments.mode == "ddp" else (None,)))
        best = settings[0]
        if len(settings) > 1:
            tried = [Training(name, batches, *setting) for setting in settings]
            times = [[training.seconds() for training in tried] for _ in range(4)][1:]  # the first is warm-up
            sums = [sum(of_one) for of_one in zip(*times)]
            best = settings[sums.index(min(sums))]
        self.training = Training(name, batches, *best)
        self.words = self.training.words

    def train(self, steps):
        return self.training.train(steps)

    def loss(self):
        return self.training.last_loss.item()


def main():
    torch.set_flush_denormal(True)  # threads made from here on inherit it
    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    hello = {"torch": torch.__version__}
    if arguments.mode == "alone":
        talk.answer_commands(Trainer, hello)
        return
    if arguments.backend == "tutti":
        import tutti.torch  # noqa: F401  (makes the backend known)
    store = torch.distributed.FileStore(arguments.store, arguments.ranks)
    torch.distributed.init_process_group(arguments.backend, store=store, rank=arguments.rank,
                                         world_size=arguments.ranks)
    talk.answer_commands(Trainer, hello, torch.distributed.barrier)
    torch.distributed.destroy_process_group()


main()
