"""tutti.export: what is written, what is taken out of it, what is refused; and weights that come back.

    PYTHONPATH=python python -m unittest python/tests/test_export.py      (make python-test; torch, safetensors)
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest
import unittest.mock
import zipfile

import torch
from torch import nn

PYTHON = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PYTHON))
# Where the backend is installed, tutti is that one: take this file's.
if "tutti" in sys.modules:
    sys.modules["tutti"].__path__.insert(0, str(PYTHON / "tutti"))

from safetensors.torch import save_file  # noqa: E402
from tutti.export import ExportError, export, load_weights  # noqa: E402


class Net(nn.Module):
    def __init__(self, hidden=5):
        super().__init__()
        self.first, self.norm = nn.Linear(4, hidden), nn.BatchNorm1d(hidden)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(hidden, 2)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        return self.head(self.token(ids))


def module_of(function):
    class Made(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(4, 4)

        def forward(self, x):
            return function(self.w(x))

    return Made()


def model_json(path):
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith("models/model.json"))
        return json.loads(archive.read(name))


class InFolder(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        torch.manual_seed(1)

    def refused(self, *args, **options):
        with self.assertRaises(ExportError) as caught:
            export(*args, **options)
        self.assertEqual([p.name for p in self.folder.iterdir()], [], "a file is left")
        return str(caught.exception)


class Files(InFolder):
    def test_both_are_written_and_compared(self):
        net = Net()
        before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        report = export(net, torch.randn(3, 4), self.folder / "net.pt2")
        self.assertEqual([made.mode for made in report.files], ["train", "eval"])
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"net.pt2", "net.eval.pt2"})
        for made in report.files:
            self.assertEqual(made.bytes, made.path.stat().st_size)
            self.assertLess(made.difference, 1e-6)
            self.assertGreaterEqual(made.compared, 1 + 3)  # the output, three buffers
        self.assertGreater(report.files[0].compared, report.files[1].compared)  # gradients
        self.assertEqual(report.parameters, sum(p.numel() for p in net.parameters()))
        self.assertEqual(report.inputs, ["x float32[batch, 4]"])
        self.assertIn("net.eval.pt2", str(report))
        for name, tensor in net.state_dict().items():
            self.assertTrue(torch.equal(tensor, before[name]), name)
        self.assertTrue(net.training)
        self.assertTrue(all(p.grad is None for p in net.parameters()))

    def test_the_mode_is_in_the_file(self):
        export(Net(), torch.randn(3, 4), self.folder / "net.pt2")
        for name, rate_counts in (("net.pt2", True), ("net.eval.pt2", False)):
            nodes = model_json(self.folder / name)["graph_module"]["graph"]["nodes"]
            dropout = next(n for n in nodes if "dropout" in n["target"])
            given = {i["name"]: i["arg"] for i in dropout["inputs"]}
            self.assertEqual(given["train"], {"as_bool": rate_counts}, name)

    def test_parts_in_eval_stay_so(self):
        net = Net().train()
        net.norm.eval()
        export(net, torch.randn(3, 4), self.folder / "net.pt2", eval_out=False)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["net.pt2"])
        nodes = model_json(self.folder / "net.pt2")["graph_module"]["graph"]["nodes"]
        norm = next(n for n in nodes if "batch_norm" in n["target"])
        self.assertIn({"as_bool": False}, [i["arg"] for i in norm["inputs"] if i["name"] == "training"])
        self.assertFalse(net.norm.training)
        self.assertTrue(net.training)

    def test_a_module_in_eval_is_exported_for_training_too(self):
        net = Net().eval()
        export(net, torch.randn(3, 4), self.folder / "net.pt2")
        nodes = model_json(self.folder / "net.pt2")["graph_module"]["graph"]["nodes"]
        dropout = next(n for n in nodes if "dropout" in n["target"])
        self.assertIn({"as_bool": True}, [i["arg"] for i in dropout["inputs"]])
        self.assertFalse(net.training or net.norm.training)

    def test_the_batch_may_be_any(self):
        export(Net(), torch.randn(3, 4), self.folder / "net.pt2")
        ranges = model_json(self.folder / "net.pt2")["range_constraints"]
        ((low, high),) = [(r["min_val"], r["max_val"]) for r in ranges.values()]
        self.assertTrue(low is None or low <= 1, low)
        self.assertIsNone(high)
        loaded = torch.export.load(self.folder / "net.eval.pt2").module()
        for batch in (1, 2, 3, 100):
            self.assertEqual(loaded(torch.randn(batch, 4)).shape, (batch, 2))

    def test_further_dimensions(self):
        net = module_of(lambda x: x.mean(1))
        report = export(net, torch.randn(3, 6, 4), self.folder / "net.pt2", dynamic={"x": {1: "length"}})
        self.assertEqual(report.inputs, ["x float32[batch, n1, 4]"])
        loaded = torch.export.load(self.folder / "net.pt2").module()
        self.assertEqual(loaded(torch.randn(5, 2, 4)).shape, (5, 4))

    def test_fixed_sizes(self):
        report = export(Net(), torch.randn(3, 4), self.folder / "net.pt2", dynamic=False)
        self.assertEqual(report.inputs, ["x float32[3, 4]"])
        self.assertIn("one batch alone", str(report))

    def test_inputs_by_name_and_in_dictionaries(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Linear(4, 2)

            def forward(self, batch, scale):
                return {"y": self.w(batch["x"]) * scale[:, None], "n": batch["ids"].sum()}

        given = {"batch": {"x": torch.randn(3, 4), "ids": torch.ones(3, dtype=torch.long)},
                 "scale": torch.rand(3)}
        report = export(Two(), given, self.folder / "two.pt2")
        self.assertEqual(
            report.inputs,
            ["batch_x float32[batch, 4]", "batch_ids int64[batch]", "scale float32[batch]"],
        )

    def test_named_tuples_come_out(self):
        from collections import namedtuple

        Outputs = namedtuple("Outputs", ["y", "more"])
        net = module_of(lambda x: Outputs(x * 2, (x + 1,)))
        export(net, torch.randn(3, 4), self.folder / "net.pt2")
        loaded = torch.export.load(self.folder / "net.pt2").module()
        self.assertEqual(loaded(torch.randn(5, 4)).y.shape, (5, 4))

    def test_tied_weights_are_one(self):
        report = export(Tied(), torch.zeros(2, 3, dtype=torch.long), self.folder / "tied.pt2")
        self.assertEqual(report.parameters, 28)
        with zipfile.ZipFile(self.folder / "tied.pt2") as archive:
            weights = [n for n in archive.namelist() if "/weight_" in n]
        self.assertEqual(len(weights), 1)

    def test_frozen_parameters(self):
        net = Net()
        net.first.requires_grad_(False)
        report = export(net, torch.randn(3, 4), self.folder / "net.pt2")
        self.assertEqual(report.parameters - report.trained, 25)


class Privacy(InFolder):
    def test_no_examples_and_no_folders(self):
        secret = torch.full((3, 4), 0.123456789)
        export(Net(), secret, self.folder / "net.pt2")
        needle = secret[0, :2].numpy().tobytes()
        for path in self.folder.iterdir():
            whole = path.read_bytes()
            self.assertNotIn(needle, whole)
            for folder in (str(PYTHON), sys.prefix, os.path.expanduser("~") + os.sep):
                self.assertNotIn(folder.encode(), whole, path)
            with zipfile.ZipFile(path) as archive:
                samples = [n for n in archive.namelist() if "sample_inputs" in n]
                self.assertEqual([archive.read(n) for n in samples], [b""] * len(samples))

    def test_lines_of_python(self):
        lines = {}
        for stack in ("relative", "keep", "drop"):
            export(Net(), torch.randn(3, 4), self.folder / "net.pt2", stack=stack, eval_out=False)
            nodes = model_json(self.folder / "net.pt2")["graph_module"]["graph"]["nodes"]
            lines[stack] = "".join(n["metadata"].get("stack_trace", "") for n in nodes)
        name = pathlib.Path(__file__).name
        self.assertIn(f'{name}", line', lines["relative"])
        self.assertNotIn(str(PYTHON), lines["relative"])
        self.assertIn(os.path.abspath(__file__), lines["keep"])
        self.assertEqual(lines["drop"], "")


class Refusals(InFolder):
    def test_a_batch_of_one(self):
        why = self.refused(Net(), torch.randn(1, 4), self.folder / "net.pt2")
        self.assertIn("batch of 1, expected 2 or more", why)

    def test_a_batch_that_the_module_fixes(self):
        net = module_of(lambda x: x.view(3, 4) * 2)
        why = self.refused(net, torch.randn(3, 4), self.folder / "net.pt2")
        self.assertIn("fixes a dimension", why)
        self.assertIn("--fixed", why)

    def test_control_flow_on_values(self):
        net = module_of(lambda x: x * 2 if x.sum() > 0 else x)
        why = self.refused(net, torch.randn(3, 4), self.folder / "net.pt2")
        self.assertIn("control flow depends on values", why)
        self.assertIn("torch.cond", why)

    def test_loops_of_higher_order(self):
        from torch._higher_order_ops import while_loop

        step = lambda i, y: (i + 1, y * 0.9)
        net = module_of(lambda x: while_loop(lambda i, y: i < 3, step, (torch.tensor(0), x))[1])
        why = self.refused(net, torch.randn(3, 4), self.folder / "net.pt2")
        self.assertIn("while_loop", why)

    def test_what_is_no_module(self):
        for given, word in ((lambda x: x, "function"), (Net, "a class; call it"), (3, "int")):
            why = self.refused(given, torch.randn(3, 4), self.folder / "net.pt2")
            self.assertIn(word, why)
            self.assertIn("expected a torch.nn.Module", why)

    def test_a_program_that_was_decomposed(self):
        program = torch.export.export(Net(), (torch.randn(3, 4),)).run_decompositions()
        why = self.refused(program, torch.randn(3, 4), self.folder / "net.pt2")
        self.assertIn("ATEN", why)
        self.assertIn("gradients", why)

    def test_names_and_arguments(self):
        x = torch.randn(3, 4)
        self.assertIn("net.pt2", self.refused(Net(), x, self.folder / "net.onnx"))
        self.assertIn("dict", self.refused(Net(), 3, self.folder / "net.pt2"))
        self.assertIn("forward()", self.refused(Net(), (x, x), self.folder / "net.pt2"))
        self.assertIn("there are x", self.refused(Net(), x, self.folder / "net.pt2", dynamic={"y": {1: "n"}}))
        self.assertIn("stack", self.refused(Net(), x, self.folder / "net.pt2", stack="some"))

    def test_a_file_that_computes_something_else_is_not_left(self):
        class Counts(nn.Module):
            calls = 0

            def __init__(self):
                super().__init__()
                self.w = nn.Linear(4, 2)

            def forward(self, x):
                Counts.calls += 1  # Python that no graph has
                return self.w(x) * Counts.calls

        why = self.refused(Counts(), torch.randn(3, 4), self.folder / "net.pt2")
        self.assertIn("of the file and of the module", why)

    def test_an_error_leaves_the_earlier_file(self):
        export(Net(), torch.randn(3, 4), self.folder / "net.pt2")
        before = (self.folder / "net.pt2").read_bytes()
        with self.assertRaises(ExportError):
            export(module_of(lambda x: x.view(3, 4)), torch.randn(3, 4), self.folder / "net.pt2")
        self.assertEqual((self.folder / "net.pt2").read_bytes(), before)

    def pair(self):
        return [(self.folder / name).read_bytes() for name in ("net.pt2", "net.eval.pt2")]

    def test_an_evaluation_that_fails_leaves_the_earlier_pair(self):
        class NoEvaluation(Net):
            def forward(self, x):
                return super().forward(x) if self.training else super().forward(x.view(3, 4))

        export(Net(), torch.randn(3, 4), self.folder / "net.pt2")
        before = self.pair()
        with self.assertRaises(ExportError) as caught:
            export(NoEvaluation(), torch.randn(3, 4), self.folder / "net.pt2")
        self.assertIn("eval()", str(caught.exception))
        self.assertEqual(self.pair(), before)
        self.assertEqual(len(list(self.folder.iterdir())), 2)

    def test_a_companion_that_cannot_be_placed_leaves_the_earlier_pair(self):
        export(Net(), torch.randn(3, 4), self.folder / "net.pt2")
        before = self.pair()
        rename = os.rename

        def fails(old, new):
            if pathlib.Path(new) == self.folder / "net.eval.pt2" and "old." not in str(old):
                raise OSError("the disk is full")
            rename(old, new)

        with unittest.mock.patch("os.rename", fails), self.assertRaises(OSError):
            export(Net(), torch.randn(3, 4), self.folder / "net.pt2")
        self.assertEqual(self.pair(), before)

    def test_an_old_companion_is_not_left_beside_a_new_file(self):
        export(Net(), torch.randn(3, 4), self.folder / "net.pt2")
        before = self.pair()
        with self.assertRaises(ExportError) as caught:
            export(Net(), torch.randn(3, 4), self.folder / "net.pt2", eval_out=False)
        self.assertIn("net.eval.pt2 is of an earlier export", str(caught.exception))
        self.assertEqual(self.pair(), before)


class WeightsBack(InFolder):
    def test_two_lines(self):
        trained, fresh = Net(), Net()
        save_file(trained.state_dict(), self.folder / "model.safetensors")
        load_weights(fresh, self.folder / "model.safetensors")
        for name, tensor in trained.state_dict().items():
            self.assertTrue(torch.equal(fresh.state_dict()[name], tensor), name)

    def test_tied_weights_stand_once(self):
        trained, fresh = Tied(), Tied()
        save_file({"token.weight": trained.token.weight.detach()}, self.folder / "model.safetensors")
        load_weights(fresh, self.folder / "model.safetensors")
        self.assertTrue(torch.equal(fresh.head.weight, trained.head.weight))
        self.assertIs(fresh.head.weight, fresh.token.weight)

    def test_nothing_missing_and_nothing_left(self):
        for change in (lambda s: s.pop("last.bias"), lambda s: s.update(more=torch.ones(1))):
            state = dict(Net().state_dict())
            change(state)
            save_file(state, self.folder / "model.safetensors")
            with self.assertRaises(RuntimeError):
                load_weights(Net(), self.folder / "model.safetensors")


class CommandLine(InFolder):
    SOURCE = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self, hidden=5, name="x"):
                super().__init__()
                self.words, self.w = nn.Embedding(9, hidden), nn.Linear(hidden, 2)

            def forward(self, ids, scale):
                return self.w(self.words(ids).mean(1)) * scale

        ready = nn.Linear(4, 2)
        number = 7
    """

    def setUp(self):
        super().setUp()
        (self.folder / "mynets.py").write_text(textwrap.dedent(self.SOURCE))

    def run_command(self, *words):
        environment = dict(os.environ, PYTHONPATH=str(PYTHON))
        return subprocess.run(
            [sys.executable, "-m", "tutti.export", *words],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300,
        )

    def test_writes_both_and_says_so(self):
        done = self.run_command(
            "mynets:Net", "--set", "hidden=6", "--input", "ids=int64[4,5]:9", "--input",
            "scale=float32[4,1]", "--dynamic", "ids:1=length", "--out", "net.pt2",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ids int64[batch, n1]", done.stdout)
        self.assertIn("net.pt2: train()", done.stdout)
        self.assertIn("net.eval.pt2: eval()", done.stdout)
        self.assertTrue((self.folder / "net.eval.pt2").is_file())
        self.assertNotIn(str(self.folder).encode(), (self.folder / "net.pt2").read_bytes())

    def test_a_file_and_a_module_that_is_made(self):
        done = self.run_command("mynets.py:ready", "--input", "float32[2,4]", "--no-eval", "--out", "a.pt2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse((self.folder / "a.eval.pt2").exists())

    def test_refusals_end_with_two_and_a_line(self):
        x = ["--input", "float32[2,4]", "--out", "a.pt2"]
        for words, said in (
            (["mynets:Nothing", *x], "it has"),
            (["nowhere:Net", *x], 'no module "nowhere"'),
            (["none.py:Net", *x], 'no file "none.py"'),
            (["mynets", *x], "expected package.module:factory"),
            (["mynets:number", *x], "number"),
            (["mynets:ready", "--input", "float99[2,4]", "--out", "a.pt2"], "expected DTYPE[SHAPE]"),
            (["mynets:ready", "--input", "float32[2,4]:9", "--out", "a.pt2"], "whole numbers"),
            (["mynets:ready", "--out", "a.pt2"], "--input: none"),
            (["mynets:ready", *x, "--dynamic", "x=3"], "expected INPUT:DIM=NAME"),
            (["mynets:ready", *x, "--dynamic", "3:0=n"], "no input 3"),
            (["mynets:ready", *x, "--set", "a=1"], "is a module already"),
            (["mynets:ready", *x, "--weights", "none.safetensors"], "no file"),
            (["mynets:ready", "--input", "float32[1,4]", "--out", "a.pt2"], "batch of 1"),
        ):
            done = self.run_command(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(said, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
        self.assertEqual([p.name for p in self.folder.glob("*.pt2")], [])

    def test_help_has_examples(self):
        done = self.run_command("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("--input int64[8,64]:50257", done.stdout)


if __name__ == "__main__":
    unittest.main()
