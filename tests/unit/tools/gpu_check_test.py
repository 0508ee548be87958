"""tools/gpu_check, with programs of the test's own in place of ours: what is judged and how, what is left out
by name, and that a program that hangs or ends is no more than a part that failed."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "tools/gpu"))

from place import Answering, Deadline, Failed, run  # noqa: E402

DOCTOR = """
import json, sys
print(json.dumps({"torch": {"version": "2.13.0"}, "cuda": {
    "driver": "580", "nccl": "2.29.7", "cure": "look at nvidia-smi", "devices": DEVICES}}))
"""
STEP = """
import json, sys
wrong = WRONG if sys.argv[3] == "cuda:0x2" else 0
print("a word before")
print(json.dumps({"wrong": wrong, "repeats": 25, "wrong_by_rule": {"adam": wrong}, "from_cpu": 1e-7}))
sys.exit(1 if wrong else 0)
"""
SPEED = """
import json, sys
if "--step-graph" in sys.argv:
    sys.exit("step_graph: this build has none: it was configured without CUDA")
step_ms = 2.0 if sys.argv[1] == "plain" else OURS_MS
print(json.dumps({"torch": "2.13.0"}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    print(json.dumps({"step_ms": step_ms, "images_per_second": 1, "loss": 1}), flush=True)
"""


def wait_until(holds):
    deadline = Deadline(60)
    while not holds():
        assert deadline.left() > 0, "waited for a minute"
        time.sleep(0.01)


def runs(pid):
    state = pathlib.Path(f"/proc/{pid}/stat")
    return state.exists() and ") Z " not in state.read_text()


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.program("tutti", DOCTOR.replace("DEVICES", '[{"name": "NVIDIA H200"}]'))
        self.program("bench_device_step", STEP.replace("WRONG", "0"))
        self.program("bench_device_speed", SPEED.replace("OURS_MS", "1.0"))

    def program(self, name, text):
        path = self.root / "build/bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)

    def check(self, parts, *arguments):
        """(exit code, what was printed, the parts of the JSON by name)."""
        figures = self.root / "figures.json"
        done = subprocess.run(
            [REPOSITORY / "tools/gpu_check", "--build", self.root / "build", "--json", figures, "--parts", parts,
             "--python", sys.executable, *arguments], capture_output=True, text=True, timeout=120)
        if not figures.exists():
            return done.returncode, done.stdout + done.stderr, {}
        report = json.loads(figures.read_text())
        self.assertEqual(report["ok"], done.returncode == 0)
        return done.returncode, done.stdout, {part["name"]: part for part in report["parts"]}

    def test_notes_figures_and_bounds_of_what_is_well(self):
        code, printed, parts = self.check("doctor,same_bits,against_libtorch")
        self.assertEqual(code, 0, printed)
        self.assertEqual([part["result"] for part in parts.values()], ["ok"] * 3)
        self.assertEqual(parts["doctor"]["figures"]["devices"], ["NVIDIA H200"])
        self.assertEqual(sorted(parts["same_bits"]["figures"]), ["cuda:0x2", "cuda:0x3"])
        self.assertEqual(parts["against_libtorch"]["figures"]["mlp"]["ratio"], 2.0)
        self.assertEqual(parts["against_libtorch"]["bounds"],
                         [{"of": "mlp", "ratio": 2.0, "least": 1.1, "held": True}])

    def test_no_device_fails_with_the_cure(self):
        self.program("tutti", DOCTOR.replace("DEVICES", "[]"))
        code, _, parts = self.check("doctor")
        self.assertEqual((code, parts["doctor"]["result"]), (1, "failed"))
        self.assertIn("look at nvidia-smi", parts["doctor"]["why"])

    def test_weights_that_differ_fail_and_say_of_which_rule(self):
        self.program("bench_device_step", STEP.replace("WRONG", "3"))
        code, _, parts = self.check("same_bits")
        self.assertEqual(code, 1)
        self.assertIn("{'adam': 3} of 25", parts["same_bits"]["why"])

    def test_what_is_too_slow_fails_with_its_bound(self):
        self.program("bench_device_speed", SPEED.replace("OURS_MS", "1.9"))
        code, printed, parts = self.check("against_libtorch")
        self.assertEqual(code, 1)
        self.assertIn("mlp is 1.053 times as fast, expected 1.1 or more", printed)
        self.assertFalse(parts["against_libtorch"]["bounds"][0]["held"])

    def test_what_is_missing_is_left_out_by_name(self):
        (self.root / "build/bin/bench_device_step").unlink()
        code, printed, parts = self.check("same_bits,step_graph,nccl")
        self.assertEqual(code, 0, printed)
        self.assertTrue(parts["same_bits"]["why"].startswith("bench_device_step was not built"))
        self.assertEqual(parts["step_graph"]["why"], "step_graph: this build has none: it was configured without CUDA")
        self.assertTrue(parts["nccl"]["why"].startswith("test_nccl_device was not built"))

    def test_a_program_that_ends_is_quoted(self):
        self.program("bench_device_speed", "import sys\nsys.exit('no such device')\n")
        code, _, parts = self.check("against_libtorch")
        self.assertEqual(code, 1)
        self.assertIn("bench_device_speed ended with code 1:\n  no such device", parts["against_libtorch"]["why"])

    def test_unknown_parts_are_refused(self):
        code, printed, _ = self.check("doctors")
        self.assertEqual(code, 2)
        self.assertIn("unknown part 'doctors'; known: doctor, same_bits", printed)

    def test_dry_without_a_fake_is_no_failure(self):
        code, printed, _ = self.check("doctor", "--dry")
        self.assertEqual(code, 77, printed)

    def test_a_program_that_hangs_ends_with_what_it_has_started(self):
        pids = self.root / "pids"

        class OnceItHasStarted(Deadline):
            def left(self):
                wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
                return 0.1

        with self.assertRaisesRegex(Failed, "sh was not done in time"):
            run(["sh", "-c", f"sleep 600 & echo $! $$ >{pids}; wait"], dict(os.environ), OnceItHasStarted(0))
        for pid in pids.read_text().split():
            wait_until(lambda: not runs(pid))

    def test_an_answer_that_does_not_come_is_an_error(self):
        with self.assertRaisesRegex(Failed, "has not answered in time"):
            with Answering(["sleep", "600"], dict(os.environ), Deadline(0.2)):
                pass


if __name__ == "__main__":
    unittest.main()
