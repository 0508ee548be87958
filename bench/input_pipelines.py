#!/usr/bin/env python3
"""The input pipeline beside its peers, ours and theirs in turn; medians and ratios as a table.

  bench/input_pipelines.py --photos ../shared/data/hymenoptera/train

The parts:

  own       `mlp` with a loader beside reading in the step, and what build/bin/bench_input_speed measures alone: slow
            reads, resident memory, the report of a stage that sleeps
  photos    2,000 photos decoded, cropped, flipped, normalised: beside bare libjpeg-turbo threads, and beside
            DataLoader, tf.data, Grain and SPDL (bench/peer/input_pipelines.py)
  doodles   batches out of memory, beside DataLoader, tf.data and Grain

Each peer's settings are tried once; its best goes into the rounds, or what --settings names. Peers need
`tools/setup --bench-input`, and are left out with --peer-python none. About 25 minutes on two cores.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ("own", "photos", "doodles")
LIMIT_S = 600
TRIED_PHOTOS = 500


def run(*command):
    """What a program prints."""
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-500:]}{done.stderr[-2000:]}")
    return done.stdout


def figures_of(*command):
    """The line of JSON that a program ends with."""
    figures = json.loads(run(*command).splitlines()[-1])
    print(f"load {os.getloadavg()[0]:.1f}: {json.dumps(figures)}", file=sys.stderr, flush=True)
    return figures


def ours(args, case, *more):
    return figures_of(args.program, case, *more)


def trained(args, workers):
    """Images/s of `tutti train`."""
    with tempfile.TemporaryDirectory() as out:
        file = pathlib.Path(out) / "figures.json"
        run(args.tutti, "train", "mlp", "--data", args.doodles, "--strategy", "mirrored", "--replicas", 2,
            "--batch-size", 128, "--epochs", 5, "--workers", workers, "--json", file)
        return json.loads(file.read_text())["images_per_second"]


def folder(args, case):
    return args.photos if case == "photos" else args.doodles


def peer(args, case, setting, photos):
    """Samples a second, and microseconds of a core a sample."""
    figures = figures_of(args.peer_python, ROOT / "bench/peer/input_pipelines.py", case, setting,
                         "--data", folder(args, case), "--samples", photos)
    return figures["per_second"], figures["core_us"]


def best_settings(args, case):
    """Of each peer, of those that it has; all are printed."""
    settings = figures_of(args.peer_python, ROOT / "bench/peer/input_pipelines.py", "--list")[case]
    rates = {}
    for setting in settings:
        rate, _ = peer(args, case, setting, TRIED_PHOTOS)
        rates.setdefault(setting.split(":")[0], []).append((rate, setting))
    print(f"Tried once, {case}/s: "
          + "; ".join(f"{setting} {rate:,.0f}" for one in rates.values() for rate, setting in sorted(one)[::-1]) + "\n",
          flush=True)
    return [max(one)[1] for one in rates.values()]


def in_turn(args, case, settings):
    """A line of figures a round: ours, and each setting's."""
    rounds = []
    for _ in range(args.rounds):
        figures = ours(args, case, "--data", folder(args, case), "--rounds", 1, "--samples", args.samples)
        rounds.append({"ours": (figures["per_second"], figures["core_us"]),
                       **{one: peer(args, case, one, args.samples) for one in settings}})
    return rounds


def show_own(args):
    slow = ours(args, "slow")
    fit = [(trained(args, "auto"), trained(args, 0)) for _ in range(args.rounds)]
    loader, inline = (statistics.median(rates) for rates in zip(*fit))
    ratios = [one / other for one, other in fit]
    memory = ours(args, "memory", "--data", args.photos)
    sleep = ours(args, "sleep")
    print("| what | figure |\n|---|---:|")
    print(f"| reads of 20 ms, steps of {slow['step_ms']} ms, batch {slow['batch']}: waiting, after 200 steps | "
          f"{100 * slow['wait_share']:.1f} % |")
    print(f"| `mlp`, two replicas, with the loader, images/s | {loader:,.0f} |")
    print(f"| the same, read in the step | {inline:,.0f} |")
    print(f"| ratio (least, most) | {statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f}) |")
    print(f"| resident beyond a budget of {memory['budget_mib']} MiB | {memory['beyond_budget_mib']:.0f} MiB |")
    print(f"| a stage that sleeps, ms: {sleep['slept_ms']:.3f}; as reported | {sleep['reported_ms']:.3f} |\n")


def show_bare(args):
    figures = ours(args, "photos", "--data", args.photos, "--rounds", args.rounds)
    print("| photos/s | bare threads | ours | ratio (least, most) | of core time |\n|---|---:|---:|---:|---:|")
    print(f"| decode, crop, flip, normalise | {figures['bare_per_second']:,.0f} | "
          f"{figures['per_second']:,.0f} | {figures['ratio']:.2f} "
          f"({figures['least']:.2f}, {figures['most']:.2f}) | {figures['core_ratio']:.2f} |\n", flush=True)


def show_peers(args, case):
    best = args.settings.split(",") if args.settings else best_settings(args, case)
    rounds = in_turn(args, case, best)
    print(f"| {case}/s | theirs | ours | ratio (least, most) | us of a core a sample, theirs | ours | ratio |\n"
          "|---|---:|---:|---:|---:|---:|---:|")
    for setting in best:
        pairs = [(one[setting], one["ours"]) for one in rounds]
        median = [[statistics.median(one[who][what] for one in pairs) for who in (0, 1)] for what in (0, 1)]
        ratios = [mine[0] / theirs[0] for theirs, mine in pairs]
        cores = statistics.median(theirs[1] / mine[1] for theirs, mine in pairs)
        print(f"| {setting} | {median[0][0]:,.0f} | {median[0][1]:,.0f} | {statistics.median(ratios):.2f} "
              f"({min(ratios):.2f}, {max(ratios):.2f}) | {median[1][0]:,.1f} | {median[1][1]:,.1f} | {cores:.2f} |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build/bin/bench_input_speed")
    parser.add_argument("--tutti", default=ROOT / "build/bin/tutti")
    parser.add_argument("--photos", required=True, help="a folder of classes of photos")
    parser.add_argument("--doodles", default=ROOT / "examples/data/quickdraw")
    parser.add_argument("--peer-python", default=ROOT / ".venv/peers/input/bin/python", help="or none")
    parser.add_argument("--settings", help="of the peers, of one part: not tried but taken")
    parser.add_argument("--samples", type=int, default=2000, help="photos of a round beside peers")
    parser.add_argument("--parts", default=",".join(PARTS), help="of: " + ", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts {', '.join(unknown)}: expected some of {', '.join(PARTS)}")
    if "own" in parts:
        show_own(args)
    if "photos" in parts:
        show_bare(args)
    for case in ("photos", "doodles"):
        if case in parts and args.peer_python != "none":
            show_peers(args, case)


if __name__ == "__main__":
    main()
