#!/usr/bin/env python3
"""One of three workers is slow: what synchronous, bounded and asynchronous parameter servers make
of it, as a table and as a plot of the loss against wall time.

  bench/stragglers.py --tutti build/bin/tutti --data examples/data/quickdraw \\
      --plot docs/guide/stragglers.svg

Worker 2 sleeps, constantly or in every fifth step (--slow-worker 2:4 and 2:4:0.2). Rounds alternate
between all ways; medians are printed. Runs take a few minutes.
"""

import argparse
import csv
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

WAYS = {"0": "synchronous", "4": "bounded, 4", "inf": "asynchronous"}
SLOWNESS = {"nobody": None, "always": "2:4", "1 step in 5": "2:4:0.2"}
COLOURS = {"0": "#1f4e9c", "4": "#c77700", "inf": "#2c7a3f"}
LIMIT_S = 600


def train(args, staleness, slow):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        command = [args.tutti, "train", args.model, "--data", args.data, "--strategy",
                   "parameter_server", "--servers", "1", "--replicas", "3", "--staleness",
                   staleness, "--epochs", str(args.epochs), "--batch-size", str(args.batch_size),
                   "--out", str(out), "--json", str(out / "figures.json")]
        if slow:
            command += ["--slow-worker", slow]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
        figures = json.loads((out / "figures.json").read_text())
        with open(out / "history.csv", newline="") as rows:
            history = [(float(r["seconds"]), float(r["train_loss"])) for r in csv.DictReader(rows)]
        return figures, history


def curve(history):
    seconds, points = 0.0, []
    for took, loss in history:
        seconds += took
        points.append((seconds, loss))
    return points


def round_numbers(low, high):
    """Four to ten multiples of 1, 2 or 5 times a power of ten, for an axis."""
    power = 10 ** math.floor(math.log10(high - low))
    step = next(s for s in (power / 5, power / 2, power, 2 * power) if (high - low) / s <= 8)
    first = math.ceil(low / step)
    return [round(i * step, 10) for i in range(first, math.floor(high / step) + 1)]


def svg(curves, title):
    """Lines of loss (y) against seconds (x), one a way."""
    width, height, left, bottom = 640, 360, 60, 50
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points]
    top_x, low, high = max(xs), min(ys) * 0.9, max(ys) * 1.03
    place_x = lambda x: left + x / top_x * (width - left - 120)
    place_y = lambda y: height - bottom - (y - low) / (high - low) * (height - bottom - 40)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
             f'font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<text x="{left}" y="20" font-size="14">{title}</text>',
             f'<line x1="{left}" y1="{height - bottom}" x2="{width - 110}" '
             f'y2="{height - bottom}" stroke="black"/>',
             f'<line x1="{left}" y1="30" x2="{left}" y2="{height - bottom}" stroke="black"/>',
             f'<text x="{width / 2 - 80}" y="{height - 12}">seconds of training</text>',
             f'<text x="14" y="{height / 2}" transform="rotate(-90 14 {height / 2})">'
             f'training loss</text>']
    for x in round_numbers(0, top_x):
        parts.append(f'<text x="{place_x(x) - 8:.1f}" y="{height - bottom + 16}">{x:g}</text>')
    for y in round_numbers(low, high):
        parts.append(f'<text x="{left - 34}" y="{place_y(y) + 4:.1f}">{y:g}</text>')
    for way, points in curves.items():
        line = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[way]}" '
                     f'stroke-width="2"/>')
        x, y = points[-1]
        parts.append(f'<text x="{place_x(x) + 6:.1f}" y="{place_y(y) + 4:.1f}" '
                     f'fill="{COLOURS[way]}">{WAYS[way]}</text>')
    return "\n".join(parts + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutti", default="build/bin/tutti")
    parser.add_argument("--data", default="examples/data/quickdraw")
    parser.add_argument("--model", default="doodle_cnn")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=96, help="of all three workers together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plot", help="SVG file for the constant slowness")
    args = parser.parse_args()

    runs = {}
    for number in range(args.rounds):
        for name, slow in SLOWNESS.items():
            for way in WAYS:
                runs.setdefault((name, way), []).append(train(args, way, slow))
                print(f"round {number + 1}: {name}, {WAYS[way]}", file=sys.stderr)

    print("| slow worker | updates | images/s | of synchronous | val accuracy | mean staleness |")
    print("|---|---|---:|---:|---:|---:|")
    for name in SLOWNESS:
        base = None
        for way in WAYS:
            figures = [f for f, _ in runs[name, way]]
            middle = lambda key: statistics.median(f[key] for f in figures)
            rate = middle("images_per_second")
            base = base or rate
            print(f"| {name} | {WAYS[way]} | {rate:,.0f} | {rate / base:.2f}x | "
                  f"{middle('val_accuracy'):.4f} | {middle('staleness_mean'):.2f} |")
    if args.plot:
        curves = {way: curve(sorted(runs["always", way], key=lambda r: r[0]["train_seconds"])[
            args.rounds // 2][1]) for way in WAYS}
        pathlib.Path(args.plot).write_text(
            svg(curves, "one of three workers takes 4 times as long in every step"))


if __name__ == "__main__":
    main()
