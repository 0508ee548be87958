"""PyTorch's own class of distributed tests, with backend tutti in its lists of backends.

The class lives in the torch wheel (torch.testing._internal.distributed.distributed_test). Its lists
name the backends for which a test runs, so wherever they name gloo this copy in memory names tutti
too; nothing else is changed. Which backend runs is told by the environment variable BACKEND, as
upstream has it.

Test processes are forked from one that has imported all this and done nothing else (no thread runs,
no group exists), as upstream's test_distributed_fork.py did: importing takes ten times as long as
most tests do.
"""

import importlib.util
import re
import sys

import torch
import torch.testing._internal.common_distributed as common
import tutti.torch  # noqa: F401  (registers the backend)

NAME = "torch.testing._internal.distributed.distributed_test"

# (what, with what, how often at least): fewer means that upstream's text has changed.
CHANGES = [
    (r'BACKEND != "gloo"', 'BACKEND not in ("gloo", "tutti")', 15),
    (r'BACKEND == "gloo"', 'BACKEND in ("gloo", "tutti")', 1),
    (r'is_available\(\{"gloo"\}\)', 'is_available({"gloo", "tutti"})', 15),
    # LibTorch calls every backend from outside its tree "custom" in DDP's log.
    (
        r'("backend_name"\), )(dist\.get_backend\(group_id\))',
        r'\1"custom" if BACKEND == "tutti" else \2',
        1,
    ),
    (r"(?m)^    dist\.Backend\.GLOO,$", "    dist.Backend.GLOO,\n    dist.Backend.TUTTI,", 3),
]


def _add_to_features():
    """What gloo can do and cannot do, tutti can and cannot."""
    cases = common.DistTestCases
    for backends in [*cases.skip_collective.values(), *cases.backend_feature.values()]:
        if "gloo" in backends:
            backends.add("tutti")
    cases.backend_feature["plugin"].add("tutti")


def _load():
    spec = importlib.util.find_spec(NAME)
    with open(spec.origin) as file:
        source = file.read()
    for pattern, replacement, at_least in CHANGES:
        source, count = re.subn(pattern, replacement, source)
        if count < at_least:
            raise RuntimeError(
                f"{spec.origin}: {count} places like {pattern}, expected {at_least} or more; "
                "this torch has other tests than the runner knows"
            )
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module  # objects that tests send to each other are pickled by this name
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    return module


_add_to_features()
_tests = _load()


class TorchTests(_tests.TestDistBackend, _tests.DistributedTest._DistTestBase):
    """One process a rank for each test."""

    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
