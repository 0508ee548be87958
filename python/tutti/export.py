"""From a module of PyTorch to files that tutti trains without Python: net.pt2 and net.eval.pt2.

    python -m tutti.export mynets:resnet --input float32[8,3,32,32] --out net.pt2

or, in a program,

    from tutti.export import export

    print(export(module, torch.randn(8, 3, 32, 32), "net.pt2"))

net.pt2 is what the module does in train(), net.eval.pt2 what it does in eval(): torch.export keeps one
of the two. The first dimension of every input is the batch, which may then be any number of samples.
What is in the files but for weights and graph is taken out: the example inputs, which torch.export.save
pickles, and the folders in which the sources lie. Both files are loaded again and compared with the
module: outputs, gradients and buffers. Trained weights come back with load_weights().

Needs torch alone (made with 2.13): no part of this module imports the backend of tutti.torch, so it runs
from a checkout too, with PYTHONPATH=python. docs/guide/from_python.md goes through all of it.
"""

import collections
import contextlib
import dataclasses
import os
import pathlib
import re
import sys
import sysconfig
import tempfile
import warnings

import torch
from torch.utils import _pytree as pytree

# What tutti's executor serves of what is no aten operator (docs/formats/pt2.md).
CONTROL_FLOW = ("cond", "wrap_with_set_grad_enabled", "wrap_with_autocast")
MOST_DIFFERENCE = 1e-5  # of the largest number of a tensor, between the loaded program and the module


class ExportError(ValueError):
    """Why a module was not exported, and what to change."""


@dataclasses.dataclass
class Made:
    """A file that was written."""

    path: pathlib.Path
    mode: str  # "train" or "eval"
    bytes: int
    operators: collections.Counter  # by name
    batch: str  # which batches it takes, in words
    compared: int  # tensors: outputs, gradients, buffers
    difference: float  # the largest of theirs, relative to the largest number of the tensor

    def __str__(self):
        same = "equal bits" if self.difference == 0 else f"{self.difference:.1e} apart at most"
        return (
            f"{self.path}: {self.mode}(), {_size(self.bytes)}, {sum(self.operators.values())} operators "
            f"of {len(self.operators)} kinds, {self.batch}; loaded again: {self.compared} tensors, {same}"
        )


@dataclasses.dataclass
class Report:
    """What export() made. str() of it is for people."""

    files: list
    parameters: int  # numbers, not tensors
    trained: int  # those of them with requires_grad
    buffers: int
    inputs: list  # "x float32[batch, 3, 32, 32]", in the order in which C++ takes them

    def __str__(self):
        frozen = "" if self.trained == self.parameters else f", {self.trained:,} of them trained"
        return "\n".join(
            [
                f"inputs: {', '.join(self.inputs)}",
                f"parameters: {self.parameters:,}{frozen}; buffers: {self.buffers:,}",
                *map(str, self.files),
            ]
        )


def export(
    module,
    example_inputs,
    out,
    *,
    eval_out=None,
    dynamic=None,
    dynamic_shapes=None,
    stack="relative",
    check=True,
):
    """Writes `out` and its companion for eval(); returns a Report.

    module          a torch.nn.Module. One that is in train() is exported as it stands: parts of it that
                    were put into eval() stay so
    example_inputs  what forward() takes: a tensor, a tuple of arguments, or a dict of arguments by
                    name; each may hold dicts and lists of tensors. Two samples at least
    out             a path that ends in .pt2
    eval_out        where the file of eval() goes: net.eval.pt2 beside net.pt2; False: nowhere
    dynamic         further dimensions that may change, by the path of the input:
                    {"ids": {1: "length"}}. False: none, the batch neither
    dynamic_shapes  instead of `dynamic`, what torch.export.export takes under that name
    stack           what becomes of the lines of Python that each operator comes from: "relative" (to
                    the folder of this process, or of the installed packages), "keep", or "drop"
    check           load both files again, and compare them with the module on other inputs

    Throws ExportError with what to change: a batch that the module fixes, control flow that depends on
    values, an operator that is none, a program that was decomposed; where a file computes something
    else than the module; and where the companion of an earlier export would stay beside `out`. Both
    files appear, whole, or none does and earlier ones stay.
    """
    _require_module(module)
    if stack not in ("relative", "keep", "drop"):
        raise ExportError(f'stack: got {stack!r}, expected "relative", "keep" or "drop"')
    out = pathlib.Path(out)
    if out.suffix != ".pt2" or out.name.endswith(".eval.pt2"):
        raise ExportError(f"out: got {str(out)!r}, expected a path like net.pt2")
    companion = out.with_suffix(".eval.pt2")
    if eval_out is None or eval_out is True:
        eval_out = companion
    if companion.exists() and (eval_out is False or pathlib.Path(eval_out) != companion):
        raise ExportError(
            f"{companion} is of an earlier export, and would be taken for the companion of the new "
            f"{out.name}: remove it, or have it written anew (eval_out, no --no-eval)"
        )
    paths = [("train", out)] + ([] if eval_out is False else [("eval", pathlib.Path(eval_out))])
    args, kwargs = _arguments(example_inputs)
    shapes = dynamic_shapes
    if shapes is None and dynamic is not False:
        shapes = _dynamic_shapes(module, args, kwargs, dynamic or {})

    files = []
    was = {part: part.training for part in module.modules()}
    with contextlib.ExitStack() as made, _all_or_none() as place:
        try:
            for mode, path in paths:
                if mode == "eval":
                    module.eval()
                elif not module.training:
                    module.train()
                program = _export_one(module, args, kwargs, shapes, mode)
                operators = _operators(program)
                _name_tuples(program.call_spec.in_spec)
                _name_tuples(program.call_spec.out_spec)
                _take_out(program, stack)
                new = made.enter_context(_folder_beside(path)) / path.name
                file = _write(module, program, new, (args, kwargs), mode, check)
                files.append(dataclasses.replace(file, path=path, operators=operators))
                inputs = _inputs(program)
                place.append((new, path))
        finally:
            for part, training in was.items():
                part.training = training
    count = lambda tensors: sum(t.numel() for t in tensors)
    return Report(
        files,
        count(module.parameters()),
        count(p for p in module.parameters() if p.requires_grad),
        count(module.buffers()),
        inputs,
    )


def load_weights(module, path):
    """Loads what Model::save or `tutti train --out` wrote into the module that was exported, and
    nothing less: load_state_dict(strict=True). A weight that the module has under several names stands
    in the file under one of them."""
    from safetensors.torch import load_file

    tensors = load_file(str(path))
    for names in _names_of_one(module):
        held = next((name for name in names if name in tensors), None)
        for name in names if held else ():
            tensors.setdefault(name, tensors[held])
    module.load_state_dict(tensors, strict=True)


def _names_of_one(module):
    """The names of each tensor of the state dict, lists of one mostly."""
    found = {}
    for name, tensor in _state(module):
        found.setdefault(id(tensor), []).append(name)
    return found.values()


def _state(module):
    """Parameters and buffers by name; a module's extra state, which may be anything, is in no file."""
    state = module.state_dict(keep_vars=True)
    return [(name, tensor) for name, tensor in state.items() if isinstance(tensor, torch.Tensor)]


# ---- what is exported


def _require_module(module):
    if isinstance(module, torch.export.ExportedProgram):
        dialect = " and ".join(v.dialect for v in module.verifiers)
        raise ExportError(
            f"got an ExportedProgram (dialect {dialect}), expected the torch.nn.Module itself.\n"
            "A program after run_decompositions() has lost no_grad regions and dropout of LSTMs: its "
            "gradients would be wrong"
        )
    if not isinstance(module, torch.nn.Module):
        hint = ""
        if isinstance(module, type) and issubclass(module, torch.nn.Module):
            hint = f": a class; call it, {module.__name__}(...)"
        elif callable(module):
            hint = ": a function; put it into the forward() of a torch.nn.Module"
        raise ExportError(f"got {type(module).__name__}, expected a torch.nn.Module{hint}")
    if isinstance(module, torch.jit.ScriptModule):
        raise ExportError(
            f"got {type(module).__name__} of TorchScript, expected the Python module it was made of"
        )
    for name, tensor in _state(module):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise ExportError(
                f'"{name}" is a {type(tensor).__name__}, which torch.export.save pickles; expected a '
                "plain tensor or parameter"
            )


def _arguments(example_inputs):
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    if isinstance(example_inputs, dict) and all(isinstance(name, str) for name in example_inputs):
        return (), dict(example_inputs)
    raise ExportError(
        f"example_inputs: got {type(example_inputs).__name__}, expected a tensor, a tuple of arguments, "
        "or a dict of arguments by name"
    )


def _tensors(module, args, kwargs):
    """(path, tensor) of each input that is one: "x", "batch.ids", "states.0"."""
    import inspect

    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise ExportError(f"{type(module).__name__}.forward(): {error}") from None
    leaves, _ = pytree.tree_flatten_with_path(dict(bound))
    word = lambda key: str(getattr(key, "key", getattr(key, "idx", key)))
    return [(".".join(map(word, path)), x) for path, x in leaves if isinstance(x, torch.Tensor)]


def _dynamic_shapes(module, args, kwargs, further):
    """The batch of every input that has one, and the dimensions that `further` names."""
    tensors = _tensors(module, args, kwargs)
    if unknown := sorted(set(further) - {path for path, _ in tensors}):
        names = ", ".join(path for path, _ in tensors)
        raise ExportError(f'dynamic: no input "{unknown[0]}"; there are {names}')
    batches = [t.shape[0] for _, t in tensors if t.dim() > 0]
    if not batches:
        return None
    if batches[0] < 2:
        raise ExportError(
            f"example_inputs: a batch of {batches[0]}, expected 2 or more: torch.export takes a size of 0 "
            "or 1 for a constant (dynamic=False, --fixed, exports for this batch alone)"
        )
    dims = {}
    named = lambda name: dims.setdefault(name, torch.export.Dim(name))
    shapes = torch.export.ShapesCollection()
    for path, tensor in tensors:
        shape = {0: named("batch")} if tensor.dim() > 0 and tensor.shape[0] == batches[0] else {}
        for dim, name in further.get(path, {}).items():
            if not -tensor.dim() <= dim < tensor.dim():
                raise ExportError(f'dynamic: "{path}" has {tensor.dim()} dimensions, not {dim}')
            shape[dim % tensor.dim()] = named(name)
        if shape:
            shapes[tensor] = shape
    return shapes.dynamic_shapes(module, args, kwargs)


def _export_one(module, args, kwargs, shapes, mode):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
    except Exception as error:  # torch throws some twenty kinds
        raise ExportError(f"{mode}(): {_why(error)}") from error
    served = lambda node: str(node.target).split(".")[-1] in CONTROL_FLOW
    for node in _calls(program):
        if isinstance(node.target, torch._ops.HigherOrderOperator) and not served(node):
            raise ExportError(
                f"{mode}(): {node.target} is control flow that tutti does not run "
                f"(it runs {', '.join(CONTROL_FLOW)}); {_line_of(node)}"
            )
    return program


def _why(error):
    """The reason and the way out first; what torch said below."""
    said = str(error).strip()
    first = f"{type(error).__name__}: {said}"
    if "Constraints violated" in said:
        return (
            "the module fixes a dimension that is to be any number: it uses its size as a Python number "
            "(float(x.shape[0]), max(batch // 2, 1), view(4, -1)). Use -1 in views, keep sizes as they "
            f"are, or export for one size (dynamic=False, --fixed).\n{first}"
        )
    if "data-dependent" in said or type(error).__name__ == "GuardOnDataDependentSymNode":
        return (
            "control flow depends on values of tensors (if x.sum() > 0: ..., .item(), nonzero()). Write "
            f"it with torch.where or torch.cond, or tell sizes with torch._check.\n{first}"
        )
    return first


def _name_tuples(spec):
    """Classes of named tuples have a name in a file once they are registered, and so in this process."""
    made = spec.context if spec.type is collections.namedtuple else spec.type
    if pytree.is_namedtuple_class(made) and made not in pytree.SUPPORTED_SERIALIZED_TYPES:
        name = f"{made.__module__}.{made.__qualname__}"
        pytree._register_namedtuple(made, serialized_type_name=name)
    for child in spec.children():
        _name_tuples(child)


def _calls(program):
    for graph in program.graph_module.modules():
        if isinstance(graph, torch.fx.GraphModule):
            yield from (node for node in graph.graph.nodes if node.op == "call_function")


def _operators(program):
    name = lambda target: str(target) if "." in str(target) else getattr(target, "__name__", str(target))
    counted = collections.Counter(name(node.target) for node in _calls(program))
    counted.pop("getitem", None)  # stands in no file
    return counted


def _line_of(node):
    lines = re.findall(r'File "([^"]*)", line (\d+), in', node.meta.get("stack_trace") or "")
    return f"at {lines[-1][0]}:{lines[-1][1]}" if lines else "at a line that is not known"


def _sizes(program):
    """Names of the symbols that stand for sizes, in the order of the inputs: the batch comes first."""
    found = {}
    for node in _placeholders(program):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if not isinstance(size, int) and str(size).isidentifier():
                found.setdefault(str(size), f"n{len(found)}" if found else "batch")
    return found


def _placeholders(program):
    names = set(program.graph_signature.user_inputs)
    return [n for n in program.graph.nodes if n.op == "placeholder" and n.name in names]


def _inputs(program):
    sizes, found = _sizes(program), []
    for node in _placeholders(program):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            shape = ", ".join(sizes.get(str(size), str(size)) for size in value.shape)
            found.append(f"{node.name} {str(value.dtype).removeprefix('torch.')}[{shape}]")
        else:
            found.append(f"{node.name} = {value}")
    return found


def _batch(program):
    symbol = next(iter(_sizes(program)), None)
    for name, limits in program.range_constraints.items():
        if str(name) == symbol:
            low, high = str(limits.lower), str(limits.upper)
            return f"batches of {max(int(low), 1)} " + ("or more" if "oo" in high else f"to {high}")
    return "one batch alone"


# ---- what is taken out


def _take_out(program, stack):
    program.example_inputs = None
    if stack == "keep":
        return
    for graph in program.graph_module.modules():
        for node in graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else ():
            trace = node.meta.get("stack_trace")
            if trace and stack == "drop":
                node.meta["stack_trace"] = None
            elif trace:
                node.meta["stack_trace"] = _relative(trace)


def _relative(trace):
    """The same lines, with files named from the folder of this process or of the installed packages;
    of a file anywhere else the name alone is left."""
    roots = [os.getcwd(), sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")]

    def shorter(match):
        path = match.group(1)
        for root in roots:
            if path.startswith(root + os.sep):
                return f'File "{path[len(root) + 1:]}"'
        return f'File "{os.path.basename(path)}"' if os.path.isabs(path) else match.group(0)

    return re.sub(r'File "([^"]*)"', shorter, trace)


# ---- files


@contextlib.contextmanager
def _folder_beside(path):
    """A folder that goes again: files are made there under their own names, which stand in them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tutti-export-", dir=path.parent) as folder:
        yield pathlib.Path(folder)


@contextlib.contextmanager
def _all_or_none():
    """A list for (new, path): behind the block each new file takes the place of `path`. Those that are
    there are taken away first, so that no new one ever stands beside another's old companion; they come
    back where one cannot be placed."""
    pairs, undo = [], []
    yield pairs
    try:
        for new, path in pairs:
            if path.exists():
                old = new.with_name("old." + path.name)
                os.rename(path, old)
                undo.append((old, path))
        for new, path in pairs:
            os.rename(new, path)
            undo.append((path, new))
    except OSError:
        for now, before in reversed(undo):
            os.rename(now, before)
        raise


def _write(module, program, path, arguments, mode, check):
    try:
        torch.export.save(program, path)
    except Exception as error:
        raise ExportError(f"{mode}(): {type(error).__name__}: {str(error).strip()}") from error
    compared, difference = _compare(module, program, path, arguments, mode) if check else (0, 0.0)
    return Made(
        path, mode, path.stat().st_size, collections.Counter(), _batch(program), compared, difference
    )


def _compare(module, program, path, arguments, mode):
    """How many tensors were compared, and the largest difference: the module and the file are given the
    same other inputs, and numbers from the same seed."""
    loaded = torch.export.load(path).module()
    given = _other_inputs(arguments, bool(_sizes(program)))
    groups = list(_names_of_one(module))
    with _state_kept(module), torch.random.fork_rng(devices=[]):
        expected = _run(module, groups, given, mode)
        got = _run(loaded, groups, given, mode)
    if expected.keys() != got.keys():
        names = sorted(expected.keys() ^ got.keys())
        raise ExportError(f"{mode}(): the file has not what the module has: {', '.join(names[:5])}")
    worst = 0.0
    for name, tensor in expected.items():
        apart = _apart(tensor, got[name])
        if not apart <= MOST_DIFFERENCE:
            raise ExportError(
                f"{mode}(): {name} of the file and of the module are {apart:.1e} of the largest number "
                f"apart, expected {MOST_DIFFERENCE:.0e} at most"
            )
        worst = max(worst, apart)
    return len(expected), worst


def _run(module, groups, arguments, mode):
    """Outputs, gradients of a sum of them, and buffers after it, by name. What is one tensor in the
    module that was exported, `groups`, may be several here: their gradients are added."""
    torch.manual_seed(20261129)
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, arguments)
    outputs = [x for x in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(x, torch.Tensor)]
    found = {f"output {i}": x.detach() for i, x in enumerate(outputs)}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    trained = {id(p): p for p in parameters.values() if p.requires_grad}
    gradients = {}
    total = sum(x.abs().float().mean() for x in outputs if x.requires_grad)
    if mode == "train" and isinstance(total, torch.Tensor) and trained:
        values = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
        gradients = {key: value for key, value in zip(trained, values) if value is not None}
    for names in groups:
        keys = {id(parameters[name]) for name in names if name in parameters}
        parts = [gradients[key].to_dense() for key in keys if key in gradients]
        if parts:
            found[f"gradient of {names[0]}"] = sum(parts)
        if names[0] in buffers:
            found[f"buffer {names[0]}"] = buffers[names[0]].detach().clone()
    return found


def _apart(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if torch.equal(a, b) or a.numel() == 0:
        return 0.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    if not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    apart = (a - b).abs().nan_to_num(0.0, float("inf"))
    apart[a == b] = 0.0  # infinities
    largest = a.abs().nan_to_num(0.0, 0.0).max().item()
    return apart.max().item() / (largest or 1.0)


def _other_inputs(arguments, any_batch):
    """Samples of the example, drawn anew, one more of them where the batch may be any number; numbers
    that are no indices are scaled too."""
    tensors = [x for x in pytree.tree_leaves(arguments) if isinstance(x, torch.Tensor) and x.dim() > 0]
    batch = tensors[0].shape[0] if tensors else 0
    random = torch.Generator().manual_seed(1)
    count = batch + 1 if any_batch else batch
    rows = torch.randint(0, max(batch, 1), (count,), generator=random)

    def other(x):
        if x.dim() == 0 or x.shape[0] != batch:
            return x
        x = x.detach()[rows.to(x.device)]
        return x * (0.5 + torch.rand((), generator=random).item()) if x.is_floating_point() else x

    return pytree.tree_map_only(torch.Tensor, other, arguments)


@contextlib.contextmanager
def _state_kept(module):
    held = [(t, t.detach().clone()) for t in (*module.parameters(), *module.buffers())]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in held:
                tensor.copy_(value)


def _size(count):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


if __name__ == "__main__":
    from tutti.export_command import main

    sys.exit(main(sys.argv[1:]))
