#!/usr/bin/env python3
"""`tutti plan replay --without` of a run with a slow rank, beside the run without that rank.

  bench/straggler_replay.py --tutti build/bin/tutti --sleeping build/bin/bench_sleeping_ranks

Four ranks sleep where others compute (bench_sleeping_ranks), since more ranks than cores would
slow each other down, and sleep long, since waking up takes a while beside neighbours; rank 3 sleeps
longer. In each round, in turn: the run with the slow rank, with traces; a run of the other three; a
run of all four of which none is slow. What is replayed is the first; the other two say of
themselves what their steps took. Medians over the rounds, and how far each replay was off. Exit
code 1: a step is off by more than --within percent of that of the three, its mean or its median.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

LIMIT_S = 300
RANKS = 4
CASES = {
    "always": [],
    "in 3 of 10 steps": ["--often", "0.3"],
    "others vary by half": ["--jitter", "0.5"],
}


def run(words, environment=None):
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stderr[-2000:]}")
    return done.stdout


def trained(args, ranks, more, folder=None):
    """What a run says of its own steps."""
    trace = ["env", f"TUTTI_TRACE={folder}/trace.json"] if folder else []
    out = run(trace + [args.tutti, "run", "-n", str(ranks), "--", args.sleeping, "--steps",
                       str(args.steps), "--sleep-ms", str(args.sleep_ms)] + more)
    return json.loads(out[out.index("{"):out.rindex("}") + 1])


def replayed(args, folder):
    file = folder / "replay.json"
    run([args.tutti, "plan", "replay", str(folder), "--without", f"rank:{RANKS - 1}", "--json",
         str(file)])
    return json.loads(file.read_text())


def one_round(args, more):
    slow = ["--slow-rank", str(RANKS - 1), "--slow-ms", str(args.slow_ms)] + more
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        itself = trained(args, RANKS, slow, folder)
        replay = replayed(args, folder)
    off = replay["as_it_was"]["mean_step_ms"] / itself["mean_step_ms"] - 1
    if abs(off) > 0.01:
        sys.exit(f"the trace has steps of {replay['as_it_was']['mean_step_ms']} ms, the run of "
                 f"{itself['mean_step_ms']} ms")
    return {"slow": itself, "replay": replay["without"],
            "three": trained(args, RANKS - 1, more), "none slow": trained(args, RANKS, more)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutti", default="build/bin/tutti")
    parser.add_argument("--sleeping", default="build/bin/bench_sleeping_ranks")
    parser.add_argument("--sleep-ms", type=float, default=40)
    parser.add_argument("--slow-ms", type=float, default=60)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--within", type=float, default=10, help="percent")
    args = parser.parse_args()

    print("| slow | step | with it, ms | replayed without, ms | measured without, ms | off | "
          "rounds | none slow, ms |")
    print("|---|---|---:|---:|---:|---:|---|---:|")
    worst = 0
    for name, more in CASES.items():
        rounds = [one_round(args, more) for _ in range(args.rounds)]
        for step in ("median", "mean"):
            what = f"{step}_step_ms"
            middle = lambda who: statistics.median(one[who][what] for one in rounds)
            offs = [100 * (one["replay"][what] / one["three"][what] - 1) for one in rounds]
            off = statistics.median(offs)
            worst = max(worst, abs(off))
            print(f"| {name} | {step} | {middle('slow'):.2f} | {middle('replay'):.2f} | "
                  f"{middle('three'):.2f} | {off:+.1f} % | "
                  f"{', '.join(f'{one:+.1f}' for one in offs)} | {middle('none slow'):.2f} |",
                  flush=True)
    return 1 if worst > args.within else 0


if __name__ == "__main__":
    sys.exit(main())
