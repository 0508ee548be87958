#!/usr/bin/env python3
"""Loss over bytes: trainings whose replicas meet in every update, and others that meet every H.

    python3 bench/less_communication.py --out bench/results/less_communication_MACHINE_YYYYMM.md \\
        --picture docs/guide/less_communication.svg

Each row is one `tutti train` of two replicas, as threads; every run of a row gives the same bits, and no figure
depends on the machine. Bytes are those of gradients, or of what replicas have learnt, that a replica sends in
all: wire_bytes_per_step of the JSON, times the steps. The loss is that of all test samples at the end.
"""
import argparse
import html
import json
import math
import pathlib
import subprocess
import tempfile

MODELS = {"mlp": ["--batch-size", "128", "--epochs", "3"],
          "doodle_cnn": ["--batch-size", "128", "--epochs", "1"]}
INNER = ["--optimizer", "adamw", "--learning-rate", "0.002"]
DILOCO = ["--outer-learning-rate", "0.7", "--outer-momentum", "0.9", "--outer-nesterov"]
SETTINGS = [("every update", ["--reduction", "all_reduce"]),
            *((f"local, H = {every}", ["--local-steps", str(every)]) for every in (4, 16, 64)),
            ("post-local, H = 16 from update 100", ["--local-steps", "16", "--local-start", "100"]),
            *((f"DiLoCo, H = {every}", ["--local-steps", str(every), *DILOCO]) for every in (16, 64))]
WIDTH, HEIGHT, LEFT, TOP = 300, 190, 60, 40


def train(tutti, model, flags, data):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "figures.json"
        subprocess.run([tutti, "train", model, "--data", data, "--strategy", "mirrored", "--replicas", "2",
                        "--threads", "1", "--seed", "1", "--verbose", "0", "--json", out, *MODELS[model],
                        *INNER, *flags], check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())


def bytes_in_all(figures, flags, samples):
    """Of post-local SGD the first updates are those of all."""
    steps = figures["epochs"] * -(-samples // figures["global_batch"])
    start = int(flags[flags.index("--local-start") + 1]) if "--local-start" in flags else 0
    every = int(flags[flags.index("--local-steps") + 1]) if "--local-steps" in flags else 1
    return figures["wire_bytes_per_step"] * (start * every + steps - start)


def table(rows):
    lines = ["| model | replicas meet | MB a replica sends | of every update's | test loss | accuracy |",
             "|---|---|---:|---:|---:|---:|"]
    for row in rows:
        lines.append(f"| `{row['model']}` | {row['setting']} | {row['bytes'] / 1e6:.1f} | "
                     f"{row['share']:.1%} | {row['loss']:.3f} | {row['accuracy']:.3f} |")
    return "\n".join(lines)


def text(x, y, words, **style):
    attributes = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{html.escape(words)}</text>'


def panel(left, model, rows):
    losses = [row["loss"] for row in rows]
    low, high = min(losses), max(losses)
    share_at = lambda share: left + WIDTH * (1 + math.log10(share) / 2.2)
    loss_at = lambda loss: TOP + HEIGHT * (1 - (loss - low) / max(high - low, 1e-9) * 0.9)
    parts = [text(left, TOP - 18, model, font_weight="bold"),
             f'<line x1="{left}" y1="{TOP + HEIGHT + 6}" x2="{left + WIDTH}" y2="{TOP + HEIGHT + 6}" stroke="#888888"/>']
    for share in (0.01, 0.1, 1):
        parts.append(text(share_at(share), TOP + HEIGHT + 22, f"{share:.0%}", text_anchor="middle"))
    for row in rows:
        color = "#c77700" if "DiLoCo" in row["setting"] else "#7fa3d6"
        x, y = share_at(row["share"]), loss_at(row["loss"])
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>',
                  text(x, y - 8, f"{row['setting'].split(' from')[0]}: {row['loss']:.3f}", text_anchor="middle",
                       font_size="9")]
    return parts


def svg(rows):
    models = list(dict.fromkeys(row["model"] for row in rows))
    width = LEFT + len(models) * (WIDTH + 80)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 60}" '
             'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>']
    for number, model in enumerate(models):
        parts += panel(LEFT + number * (WIDTH + 80), model, [row for row in rows if row["model"] == model])
    parts.append(text(LEFT, TOP + HEIGHT + 44, "test loss over the bytes that a replica sends, as a part of those "
                                               "of replicas that meet in every update"))
    return "\n".join([*parts, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutti", default="build/bin/tutti")
    parser.add_argument("--data", default="examples/data/quickdraw")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out", help="file of the table; without it, it is printed")
    parser.add_argument("--picture", help="file of an SVG")
    options = parser.parse_args()
    rows = []
    for model in options.models.split(","):
        whole = None
        for setting, flags in SETTINGS:
            figures = train(options.tutti, model, flags, options.data)
            sent = bytes_in_all(figures, flags, 25_000)
            whole = whole or sent
            rows.append({"model": model, "setting": setting, "bytes": sent, "share": sent / whole,
                         "loss": figures["val_loss"], "accuracy": figures["val_accuracy"]})
            print(f"{model}, {setting}: {sent / 1e6:.1f} MB, test loss {figures['val_loss']:.3f}", flush=True)
    if options.out:
        pathlib.Path(options.out).write_text(table(rows) + "\n")
    else:
        print(table(rows))
    if options.picture:
        pathlib.Path(options.picture).write_text(svg(rows))


if __name__ == "__main__":
    main()
