#!/usr/bin/env python3
"""Asynchronous trainings that lose servers and workers, recorded and replayed: equal weights?

    bench/replays.py [--runs 50] [--each 5] [--program build/bin/tutti] [--out FILE]

Records a training with staleness inf, in which a server or a worker is killed, or a worker stopped
for a while, at a moment drawn by chance, and replays it; `--each` trainings for one recording, the
recorded one among them, in turn over the things that happen, until `--runs` have been made. Prints a
row a recording: what happened, its SHA-256 and how many of the others have the same. Exit code 1
where one differs.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

HAPPENS = ("nothing", "server killed", "worker killed", "worker stopped", "server stopped")


def command(options, order, figures):
    return [
        options.program, "train", "mlp", "--data", "examples/data/quickdraw", "--threads", "1",
        "--strategy", "parameter_server", "--servers", "2", "--replicas", "3", "--staleness", "inf",
        "--batch-size", "96", "--take", "6000", "--epochs", str(options.epochs), "--seed", "5",
        "--time-limit", "60", "--json", figures, *order,
    ]  # fmt: skip


def disturb(pids, what, draw):
    """Does `what` to one of the job's processes; the chief stays, since it writes the figures."""
    time.sleep(0.2 + 0.6 * draw.random())
    if what == "server killed":
        os.kill(pids[f"server {draw.randrange(2)}"], signal.SIGKILL)
    elif what == "worker killed":
        os.kill(pids[f"worker {draw.randrange(1, 3)}"], signal.SIGKILL)
    elif what in ("worker stopped", "server stopped"):
        who = f"worker {draw.randrange(3)}" if what == "worker stopped" else "server 1"
        os.kill(pids[who], signal.SIGSTOP)
        time.sleep(0.3 + 0.7 * draw.random())
        os.kill(pids[who], signal.SIGCONT)


def run(options, order, folder, what, draw):
    figures = str(folder / "figures.json")
    with subprocess.Popen(
        command(options, order, figures),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as job:  # fmt: skip
        log, pids = [], {}
        for line in job.stdout:
            log.append(line)
            for who, pid in re.findall(r"((?:server|worker) \d+) pid (\d+)", line):
                pids[who] = int(pid)
            if "epoch 1/" in line and what:
                try:
                    disturb(pids, what, draw)
                except ProcessLookupError:
                    log.append(f"too late: {what}\n")
                what = None
    if job.returncode != 0:
        sys.exit("".join(log) + f"exit code {job.returncode}")
    return json.loads(pathlib.Path(figures).read_text())["weights_sha256"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--each", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--program", default="build/bin/tutti")
    parser.add_argument("--out")
    options = parser.parse_args()
    rows, different = [], 0
    for recording in range((options.runs + options.each - 1) // options.each):
        draw = random.Random(recording)
        what = HAPPENS[recording % len(HAPPENS)]
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            order = str(folder / "order")
            first = run(options, ["--record-order", order], folder, what, draw)
            others = [
                run(options, ["--replay-order", order], folder, None, draw)
                for _ in range(options.each - 1)
            ]
        same = sum(sha == first for sha in others)
        different += len(others) - same
        rows.append(f"| {what} | `{first[:12]}` | {same} of {len(others)} |")
        print(rows[-1], flush=True)
    text = "\n".join(["| what happened | weights | replays with the same |", "|---|---|---:|", *rows])
    if options.out:
        pathlib.Path(options.out).write_text(text + "\n")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
