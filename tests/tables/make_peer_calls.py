#!/usr/bin/env python3
"""Writes peer_calls.json: the public calls by which PyTorch, TensorFlow, Keras and Horovod distribute.

    pip install torch tensorflow keras
    pip download --no-deps --no-build-isolation --no-binary :all: horovod && tar xf horovod-*.tar.gz
    python tests/tables/make_peer_calls.py horovod-0.28.1

The first three are asked what they have; of Horovod, which takes a compiler and MPI to install, the
sources are read. The tables of docs/guide/from_*.md are checked against these names by
tools/lint/peers.py: a page's tables are its *places*, each with the names that are looked up in it;
`f()` is the place of the arguments of f.
"""

import ast
import importlib
import inspect
import json
import os
import pathlib
import pkgutil
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
warnings.simplefilter("ignore")


def public(names):
    return sorted({name for name in names if not name.startswith("_")})


def members(owner, owned_by=None):
    """What can be called in a module or class; of a module what `owned_by` it, not what it imports."""
    result = []
    for name in public(dir(owner)):
        value = getattr(owner, name, None)
        if inspect.ismodule(value) or (inspect.ismodule(owner) and not callable(value)):
            continue
        if owned_by and not (getattr(value, "__module__", None) or "").startswith(owned_by):
            continue
        result.append(name)
    return result


def arguments(function):
    return [name for name in inspect.signature(function).parameters if name not in ("self", "kwargs")]


def of_torch():
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as ddp

    def own(module):
        module = importlib.import_module(module)
        return members(module, module.__name__)

    functional = importlib.import_module("torch.distributed.nn.functional")
    hooks = "torch.distributed.algorithms.ddp_comm_hooks"
    hook_files = public(m.name for m in pkgutil.iter_modules(importlib.import_module(hooks).__path__))
    optimizers = importlib.import_module("torch.distributed.optim")
    averaging = "torch.distributed.algorithms.model_averaging"
    joins = importlib.import_module("torch.distributed.algorithms.join")
    sampler = torch.utils.data.distributed.DistributedSampler
    places = {
        "torch.nn.parallel.DistributedDataParallel()": arguments(ddp.__init__),
        "torch.nn.parallel.DistributedDataParallel": public(vars(ddp)),
        "torch.distributed": members(dist, "torch"),
        "torch.distributed.Work": members(dist.Work),
        "torch.distributed.Store": members(dist.Store),
        "torch.distributed.ReduceOp": [
            name for name in public(vars(dist.ReduceOp.RedOpType)) if name.isupper()
        ],
        "torch.distributed.nn.functional": [
            name for name in own(functional.__name__) if not name[0].isupper()
        ],
        hooks: public(name for file in hook_files for name in own(f"{hooks}.{file}")),
        "torch.distributed.algorithms": members(joins, joins.__name__),
        averaging: own(f"{averaging}.averagers")
        + own(f"{averaging}.hierarchical_model_averager")
        + own(f"{averaging}.utils"),
        "torch.distributed.optim": members(optimizers, optimizers.__name__),
        "torch.utils.data.distributed.DistributedSampler": public(vars(sampler)),
        "torch.nn.SyncBatchNorm": public(vars(torch.nn.SyncBatchNorm)),
        "packages of torch.distributed": public(m.name for m in pkgutil.iter_modules(dist.__path__)),
    }
    return [f"torch {torch.__version__.partition('+')[0]}"], places


def of_keras():
    import keras
    import tensorflow as tf

    dist = tf.distribute
    base = members(dist.Strategy)
    options = dist.experimental.CommunicationOptions

    def extra(strategy):
        return [name for name in members(strategy) if name not in base]

    def fields(names):
        return [name for name in names if name not in ("index", "count")]  # of any tuple

    places = {
        "tf.distribute": members(dist),
        "tf.distribute.cluster_resolver": members(dist.cluster_resolver),
        "tf.distribute.coordinator": members(dist.coordinator),
        "tf.distribute.experimental": members(dist.experimental),
        "tf.distribute.experimental.coordinator": members(dist.experimental.coordinator),
        "tf.distribute.experimental.partitioners": members(dist.experimental.partitioners),
        "tf.distribute.experimental.rpc": members(dist.experimental.rpc),
        "tf.distribute.MirroredStrategy()": arguments(dist.MirroredStrategy.__init__),
        "tf.distribute.MultiWorkerMirroredStrategy()": arguments(
            dist.MultiWorkerMirroredStrategy.__init__
        ),
        "tf.distribute.ParameterServerStrategy()": arguments(dist.ParameterServerStrategy.__init__),
        "tf.distribute.TPUStrategy()": arguments(dist.TPUStrategy.__init__),
        "tf.distribute.Strategy": base,
        "tf.distribute.TPUStrategy": extra(dist.TPUStrategy),
        "tf.distribute.StrategyExtended": members(dist.StrategyExtended),
        "tf.distribute.ReplicaContext": members(dist.ReplicaContext),
        "tf.distribute.ReduceOp": public(dist.ReduceOp.__members__),
        "tf.distribute.InputContext": members(dist.InputContext),
        "tf.distribute.InputOptions": fields(members(dist.InputOptions)),
        "tf.distribute.RunOptions": fields(members(dist.RunOptions)),
        "tf.distribute.DistributedDataset": members(dist.DistributedDataset),
        "tf.distribute.DistributedIterator": members(dist.DistributedIterator),
        "tf.distribute.CrossDeviceOps": members(dist.CrossDeviceOps),
        "tf.distribute.Server": members(dist.Server),
        "tf.distribute.coordinator.ClusterCoordinator": members(dist.coordinator.ClusterCoordinator),
        "tf.distribute.coordinator.RemoteValue": members(dist.coordinator.RemoteValue),
        "tf.distribute.experimental.CommunicationOptions()": arguments(options.__init__),
        "tf.distribute.experimental.PreemptionCheckpointHandler": members(
            dist.experimental.PreemptionCheckpointHandler
        ),
        "keras.Model.compile()": arguments(keras.Model.compile),
        "keras.Model.fit()": arguments(keras.Model.fit),
        "keras.Model.evaluate()": arguments(keras.Model.evaluate),
        "keras.Model.predict()": arguments(keras.Model.predict),
        "keras.Model": members(keras.Model),
        "keras.callbacks": members(keras.callbacks),
        "keras.callbacks.Callback": members(keras.callbacks.Callback),
    }
    return [f"tensorflow {tf.__version__}", f"keras {keras.__version__}"], places


class Horovod:
    """Names in the sources of Horovod."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder, "horovod")

    def parsed(self, file):
        return ast.parse((self.folder / file).read_text())

    def find(self, file, name):
        return next(n for n in ast.walk(self.parsed(file)) if getattr(n, "name", None) == name)

    def names(self, file):
        """What a module gives: functions and classes, and what it imports of Horovod."""
        result = []
        for node in ast.walk(self.parsed(file)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("horovod."):
                result += [a.asname or a.name for a in node.names]
        result += [
            n.name for n in self.parsed(file).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))
        ]
        return public(result)

    def members(self, file, name, *bases):
        result = [n.name for n in self.find(file, name).body if isinstance(n, ast.FunctionDef)]
        return public(result + [m for base in bases for m in self.members(*base)])

    def arguments(self, file, name):
        spec = self.find(file, name).args
        return [argument.arg for argument in spec.args + spec.kwonlyargs]

    def version(self):
        text = (self.folder / "__init__.py").read_text()
        return ast.literal_eval(text.split("__version__ =")[1].splitlines()[0].strip())


def of_horovod(folder):
    sources = Horovod(folder)
    state = ("common/elastic.py", "State")
    keras = "horovod.tensorflow.keras"
    hidden = ("check_extension", "is_version_greater_equal_than", "run_fn")
    inside = ("callbacks", "elastic")  # places of their own

    def names(file, *left_out):
        return [name for name in sources.names(file) if name not in (*hidden, *left_out)]

    places = {
        "horovod.torch": names("torch/__init__.py", *inside),
        "horovod.torch.DistributedOptimizer()": sources.arguments(
            "torch/optimizer.py", "DistributedOptimizer"
        ),
        "horovod.torch.DistributedOptimizer": [
            name
            for name in sources.members("torch/optimizer.py", "_DistributedOptimizer")
            if name != "find_duplicates"
        ],
        "horovod.torch.Compression": [
            target.id
            for node in sources.find("torch/compression.py", "Compression").body
            if isinstance(node, ast.Assign)
            for target in node.targets
        ],
        "horovod.torch.ProcessSet": sources.members("common/process_sets.py", "ProcessSet"),
        "horovod.torch.elastic": names("torch/elastic/__init__.py", "init", "shutdown"),
        "horovod.torch.elastic.TorchState": sources.members(
            "torch/elastic/state.py", "TorchState", state
        ),
        "horovod.torch.elastic.ElasticSampler": sources.members(
            "torch/elastic/sampler.py", "ElasticSampler"
        ),
        keras: names("tensorflow/keras/__init__.py", *inside),
        f"{keras}.DistributedOptimizer()": sources.arguments(
            "tensorflow/keras/__init__.py", "DistributedOptimizer"
        ),
        f"{keras}.callbacks": names("tensorflow/keras/callbacks.py"),
        f"{keras}.elastic": names("tensorflow/keras/elastic.py"),
        "horovod.run()": sources.arguments("runner/__init__.py", "run"),
    }
    return [f"horovod {sources.version()}"], places


def main(arguments_):
    if len(arguments_) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    pages = {
        "docs/guide/from_ddp.md": of_torch(),
        "docs/guide/from_keras.md": of_keras(),
        "docs/guide/from_horovod.md": of_horovod(arguments_[0]),
    }
    table = {page: {"versions": v, "places": places} for page, (v, places) in pages.items()}
    text = json.dumps(table, indent=1)
    out = pathlib.Path(__file__).with_name("peer_calls.json")
    out.write_text(text + "\n")
    for page, (versions, places) in pages.items():
        count = sum(len(names) for names in places.values())
        print(f"{page}: {count} calls in {len(places)} places, of {', '.join(versions)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
