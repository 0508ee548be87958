"""Backend "tutti" for torch.distributed: import this module, then name the backend.

    import torch.distributed as dist
    import tutti.torch

    dist.init_process_group("tutti")

Groups are those of the C++ library: shared memory between processes of one host, TCP between hosts,
both where a host has several ranks. Tensors of GPUs go by way of the host. See docs/guide/pytorch.md.
"""

import atexit
import functools
import os
from datetime import timedelta

import torch  # noqa: F401  (its libraries must be loaded before ours)
import torch.distributed as dist

from tutti import _C

BACKEND = "tutti"
DEVICES = ["cpu", "cuda"]


def _create(options, _backend_options):
    return _C.create_backend(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id or "default",
        list(options.global_ranks_in_group),  # none: this is the world
        _ours(dist.group.WORLD) if options.global_ranks_in_group else None,
        # Other hosts reach this one at the address by which it reaches the store.
        os.environ.get("MASTER_ADDR", "") or _host_of(options.store),
        os.environ.get("TUTTI_INTERFACE", ""),
    )


def _host_of(store):
    """Where a TCPStore is, as init_method="tcp://HOST:PORT" makes one; "" of another store."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, dist.TCPStore) else ""


def _ours(group):
    """The group's backend of ours, for tensors of whatever device; None where it has none."""
    for device in DEVICES:
        try:
            backend = group._get_backend(torch.device(device))
        except RuntimeError:  # none for tensors of that device
            continue
        if isinstance(backend, _C.TuttiBackend):
            return backend
    return None


def engine(group=None):
    """What moves the data of `group`: "shm", "tcp", "hier" or "solo"."""
    backend = _ours(group or dist.group.WORLD)
    if backend is None:
        raise ValueError("tutti.torch.engine: backend tutti does not serve this group")
    return backend.engine


def _wrap_monitored_barrier(original):
    """torch.distributed asks for the name "gloo" before it calls a backend's monitored barrier."""

    @functools.wraps(original)
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        outside = group is dist.GroupMember.NON_GROUP_MEMBER
        if outside or dist.get_backend(group) != BACKEND:
            return original(group, timeout, wait_all_ranks)
        group = group or dist.group.WORLD
        if timeout is None:
            timeout = group._get_backend(torch.device("cpu")).options._timeout
        elif isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        return group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    return monitored_barrier


def _register():
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=DEVICES)
    wrapped = _wrap_monitored_barrier(dist.distributed_c10d.monitored_barrier)
    dist.distributed_c10d.monitored_barrier = wrapped
    dist.monitored_barrier = wrapped
    atexit.register(_C.leave)


_register()
