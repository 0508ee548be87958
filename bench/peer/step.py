"""PyTorch's side of `tutti_bench compare`: what a training step costs there.

  step.py MODE --data DIR --rank R --ranks N --threads T --cores 0,1 --store FILE

MODE  ddp     one of N ranks of DistributedDataParallel (bucket views, fused Adam), over Gloo unless
              --backend tutti says otherwise
      alone   trains by itself with T threads: one process of N threads, or one of N that never talk

Commands and answers are those of talk.py.
"""
import argparse
import os


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


class Trainer:
    """One model with its optimizer, kept between commands."""

    def __init__(self, name, batch):
        self.model = models.make_model(name)
        if arguments.mode == "ddp":
            self.model = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)
        self.batches = doodles.batches(arguments.data, batch, arguments.rank, arguments.ranks,
                                       talk.PRELOADED)
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

    def loss(self):
        return self.last_loss.item()


def main():
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
