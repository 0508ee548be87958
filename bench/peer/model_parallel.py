"""PyTorch's side of bench/model_parallel.py: one of two ranks over Gloo, which stays and waits for work.

  model_parallel.py MODE --rank R --store FILE --schedule 1f1b --width W --layers L --rows N

MODE  pipeline-mlp, pipeline-gpt   torch.distributed.pipelining: a stage a rank
      tensor                       parallelize_module: ColwiseParallel, RowwiseParallel
      sharded-mlp, sharded-gpt     FSDP2: fully_shard of each layer or block, and of the whole; Adam, fused
The models are those of bench/model_parallel.cpp. Prints a line when it has started, then answers each
number of steps on stdin by a line {"step_ms": T}. A step is forward and backward, of the
sharded modes the update too; gradients are dropped before it.
"""
import argparse
import gc
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleGPipe,
                                          ScheduleInterleavedZeroBubble)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

RANKS = 2
CONTEXT, WORDS, HEADS = 64, 65, 4
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "zb-h1": ScheduleInterleavedZeroBubble}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["pipeline-mlp", "pipeline-gpt", "tensor", "sharded-mlp", "sharded-gpt"])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="1f1b")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=32)
    return parser.parse_args()


class Block(nn.Module):
    """A block of GPT-2."""

    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).split(width, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.ln_2(x))


class Words(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, width), nn.Embedding(CONTEXT, width)

    def forward(self, tokens):
        return self.wte(tokens) + self.wpe.weight


def gpt_layers(arguments, first=True, last=True):
    layers = [Block(arguments.width) for _ in range(arguments.layers)]
    if first:
        layers.insert(0, Words(arguments.width))
    if last:
        layers += [nn.LayerNorm(arguments.width), nn.Linear(arguments.width, WORDS, bias=False)]
    return layers


def mlp_layers(arguments):
    return [nn.Sequential(nn.Linear(arguments.width, arguments.width), nn.ReLU())
            for _ in range(arguments.layers)]


def samples(gpt, rows, width):
    if gpt:
        return [torch.randint(WORDS, (rows, CONTEXT)) for _ in range(2)]
    return [torch.randn(rows, width) for _ in range(2)]


def loss(output, target):
    if target.is_floating_point():
        return nn.functional.mse_loss(output, target)
    return nn.functional.cross_entropy(output.view(-1, WORDS), target.view(-1))


def pipeline_step(arguments):
    gpt = arguments.mode == "pipeline-gpt"
    layers = gpt_layers(arguments, arguments.rank == 0, arguments.rank == 1) if gpt else mlp_layers(arguments)
    net = nn.Sequential(*layers)
    x, y = samples(gpt, arguments.rows * arguments.microbatches, arguments.width)
    stage = PipelineStage(net, arguments.rank, RANKS, torch.device("cpu"))
    stages = [stage] if arguments.schedule == "zb-h1" else stage
    schedule = SCHEDULES[arguments.schedule](stages, arguments.microbatches, loss_fn=loss)

    def step():
        net.zero_grad(set_to_none=True)
        if arguments.rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=[])

    return step


def tensor_step(arguments):
    width = arguments.width
    net = nn.Sequential(*(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                          for _ in range(arguments.layers)))
    plan = {}
    for i in range(arguments.layers):
        plan |= {f"{i}.0": ColwiseParallel(), f"{i}.2": RowwiseParallel()}
    net = parallelize_module(net, init_device_mesh("cpu", (RANKS,)), plan)
    x = torch.linspace(-1, 1, arguments.rows * width).sin().view(arguments.rows, width)

    def step():
        net.zero_grad(set_to_none=True)
        net(x).square().mean().backward()

    return step


def sharded_step(arguments):
    gpt = arguments.mode == "sharded-gpt"
    layers = gpt_layers(arguments) if gpt else mlp_layers(arguments)
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in layers:
        if not gpt or isinstance(layer, Block):
            fully_shard(layer, mesh=mesh)
    net = fully_shard(nn.Sequential(*layers), mesh=mesh)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    x, y = samples(gpt, arguments.rows, arguments.width)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(net(x), y).backward()
        optimizer.step()

    return step


STEPS = {"pipeline": pipeline_step, "tensor": tensor_step, "sharded": sharded_step}


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("gloo", store=dist.FileStore(arguments.store, RANKS), rank=arguments.rank,
                            world_size=RANKS)
    step = STEPS[arguments.mode.split("-")[0]](arguments)
    for _ in range(5):
        step()
    gc.collect()
    gc.disable()
    print("{}", flush=True)
    for line in sys.stdin:
        steps = int(line)
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        print(json.dumps({"step_ms": 1000 * (time.perf_counter() - begin) / steps}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
