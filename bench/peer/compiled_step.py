"""Compiled PyTorch's side of `tutti_bench compare`: the fastest step that it is known to give on CPU cores.

  compiled_step.py MODE --data DIR --rank R --ranks N --threads T --cores 0,1 --store FILE --deepspeed LIBRARY

MODE  alone   forward, backward and Adam are one graph of inductor, by T threads
      ranks   one of N: a graph writes all gradients into one vector, DeepSpeed's shared memory adds
              it, a graph updates

Commands and answers are those of talk.py; the first of a model compiles it.
"""
import argparse
import os


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["alone", "ranks"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cores", default="", help="pinned to these")
    parser.add_argument("--store", default="", help="file through which ranks meet")
    parser.add_argument("--deepspeed", default="", help="what deepspeed_shm.py compiled")
    return parser.parse_args()


arguments = parse_arguments()
if arguments.cores:  # before torch makes its threads
    os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})

import torch  # noqa: E402
import torch._inductor.config as inductor  # noqa: E402
import torch.distributed as dist  # noqa: E402

import deepspeed_shm  # noqa: E402
import networks  # noqa: E402
import talk  # noqa: E402

inductor.cpp_wrapper = True  # no Python between kernels
inductor.compile_threads = 1
inductor.cpp_cache_precompile_headers = False  # 150 MB, outside of the cache that it is given
LAST = torch.channels_last


def compiled(function):
    return torch.compile(function, fullgraph=True, dynamic=False)


def adam(parameters, gradients, means, squares, steps):
    """As torch.optim.Adam computes it; in a graph its loops become one kernel with what is around."""
    steps.add_(1)
    mean_bias, square_bias = 1 - 0.9**steps, torch.sqrt(1 - 0.999**steps)
    for parameter, gradient, mean, square in zip(parameters, gradients, means, squares):
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        parameter.sub_((1e-3 / mean_bias) * mean / (torch.sqrt(square) / square_bias + 1e-8))


def zeros_like_each(tensors):
    return [torch.zeros_like(tensor) for tensor in tensors]


class Trainer:
    """One model with its optimizer, kept between commands."""

    def __init__(self, name, batch):
        torch.compiler.set_stance("default")
        torch._dynamo.reset()
        network = networks.NETWORKS[name]
        if network.not_compiled:
            raise talk.LeftOut(network.not_compiled)
        self.model = networks.make_model(name).requires_grad_(False)
        self.crossentropy = network.loss
        self.batches = networks.batches(name, arguments.data, batch, arguments.rank, arguments.ranks)
        if network.images:
            self.model = self.model.to(memory_format=LAST)
            self.batches = [(x.contiguous(memory_format=LAST), y) for x, y in self.batches]
        self.names, self.parameters = map(list, zip(*self.model.named_parameters()))
        self.buffers = dict(self.model.named_buffers())  # statistics of batch norms
        self.step = self.one_graph() if arguments.mode == "alone" else self.two_graphs()
        self.last_loss, self.number = None, 0
        first = [tensor.clone() for tensor in (*self.parameters, *self.buffers.values())]
        self.train(3)
        # The tensors stay the same from here on: what was compiled need not be checked against them.
        torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)
        self.begin_again(first)

    def begin_again(self, first):
        """With the first weights, and an optimizer that knows nothing."""
        for tensor, value in zip((*self.parameters, *self.buffers.values()), first):
            tensor.copy_(value)
        for tensor in self.optimizer_state:
            tensor.zero_()
        self.number = 0

    def loss_of(self, parameters, x, y):
        """And the buffers behind the pass."""
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        outputs = torch.func.functional_call(self.model, dict(zip(self.names, parameters)) | buffers, (x,))
        return self.crossentropy(outputs, y), list(buffers.values())

    def differentiate(self, parameters, x, y):
        gradients, (loss, buffers) = torch.func.grad_and_value(self.loss_of, has_aux=True)(parameters, x, y)
        for buffer, value in zip(self.buffers.values(), buffers):
            buffer.copy_(value)
        return gradients, loss

    def one_graph(self):
        state = [self.parameters, zeros_like_each(self.parameters), zeros_like_each(self.parameters),
                 torch.zeros(())]
        self.optimizer_state = [*state[1], *state[2], state[3]]

        @compiled
        def step(state, x, y):
            parameters, means, squares, steps = state
            gradients, loss = self.differentiate(parameters, x, y)
            adam(parameters, gradients, means, squares, steps)
            return loss

        return lambda x, y: step(state, x, y)

    def two_graphs(self):
        # Parameters and gradients are views of a vector each, in their own order of memory.
        parameters = torch.cat([p.permute(0, 2, 3, 1).reshape(-1) if p.dim() == 4 else p.reshape(-1)
                                for p in self.parameters])
        gradients, means, squares = (torch.zeros_like(parameters) for _ in range(3))
        steps = torch.zeros(())
        views, gradient_views = self.views_of(parameters), self.views_of(gradients)
        self.parameters, self.optimizer_state = views, [means, squares, steps]

        @compiled
        def differentiate(views, gradient_views, x, y):
            found, loss = self.differentiate(views, x, y)
            for view, gradient in zip(gradient_views, found):
                view.copy_(gradient)
            return loss

        @compiled
        def update(parameters, gradients, means, squares, steps):
            adam([parameters], [gradients * (1 / arguments.ranks)], [means], [squares], steps)

        def step(x, y):
            loss = differentiate(views, gradient_views, x, y)
            deepspeed_shm.all_reduce(gradients)
            update(parameters, gradients, means, squares, steps)
            return loss

        return step

    def views_of(self, vector):
        parts = vector.split([p.numel() for p in self.parameters])
        return [part.view(p.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2) if p.dim() == 4 else part.view(p.shape)
                for part, p in zip(parts, self.parameters)]

    def train(self, steps):
        step, batches = self.step, self.batches
        for number in range(self.number, self.number + steps):
            self.last_loss = step(*batches[number % len(batches)])
        self.number += steps
        return steps

    def loss(self):
        return self.last_loss.item()


def main():
    torch.set_flush_denormal(True)  # threads made from here on inherit it
    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    hello = {"torch": torch.__version__}
    if arguments.mode == "alone":
        talk.answer_commands(Trainer, hello)
        return
    store = dist.FileStore(arguments.store, arguments.ranks)
    dist.init_process_group("gloo", store=store, rank=arguments.rank, world_size=arguments.ranks)
    deepspeed_shm.start(arguments.deepspeed, os.path.basename(arguments.store))
    talk.answer_commands(Trainer, hello, dist.barrier)
    dist.destroy_process_group()


main()
