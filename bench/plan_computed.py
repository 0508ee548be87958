#!/usr/bin/env python3
"""Predictions of `tutti plan` beside trainings that compute, on cores of their own.

    sudo python3 bench/plan_computed.py --out bench/results/plan_computed_MACHINE_YYYYMM.md
    sudo python3 bench/plan_computed.py --draw     says which, and runs nothing

Ten configurations, drawn by a seed from all that POPULATION names: none was run before it was drawn, none
is ever to be used where a constant of the cost model is chosen, and all are reported. A replica computes on
a core of its own with one thread; hosts are network namespaces (bench/emulated_hosts.py: root and iproute2).
Predicted from a machine file of each network, which `tutti plan measure` made on one core while the
other was idle; measured: the median of steps, and of the rounds' medians.
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

from emulated_hosts import LATENCY, PAYLOAD, ROOT, TUTTI, Hosts, address, run_all
from host_trainings import CORES, DOODLES, GPT

SEED = 20261129
DRAWN = 10
BATCHES = {"mlp": (32, 64, 128, 256), "cnn": (32, 64, 128, 256), "wide": (32, 64, 128, 256),
           "gpt": (4, 8, 12, 16)}  # of a replica
LINKS = (200, 500, 1000, 2000, 4000)  # Mbit/s of two hosts
WAYS = (*LINKS, "processes", "threads")
POPULATION = [(model, batch, way) for model, batches in BATCHES.items()
              for batch, way in itertools.product(batches, WAYS)]


def drawn():
    return random.Random(SEED).sample(POPULATION, DRAWN)


class Bench:
    def __init__(self, folder, steps):
        self.folder, self.steps, self.files = pathlib.Path(folder), steps, {}
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(page.read_text() for page in sorted((ROOT / "docs").rglob("*.md"))))

    def data(self, model):
        return ["--data", self.text if model == "gpt" else DOODLES, *(GPT if model == "gpt" else [])]

    def machine(self, model):
        if model not in self.files:
            path = self.folder / f"{model}.machine.json"
            words = [TUTTI, "plan", "measure", model, *self.data(model), "--out", path, "--batches", *BATCHES[model],
                     "--most-spread", 10]
            subprocess.run([str(word) for word in ("taskset", "-c", CORES[0], *words)], check=True,
                           stdout=subprocess.DEVNULL)
            machine = json.loads(path.read_text())
            path.write_text(json.dumps(machine | {"payload": PAYLOAD}))
            self.files[model] = path
        return self.files[model]

    def predicted(self, model, batch, way):
        answer = self.folder / "answer.json"
        words = [TUTTI, "plan", model, "--machine", self.machine(model), "--batch", batch, "--json", answer]
        if way in LINKS:
            words += ["--hosts", 2, "--link", f"{way}Mbit,{LATENCY}"]
        else:
            words += ["--hosts", 1, "--replicas-per-host", 2]
            words += ["--strategy", "mirrored"] if way == "threads" else []
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return json.loads(answer.read_text())[0]

    def taken_ms(self, model, batch, way):
        train = ["train", model, *self.data(model), "--batch-size", 2 * batch, "--threads", 1, "--max-steps", self.steps,
                 "--epochs", 1000, "--verbose", 0]
        if way not in LINKS:
            figures = self.folder / "here.json"
            words = [TUTTI, *train, "--replicas", 2, "--strategy", "mirrored" if way == "threads" else "multi_worker",
                     "--json", figures]
            subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)
            return json.loads(figures.read_text())["step_ms_p50"]
        with Hosts(2, way) as network:
            commands = [["ip", "netns", "exec", network.name(host), "taskset", "-c", CORES[host], TUTTI, "run", "--nodes", 2,
                         "--rendezvous", f"{address(0)}:29500", "-n", 1, "--node-rank", host, TUTTI, *train,
                         "--strategy", "multi_worker", "--json", self.folder / f"{host}.json"] for host in range(2)]
            run_all(commands, {})
        return json.loads((self.folder / "0.json").read_text())["step_ms_p50"]


def line_of(configuration, predicted, taken):
    model, batch, way = configuration
    how = f"2 hosts, {way} Mbit/s" if way in LINKS else f"1 host, 2 {way}"
    low, step, high, compute = (1e3 * predicted[f"{what}_seconds"] for what in ("low", "step", "high", "compute"))
    inside = "yes" if low <= taken <= high else "no"
    return (f"| {model} | {batch} | {how} | {compute:.2f} | {step:.2f} | {low:.2f} to {high:.2f} | {taken:.2f} "
            f"| {100 * (step / taken - 1):+.1f} % | {inside} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="the page (default: stdout)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--draw", action="store_true")
    arguments = parser.parse_args()
    if arguments.draw:
        print("\n".join(f"{model}, batch {batch}, {way}" for model, batch, way in drawn()))
        return
    if os.geteuid() != 0:
        sys.exit("SKIPPED: bench/plan_computed.py makes network namespaces, which needs root")
    if len(CORES) < 2:
        sys.exit("SKIPPED: bench/plan_computed.py computes on two cores")
    lines, errors, inside = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, arguments.steps)
        for configuration in drawn():
            predicted = bench.predicted(*configuration)
            taken = statistics.median(bench.taken_ms(*configuration) for _ in range(arguments.rounds))
            lines.append(line_of(configuration, predicted, taken))
            errors.append(100 * abs(predicted["step_seconds"] * 1e3 / taken - 1))
            inside += predicted["low_seconds"] <= taken * 1e-3 <= predicted["high_seconds"]
            print(lines[-1], file=sys.stderr, flush=True)
    text = "\n".join([
        "# Predictions beside trainings that compute", "", f"    python3 bench/plan_computed.py {' '.join(sys.argv[1:])}", "",
        f"{DRAWN} of {len(POPULATION)} configurations, random.Random({SEED}).sample, before the first run;",
        "`bench/plan_computed.py --help` says what is what. Milliseconds.", "",
        "| network | batch of a replica | how | compute | predicted | 80 % within | measured | error | inside |",
        "|---|---:|---|---:|---:|---|---:|---:|---|", *lines, "",
        f"Mean error {statistics.mean(errors):.1f} %, median {statistics.median(errors):.1f} %, furthest off "
        f"{max(errors):.1f} %; inside the 80 % interval: {inside}.", ""])
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
