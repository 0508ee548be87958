#!/usr/bin/env python3
"""Parameter servers beside their peers, ours and theirs in turn; medians and ratios as a table.

  bench/parameter_servers.py --peer-python build/tensorflow-venv/bin/python

What is compared, with 2 workers and 1 server of this host unless said:

  steps     synchronous steps of `wide` beside the fused step of 2 processes (multi_worker)
  peer      asynchronous images/s beside TensorFlow's ParameterServerStrategy: its own custom loop,
            that schedules each step (as its tutorial does) or many at once (bench/peer_tensorflow_ps.py
            says how to install it); left out without --peer-python
  transfer  push_pull of 64 MiB over TCP beside a raw stream, with and without backups

Runs take about 5 minutes.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ("steps", "peer", "transfer")
LIMIT_S = 600
MANY = {"mlp": 32, "wide": 4}  # steps of one scheduled function
STEPS = {"mlp": 1500, "wide": 60}


def run(command):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "figures.json"
        command = [str(word) for word in [*command, "--json", file]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
        return [json.loads(line) for line in file.read_text().splitlines()]


def step(args, model, strategy, *more):
    """Images/s of `tutti bench step`."""
    figures = run([args.tutti, "bench", "step", "--model", model, "--strategy", strategy,
                   "--replicas", 2, "--batch-size", 128, "--steps", STEPS[model], "--preload",
                   "--threads", 1, "--data", args.data, *more])
    return figures[0]["images_per_second"]


def served(args, model, staleness):
    return step(args, model, "parameter_server", "--servers", 1, "--staleness", staleness)


def peer(args, model, each, optimizer):
    figures = run([args.peer_python, ROOT / "bench/peer_tensorflow_ps.py", "--model", model,
                   "--data", args.data, "--steps-per-schedule", each, "--optimizer", optimizer])
    return figures[0]["images_per_second"]


def transfer(args, servers, backups):
    command = [pathlib.Path(args.tutti).with_name("tutti_bench"), "servers", "--engine", "tcp", "--servers", servers, "--workers", 2,
               "--bytes", "64M", "--staleness", "inf", "--rounds", 3]
    figures = run(command if backups else [*command, "--no-backups"])[0]
    return figures["push_pull_gb_s"], figures["limit_gb_s"]


def in_turn(rounds, ways):
    """Medians of what each of `ways` gives, called one after another so many times."""
    taken = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            taken[name].append(way())
            print(f"round {number + 1}: {name}: {taken[name][-1]}", file=sys.stderr)
    return {name: statistics.median(values) for name, values in taken.items()}


def show_steps(args):
    rates = in_turn(args.rounds, {
        "fused": lambda: step(args, "wide", "multi_worker"),
        "served": lambda: served(args, "wide", 0)})
    print("| step of `wide`, synchronous | images/s | time of the fused step |")
    print("|---|---:|---:|")
    print(f"| fused, 2 processes | {rates['fused']:,.0f} | 1.00x |")
    print(f"| 2 workers, 1 server | {rates['served']:,.0f} | "
          f"{rates['fused'] / rates['served']:.2f}x |\n")


def show_peer(args):
    print("| asynchronous | ours, images/s | TensorFlow, each step scheduled | ratio "
          "| TensorFlow, many steps a schedule | ratio |")
    print("|---|---:|---:|---:|---:|---:|")
    for model, many in MANY.items():
        rates = in_turn(args.rounds, {
            f"{model}, tutti": lambda: served(args, model, "inf"),
            f"{model}, peer, each step": lambda: peer(args, model, 1, "keras"),
            f"{model}, peer, {many} steps": lambda: peer(args, model, many, "fused")})
        ours, each, best = rates.values()
        print(f"| {model} | {ours:,.0f} | {each:,.0f} | {ours / each:.1f}x | {best:,.0f} | "
              f"{ours / best:.1f}x |")
    print()


def show_transfer(args):
    print("| push_pull of 64 MiB over TCP | GB/s a worker | limit, GB/s | share |")
    print("|---|---:|---:|---:|")
    for name, servers, backups in (("1 server", 1, False), ("2 servers, no backups", 2, False),
                                   ("2 servers, backups", 2, True)):
        pairs = [transfer(args, servers, backups) for _ in range(args.rounds)]
        rate, limit = (statistics.median(values) for values in zip(*pairs))
        share = statistics.median(r / l for r, l in pairs)
        print(f"| {name} | {rate:.2f} | {limit:.2f} | {share:.2f} |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutti", default="build/bin/tutti")
    parser.add_argument("--data", default="examples/data/quickdraw")
    parser.add_argument("--peer-python", help="an interpreter that has tensorflow-cpu")
    parser.add_argument("--parts", default=",".join(PARTS), help="of: " + ", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts {', '.join(unknown)}: expected some of {', '.join(PARTS)}")
    if "steps" in parts:
        show_steps(args)
    if "peer" in parts and args.peer_python:
        show_peer(args)
    if "transfer" in parts:
        show_transfer(args)


if __name__ == "__main__":
    main()
