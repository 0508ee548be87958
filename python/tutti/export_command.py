"""The command line of tutti.export: `python -m tutti.export`."""

import argparse
import importlib
import importlib.util
import json
import os
import pathlib
import re
import sys

import torch

from tutti.export import ExportError, export

EXAMPLES = """
examples:
  python -m tutti.export mynets:resnet --input float32[8,3,32,32] --out net.pt2
      the class or function `resnet` of mynets.py makes the module
  python -m tutti.export gpt.py:GPT --set layers=4 --input int64[8,64]:50257 --out gpt.pt2
      inputs of whole numbers are 0 and 1, or below the number behind the colon
  python -m tutti.export ctr:Net --input dense=float32[8,13] --input ids=int64[8,26]:1000 --out ctr.pt2
      inputs by name; batch.ids=... is a member of a dict that forward() takes as `batch`
  python -m tutti.export torchvision.models:resnet18 --weights resnet18.safetensors \\
      --input float32[8,3,224,224] --dynamic 0:2=height --dynamic 0:3=width --out resnet18.pt2
      with weights, and with further dimensions that may change: of input 0, or of one by its name

net.pt2 is for training, net.eval.pt2 beside it for evaluation: give tutti both. The batch may be any
number; the example's is 2 at least. Quote brackets where your shell expands them.
"""


def parser():
    made = argparse.ArgumentParser(
        prog="python -m tutti.export",
        description="Writes a module of PyTorch as files that tutti trains without Python.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("module", help="package.module:factory or file.py:factory; a class, a function or a module")
    made.add_argument("--out", required=True, help="where the file goes: net.pt2")
    made.add_argument(
        "--input", action="append", default=[], metavar="[NAME=]DTYPE[SHAPE][:BELOW]",
        help="an example input, made of random numbers; once for each",
    )
    made.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="an argument of the factory: JSON, else text",
    )
    made.add_argument("--weights", metavar="FILE", help="a safetensors file, loaded with strict=True first")
    made.add_argument(
        "--dynamic", action="append", default=[], metavar="INPUT:DIM=NAME",
        help="a further dimension that may change; dimensions of one name are equal",
    )
    made.add_argument("--fixed", action="store_true", help="all sizes as in the example, the batch too")
    made.add_argument("--no-eval", action="store_true", help="no net.eval.pt2")
    made.add_argument(
        "--stack", choices=("relative", "keep", "drop"), default="relative",
        help="lines of Python in the file: files named without their folders (the default), as they are, or none",
    )
    made.add_argument("--no-check", action="store_true", help="do not load and compare the files")
    made.add_argument("--seed", type=int, default=0, help="of weights and example inputs (0)")
    return made


def load_module(word, arguments):
    """The module that `word` names, made with `arguments` where it is a class or a function."""
    place, colon, name = word.rpartition(":")
    if not colon or not name:
        raise ExportError(f'got "{word}", expected package.module:factory or file.py:factory')
    if place.endswith(".py"):
        path = pathlib.Path(place)
        if not path.is_file():
            raise ExportError(f'no file "{place}"')
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        source = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = source
        spec.loader.exec_module(source)
    else:
        try:
            source = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ExportError(f'no module "{error.name}", wanted for "{word}"') from None
    made = source
    for part in name.split("."):
        if not hasattr(made, part):
            known = ", ".join(n for n in vars(made) if not n.startswith("_"))
            raise ExportError(f'"{place}" has no "{name}"; it has {known[:300]}')
        made = getattr(made, part)
    if isinstance(made, torch.nn.Module):
        if arguments:
            raise ExportError(f'--set: "{name}" is a module already, nothing that makes one')
        return made
    if not callable(made):
        raise ExportError(f'"{name}" of {place} is {made!r:.60}, nothing that makes a module')
    try:
        return made(**arguments)
    except TypeError as error:
        raise ExportError(f"{word}: {error}") from None


def settings(words):
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise ExportError(f'--set: got "{word}", expected NAME=VALUE')
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def example(word):
    """(path or "", tensor) of "x=float32[8,3]" or "int64[8,12]:50"."""
    match = re.fullmatch(r"(?:([A-Za-z_][\w.]*)=)?(\w+)\[([\d,\s]*)\](?::(\d+))?", word)
    dtype = getattr(torch, match.group(2), None) if match else None
    if not isinstance(dtype, torch.dtype):
        raise ExportError(
            f'--input: got "{word}", expected DTYPE[SHAPE], as float32[8,3,32,32], x=float32[8,13] or '
            "int64[8,64]:50257"
        )
    shape = [int(size) for size in match.group(3).split(",") if size.strip()]
    if match.group(4) and (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        raise ExportError(f'--input: "{word}": the number behind the colon is for whole numbers')
    if dtype.is_floating_point or dtype.is_complex:
        return match.group(1) or "", torch.randn(shape, dtype=torch.promote_types(dtype, torch.float32)).to(dtype)
    return match.group(1) or "", torch.randint(0, int(match.group(4) or 2), shape).to(dtype)


def example_inputs(words):
    if not words:
        raise ExportError("--input: none; expected one for each argument of forward()")
    given = [example(word) for word in words]
    if all(path == "" for path, _ in given):
        return tuple(tensor for _, tensor in given)
    if any(path == "" for path, _ in given):
        raise ExportError("--input: either all inputs have names, or none has")
    named = {}
    for path, tensor in given:
        *outer, last = path.split(".")
        place = named
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ExportError(f'--input: "{path}": "{part}" is a tensor already')
        if last in place:
            raise ExportError(f'--input: "{path}" is there twice')
        place[last] = tensor
    return named


def dynamic(words, given, module):
    """{"x": {1: "length"}} of "x:1=length" or "0:1=length"."""
    import inspect

    found = {}
    positions = list(inspect.signature(module.forward).parameters)
    for word in words:
        match = re.fullmatch(r"([\w.]+):(-?\d+)=([A-Za-z_]\w*)", word)
        if not match:
            raise ExportError(f'--dynamic: got "{word}", expected INPUT:DIM=NAME, as ids:1=length')
        path = match.group(1)
        if path.isdigit():
            if not isinstance(given, tuple) or int(path) >= min(len(given), len(positions)):
                raise ExportError(f'--dynamic: "{word}": no input {path}')
            path = positions[int(path)]
        found.setdefault(path, {})[int(match.group(2))] = match.group(3)
    return found


def main(words):
    options = parser().parse_args(words)
    try:
        sys.path.insert(0, os.getcwd())
        torch.manual_seed(options.seed)
        given = example_inputs(options.input)
        module = load_module(options.module, settings(options.set))
        if options.weights:
            load_state(module, options.weights)
        further = False if options.fixed else {}
        if options.dynamic:
            if options.fixed:
                raise ExportError("--dynamic says which sizes may change, --fixed that none may")
            further = dynamic(options.dynamic, given, module)
        print(
            export(
                module, given, options.out, eval_out=False if options.no_eval else None,
                dynamic=further, stack=options.stack, check=not options.no_check,
            )
        )
    except (ExportError, OSError) as error:
        print(f"tutti.export: {error}", file=sys.stderr)
        return 2
    return 0


def load_state(module, path):
    from tutti.export import load_weights

    if not os.path.isfile(path):
        raise ExportError(f'--weights: no file "{path}"')
    try:
        load_weights(module, path)
    except Exception as error:  # of safetensors, and load_state_dict's list of names
        raise ExportError(f"--weights: {path}: {error}") from error
