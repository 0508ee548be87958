"""PyTorch's side of `tutti_bench compare`: what a training step costs there.

  step.py MODE --data DIR --rank R --ranks N --threads T --cores 0,1 --store FILE

MODE  ddp     one of N ranks of DistributedDataParallel (bucket views, static graph, fused Adam), over
              Gloo unless --backend tutti says otherwise
      alone   trains by itself with T threads: one process of N threads, or one of N that never talk

Each model is trained in the fastest of its settings (memory format of convolutions, size of DDP's
buckets), which a short trial finds and each answer says. Commands and answers are those of talk.py.
"""
import argparse
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

import networks  # noqa: E402
import talk  # noqa: E402


FORMATS = (torch.channels_last, torch.contiguous_format)  # of networks for images
BUCKETS = (25, 1, 2, 5, 100)  # MB, of ddp; the first is DDP's own
TRIAL_STEPS = 20
TRIAL_SECONDS = 1.0  # and as many steps at most, one at least


def slowest(seconds):
    """Of all ranks."""
    taken = torch.tensor([seconds])
    if arguments.mode == "ddp":
        torch.distributed.all_reduce(taken, torch.distributed.ReduceOp.MAX)
    return taken.item()


class Training:
    """A model and its optimizer in one setting."""

    def __init__(self, name, batches, memory_format, bucket_mb):
        network = networks.NETWORKS[name]
        self.batches = [(x.contiguous(memory_format=memory_format), y) for x, y in batches]
        self.memory_before = talk.memory_before()
        self.model = networks.make_model(name).to(memory_format=memory_format)
        if arguments.mode == "ddp":
            self.model = nn.parallel.DistributedDataParallel(
                self.model, gradient_as_bucket_view=True, static_graph=not network.sparse, bucket_cap_mb=bucket_mb)
        self.loss_of = network.loss
        self.optimizer = network.optimizer(self.model)
        self.words = f"{memory_format}" + (f", buckets of {bucket_mb} MB" if bucket_mb else "")
        self.last_loss, self.number = None, 0

    def train(self, steps):
        model, loss_of, optimizer, batches = self.model, self.loss_of, self.optimizer, self.batches
        for step in range(self.number, self.number + steps):
            x, y = batches[step % len(batches)]
            optimizer.zero_grad(set_to_none=True)
            self.last_loss = loss_of(model(x), y)
            self.last_loss.backward()
            optimizer.step()
        self.number += steps
        return steps

    def seconds(self, steps):
        begin = time.perf_counter()
        self.train(steps)
        return slowest(time.perf_counter() - begin)


def fastest(name, batches, settings):
    if len(settings) == 1:
        return settings[0]
    tried = [Training(name, batches, *setting) for setting in settings]
    longest = max(training.seconds(1) for training in tried)  # the first is warm-up
    steps = max(1, min(TRIAL_STEPS, int(TRIAL_SECONDS / longest)))
    times = [[training.seconds(steps) for training in tried] for _ in range(4)][1:]
    sums = [sum(of_one) for of_one in zip(*times)]
    return settings[sums.index(min(sums))]


class Trainer:
    """The training of a model that is the fastest, kept between commands."""

    def __init__(self, name, batch):
        batches = networks.batches(name, arguments.data, batch, arguments.rank, arguments.ranks)
        formats = FORMATS if networks.NETWORKS[name].images else FORMATS[1:]
        buckets = BUCKETS if arguments.mode == "ddp" else (None,)
        best_format, _ = fastest(name, batches, [(memory_format, buckets[0]) for memory_format in formats])
        self.training = Training(name, batches, *fastest(name, batches, [(best_format, bucket) for bucket in buckets]))
        self.words, self.memory_before = self.training.words, self.training.memory_before

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
