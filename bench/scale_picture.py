#!/usr/bin/env python3
"""Draws what `tutti bench scale --json` wrote: speed over replicas, a panel a model, beside the limit of as
many replicas that never talk to each other (null: not measured); prints the same as a table. On a machine
that does nothing else:

  for model in mlp cnn wide; do
    build/bin/tutti bench scale --model $model --replicas 1,2 --rounds 9 --data examples/data/quickdraw \\
        --json /tmp/$model.json
  done
  cat /tmp/mlp.json /tmp/cnn.json /tmp/wide.json > bench/results/scale_xeon-2core_202611.json
  python3 bench/scale_picture.py bench/results/scale_xeon-2core_202611.json docs/guide/scale.svg
"""

import html
import json
import pathlib
import sys

NEEDED = {"model", "strategy", "replicas", "images_per_second", "limit_images_per_second", "speedup",
          "share_of_limit", "machine", "cores", "torch"}
PANEL, GAP, TOP, HEIGHT, LEFT, LEAST_WIDTH = 170, 30, 84, 170, 20, 560


def read(path):
    """model -> its lines, in the order of the file."""
    models = {}
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            missing = NEEDED - row.keys()
        except (ValueError, AttributeError):
            sys.exit(f"{path}:{number}: no JSON object; expected lines of tutti bench scale --json")
        if missing:
            sys.exit(f"{path}:{number}: no line of tutti bench scale: {min(missing)} is missing")
        models.setdefault(row["model"], []).append(row)
    if not models:
        sys.exit(f"{path}: empty; expected lines of tutti bench scale --json")
    return models


def text(x, y, words, **style):
    attributes = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{html.escape(words)}</text>'


def panel(left, model, rows):
    """A bar for each number of replicas, and across it the limit as a dashed line."""
    limit_of = lambda row: row["limit_images_per_second"] or 0
    most = max(max(row["images_per_second"], limit_of(row)) for row in rows)
    place = lambda rate: TOP + HEIGHT * (1 - rate / most)
    step = PANEL / len(rows)
    parts = [text(left, TOP - 26, model, font_weight="bold"),
             f'<line x1="{left}" y1="{TOP + HEIGHT}" x2="{left + PANEL}" y2="{TOP + HEIGHT}" '
             'stroke="#888888"/>']
    for i, row in enumerate(rows):
        middle, rate, limit = left + step * (i + 0.5), row["images_per_second"], limit_of(row)
        parts += [f'<rect x="{middle - step * 0.32:.1f}" y="{place(rate):.1f}" width="{step * 0.64:.1f}" '
                  f'height="{TOP + HEIGHT - place(rate):.1f}" fill="#7fa3d6"/>',
                  text(middle, place(max(rate, limit)) - 6, f"{rate:,.0f}", text_anchor="middle"),
                  text(middle, TOP + HEIGHT - 8, f'{row["speedup"]:.2f}x', text_anchor="middle"),
                  text(middle, TOP + HEIGHT + 16, f'{row["replicas"]}', text_anchor="middle")]
        if limit:
            parts.append(f'<line x1="{middle - step * 0.42:.1f}" y1="{place(limit):.1f}" '
                         f'x2="{middle + step * 0.42:.1f}" y2="{place(limit):.1f}" stroke="#c77700" '
                         'stroke-width="2" stroke-dasharray="5 3"/>')
    return parts


def svg(models):
    first = next(iter(models.values()))[0]
    width = max(LEAST_WIDTH, 2 * LEFT + len(models) * (PANEL + GAP) - GAP)
    height = TOP + HEIGHT + 44
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#222222">',
             f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
             text(LEFT, 22, f'images/s over replicas ({first["strategy"]}); dashed: as many that never talk',
                  font_size=14),
             text(LEFT, 40, f'{first["machine"]}, {first["cores"]} cores, torch {first["torch"]}')]
    for i, (model, rows) in enumerate(models.items()):
        parts += panel(LEFT + i * (PANEL + GAP), model, rows)
    parts.append(text(LEFT, height - 8, "replicas"))
    return "\n".join(parts + ["</svg>"]) + "\n"


def main(arguments):
    if len(arguments) != 2 or not arguments[1].endswith(".svg"):
        sys.exit("usage: bench/scale_picture.py FILE.json OUT.svg")
    models = read(arguments[0])
    pathlib.Path(arguments[1]).write_text(svg(models))
    print("| model | replicas | images/s | speedup | that never talk, images/s | share of these |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in (row for rows in models.values() for row in rows):
        limit, share = row["limit_images_per_second"], row["share_of_limit"]
        beside = f"{limit:,.0f} | {share:.2f}" if limit else "- | -"
        print(f'| {row["model"]} | {row["replicas"]} | {row["images_per_second"]:,.0f} | '
              f'{row["speedup"]:.2f} | {beside} |')


if __name__ == "__main__":
    main(sys.argv[1:])
