"""What a part of a check works with: where programs are, how long it has, what it notes."""

import dataclasses

from place import ROOT, Answering, Deadline, Failed, Skipped, last_lines, run


@dataclasses.dataclass(frozen=True)
class Sizes:
    repeats: int  # of the fused step on a device, with each of three rules
    rounds: int
    warmup: int
    most_steps: int
    batches: dict
    train: tuple  # flags of `tutti train`


FULL = Sizes(repeats=25, rounds=5, warmup=10, most_steps=1_000_000,
             batches={"mlp": 128, "wide": 1024, "resnet18": 64}, train=("--batch-size", "128"))
DRY = Sizes(repeats=1, rounds=1, warmup=1, most_steps=1,
            batches={"mlp": 8, "wide": 8, "resnet18": 2}, train=("--batch-size", "32", "--take", "64"))


class Check:
    """Of one part."""

    def __init__(self, place, limit_s, outcome):
        self.place, self.dry = place, place.dry
        self.sizes = DRY if place.dry else FULL
        self.deadline = Deadline(limit_s)
        self.figures, self.bounds = outcome["figures"], outcome["bounds"]

    def program(self, name, *arguments):
        return [self.place.program(name), *map(str, arguments)]

    def peer(self, *arguments):
        """PyTorch; on the CPU in a dry check, since the fake CUDA is none that Python loads."""
        script = ROOT / "bench/peer/device_step.py"
        return [self.place.python, str(script), "--device", "cpu" if self.dry else "cuda", *arguments]

    def finish(self, command):
        return run(command, self.place.environment, self.deadline)

    def start(self, command):
        """A program that answers, for a with statement."""
        return Answering(command, self.place.environment, self.deadline)

    def output_of(self, command):
        """Its stdout. Failed when it fails."""
        finished = self.finish(command)
        if finished.code != 0:
            said = last_lines(finished.output + finished.errors)
            raise Failed(f"{finished.name} ended with code {finished.code}:\n  {said}")
        return finished.output

    def needs_python_with(self, module):
        find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
        if self.finish([self.place.python, "-c", find]).code != 0:
            raise Skipped(f"{self.place.python} has no module {module}")

    def require(self, holds, words):
        if not holds:
            raise Failed(words)

    def compare(self, name, least, figures):
        """Notes a contest, with the bound of its ratio where the check is not dry."""
        self.figures[name] = figures
        if not self.dry:
            held = figures["ratio"] >= least
            self.bounds.append({"of": name, "ratio": figures["ratio"], "least": least, "held": held})

    def judge(self):
        """After all contests, so that one that is too slow does not hide the next."""
        slow = [f"{b['of']} is {b['ratio']} times as fast, expected {b['least']} or more"
                for b in self.bounds if not b["held"]]
        self.require(not slow, "; ".join(slow))
