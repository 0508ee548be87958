"""PyTorch's own training tools over backend tutti: DDP, FSDP2, DTensor, distributed checkpoints.

    python -m unittest python/tests/test_training.py      (make python-test)
"""

import pathlib
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from test_backend import RanksTest, expect_equal
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2
BATCH = 8


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5))


def samples(step):
    """The global batch of a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH * RANKS, 12, generator=generator)
    return x, torch.randint(5, (BATCH * RANKS,), generator=generator)


def train(model, optimizer, steps, rank=None):
    """Plain steps; with a rank, on its half of each batch."""
    for step in steps:
        x, y = samples(step)
        if rank is not None:
            x, y = x.chunk(RANKS)[rank], y.chunk(RANKS)[rank]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def trained_alone(steps):
    """The oracle: one process with the whole batch."""
    model = make_model()
    train(model, torch.optim.Adam(model.parameters(), lr=0.01), steps)
    return model.state_dict()


def expect_close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Training(RanksTest):
    def test_ddp_trains_as_one_process_does(self):
        def body(rank, ranks):
            for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
                model = nn.parallel.DistributedDataParallel(
                    make_model(), bucket_cap_mb=0.0005, **options
                )  # several buckets, so several operations in flight
                train(model, torch.optim.Adam(model.parameters(), lr=0.01), range(10), rank)
                for name, value in trained_alone(range(10)).items():
                    mine = model.module.state_dict()[name]
                    expect_close(mine, value)
                    theirs = mine.clone()
                    dist.broadcast(theirs, 0)
                    expect_equal(mine, theirs)

        self.run_ranks(body, RANKS)

    def test_ddp_hook_of_two_operations(self):
        """A hook whose callback waits for a second all-reduce, as PowerSGD's does."""

        def hook(group, bucket):
            def again(future):
                half = future.value()[0] / (2 * RANKS)
                second = dist.all_reduce(half.clone(), async_op=True).get_future().wait()[0]
                return half + second / RANKS

            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(again)

        def body(rank, ranks):
            # One bucket: with several, callbacks of one and the start of another could come in
            # different orders on two ranks.
            model = nn.parallel.DistributedDataParallel(make_model())
            model.register_comm_hook(dist.group.WORLD, hook)
            train(model, torch.optim.Adam(model.parameters(), lr=0.01), range(5), rank)
            for name, value in trained_alone(range(5)).items():
                expect_close(model.module.state_dict()[name], value)

        self.run_ranks(body, RANKS)

    @unittest.skipUnless(
        hasattr(torch.cpu.Stream, "record_event"), "fully_shard of this PyTorch takes no CPU"
    )
    def test_fsdp2_and_its_checkpoint(self):
        def sharded(mesh):
            model = make_model()
            for layer in model:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            return model, torch.optim.Adam(model.parameters(), lr=0.01)

        def body(rank, ranks):
            mesh = init_device_mesh("cpu", (ranks,))
            model, optimizer = sharded(mesh)
            train(model, optimizer, range(5), rank)
            wanted = trained_alone(range(5))
            for name, value in model.state_dict().items():
                expect_close(full(value), wanted[name])

            folder = [tempfile.mkdtemp() if rank == 0 else None]
            dist.broadcast_object_list(folder)
            weights, state = get_state_dict(model, optimizer)
            checkpoint.save({"model": weights, "optim": state}, checkpoint_id=folder[0])
            if rank == 0:
                assert list(pathlib.Path(folder[0]).glob("*.distcp"))

            # Another model takes the checkpoint up and goes on as the first would.
            other, other_optimizer = sharded(mesh)
            train(other, other_optimizer, range(100, 102), rank)
            weights, state = get_state_dict(other, other_optimizer)
            checkpoint.load({"model": weights, "optim": state}, checkpoint_id=folder[0])
            set_state_dict(
                other, other_optimizer, model_state_dict=weights, optim_state_dict=state
            )
            train(model, optimizer, range(5, 8), rank)
            train(other, other_optimizer, range(5, 8), rank)
            for (name, one), two in zip(model.state_dict().items(), other.state_dict().values()):
                expect_equal(full(one), full(two))

        self.run_ranks(body, RANKS)

    def test_meshes_of_two_dimensions(self):
        def body(rank, ranks):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
            data = torch.tensor([float(rank)])
            dist.all_reduce(data, group=mesh.get_group("rows"))
            expect_equal(data, torch.tensor([float(rank % 2 + rank % 2 + 2)]))
            data = torch.tensor([float(rank)])
            dist.all_reduce(data, group=mesh.get_group("columns"))
            expect_equal(data, torch.tensor([float(4 * (rank // 2) + 1)]))

        self.run_ranks(body, 4)


if __name__ == "__main__":
    unittest.main()
