#!/usr/bin/env python3
"""Drawings of strokes to bitmaps of 64 x 64: tutti beside a generator of Python that draws with cv2.

usage: stroke_bitmaps.py PROGRAM FOLDER [--rounds N] [--samples N] [--json FILE]

PROGRAM is bench_input_speed, FOLDER one of <class>.ndjson. Rounds in turn, on one core each: both read
lines, parse them, draw and make batches of 128 of float32 in 0..1. What is compared is the time of a
core a drawing (user and system), which a machine's other programs hardly touch. cv2 has three ways:

  usual   as the challenge's kernels: lines of width 6 on a canvas of 256, the stroke's number as
          brightness, then cv2.resize() to 64
  usual_time  the same with three channels, as strokes_to_bitmap(64, time) has them: the line, the
          stroke's number, the share of the points that came before
  direct  anti-aliased lines of width 2 at once on 64 x 64, all strokes in one call of polylines()

Needs: opencv-python-headless, numpy.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import time

import cv2
import numpy as np

SIDE = 64
CANVAS = 256
BATCH = 128


def usual(strokes):
    image = np.zeros((CANVAS, CANVAS), np.uint8)
    for number, (xs, ys) in enumerate(strokes):
        brightness = 255 - min(number, 10) * 13
        for i in range(len(xs) - 1):
            cv2.line(image, (xs[i], ys[i]), (xs[i + 1], ys[i + 1]), brightness, 6)
    return cv2.resize(image, (SIDE, SIDE))


def usual_time(strokes):
    image = np.zeros((CANVAS, CANVAS, 3), np.uint8)
    points, before = sum(len(xs) for xs, _ in strokes), 0
    for number, (xs, ys) in enumerate(strokes):
        brightness = 255 - min(number, 10) * 13
        for i in range(len(xs) - 1):
            colour = (255, brightness, 255 - 127 * (before + i) // points)
            cv2.line(image, (xs[i], ys[i]), (xs[i + 1], ys[i + 1]), colour, 6)
        before += len(xs)
    return cv2.resize(image, (SIDE, SIDE)).transpose(2, 0, 1)


def direct(strokes):
    image = np.zeros((SIDE, SIDE), np.uint8)
    scale = 16 * (SIDE - 3) / 255  # four bits after the point
    lines = [(np.array(stroke, np.float32).T * scale + 24).astype(np.int32) for stroke in strokes]
    cv2.polylines(image, lines, False, 255, 2, cv2.LINE_AA, 4)
    return image


def batches(lines, draw, samples):
    """The generator: shuffled lines, one epoch after another."""
    batch = np.zeros((BATCH, 3 if draw is usual_time else 1, SIDE, SIDE), np.float32)
    at = made = 0
    while made < samples:
        random.shuffle(lines)
        for line in lines:
            batch[at] = draw(json.loads(line)["drawing"])
            at, made = at + 1, made + 1
            if at == BATCH:
                yield batch / 255
                at = 0
            if made >= samples:
                return


def python_core_us(lines, draw, samples):
    begin = time.process_time()
    for _ in batches(lines, draw, samples):
        pass
    return 1e6 * (time.process_time() - begin) / samples


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=20000)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()

    cv2.setNumThreads(1)
    lines = [line for path in sorted(options.folder.glob("*.ndjson"))
             for line in path.read_text(encoding="utf-8").splitlines()]
    command = [options.program, "strokes", "--data", str(options.folder), "--rounds", "1",
               "--samples", str(options.samples)]
    rounds = []
    for _ in range(options.rounds):
        ours = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        rounds.append({"tutti": ours["core_us"], "tutti_time": ours["core_us_with_time"],
                       "usual": python_core_us(lines, usual, options.samples // 4),
                       "usual_time": python_core_us(lines, usual_time, options.samples // 4),
                       "direct": python_core_us(lines, direct, options.samples // 4)})
    ratios = {key: [r[peer] / r[own] for r in rounds] for key, own, peer in
              (("usual_over_tutti", "tutti", "usual"),
               ("usual_time_over_tutti_time", "tutti_time", "usual_time"),
               ("direct_over_tutti", "tutti", "direct"))}
    figures = {
        "drawings": len(lines), "rounds": options.rounds, "cv2": cv2.__version__,
        "core_us": {key: statistics.median(r[key] for r in rounds) for key in rounds[0]},
        "per_core_second": {key: 1e6 / statistics.median(r[key] for r in rounds) for key in rounds[0]},
        "ratio": {key: {"median": statistics.median(v), "least": min(v), "most": max(v)}
                  for key, v in ratios.items()},
    }
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
