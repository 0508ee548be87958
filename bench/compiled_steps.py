"""Steps that a PJRT plugin compiles beside JAX's of the same model, batch and devices, and beside our own kernels.

  make bench, then: .venv/bin/python bench/compiled_steps.py [--models mlp,cnn] [--rounds 5] [--out FILE]

Two devices of the CPU each, 64 images of all; rounds alternate, medians and the least and the most of the ratios. JAX's
side is that of `tutti_bench compare`, at its best: for mlp 32 steps in one call.
"""
import argparse
import json
import pathlib
import platform
import statistics
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
DATA = "examples/data/quickdraw"
STEPS = {"mlp": 640, "cnn": 40}
WARMUP = {"mlp": 64, "cnn": 4}
BATCH = 64


class Peer:
    """A process that answers commands."""

    def __init__(self, words):
        self.process = subprocess.Popen(words, cwd=REPOSITORY, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)
        if not self.process.stdout.readline():
            sys.exit(f"{words[0]} did not start: {' '.join(words)}")

    def measure(self, model):
        command = {"model": model, "batch": BATCH, "steps": STEPS[model], "warmup": WARMUP[model]}
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{' '.join(self.process.args)} ended in {model}")
        return json.loads(answer)


def ours_without_a_compiler(model):
    """Thread replicas with our kernels: `tutti bench step`."""
    path = REPOSITORY / "build/compiled_steps.json"
    subprocess.run(["build/bin/tutti", "bench", "step", "--model", model, "--strategy", "mirrored", "--replicas", "2",
                    "--batch-size", str(BATCH), "--steps", str(STEPS[model]), "--data", DATA, "--preload", "--json",
                    str(path)], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    return json.loads(path.read_text())["images_per_second"]


def cpu_words():
    models = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return f"{len(models)} x {models[0]}" if models else platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", help="a page of Markdown")
    flags = parser.parse_args()
    python = str(REPOSITORY / ".venv/bin/python")
    compiled = Peer(["build/bin/bench_compiled_step", "--data", DATA])
    jax = Peer([python, "bench/peer/jax_step.py", "--data", DATA, "--devices", "2"])
    lines = ["# Compiled steps beside JAX", "", f"{cpu_words()}, two devices of the CPU, {BATCH} images in a step of both, "
             f"{flags.rounds} rounds that alternate; images a second.", "",
             "| model | by the plugin | JAX | ratio (least to most) | our kernels, mirrored | first step |", "|---|---:|---:|---:|---:|---:|"]
    for model in flags.models.split(","):
        rounds = [(compiled.measure(model), jax.measure(model), ours_without_a_compiler(model))
                  for _ in range(flags.rounds)]
        ratios = [ours["images_per_second"] / theirs["images_per_second"] for ours, theirs, _ in rounds]
        median = [statistics.median(values) for values in
                  zip(*((ours["images_per_second"], theirs["images_per_second"], own) for ours, theirs, own in rounds))]
        lines.append(f"| {model} | {median[0]:,.0f} | {median[1]:,.0f} | {statistics.median(ratios):.2f} "
                     f"({min(ratios):.2f} to {max(ratios):.2f}) | {median[2]:,.0f} | {rounds[0][0]['first_step_seconds']:.1f} s |")
        print(lines[-1], flush=True)
    if flags.out:
        pathlib.Path(flags.out).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
