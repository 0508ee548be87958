#!/usr/bin/env python3
"""Networks by multiply-adds for each parameter, and how efficient they are on several hosts: counted and measured.

    sudo python3 bench/plan_networks.py --out bench/results/plan_networks_MACHINE_YYYYMM.md

Each host has an emulated device that computes --gflops 10^9 operations a second, 6 a multiply-add and
sample; what crosses the link is all of the network's gradients. Needs root and iproute2
(bench/emulated_hosts.py), and with vgg11 10 GB of memory.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from emulated_hosts import LATENCY, TUTTI, Device, Run, measured
from plan_runs import Predictor

NETWORKS = "inception_v3,resnet50,resnet18,vgg11,gpt,doodle_cnn,alexnet"
ORDER = ("inception_v3", "resnet50", "alexnet")  # that network's multiply-adds pay most, by count


def table(names, arguments, folder):
    """What `tutti plan table` counts, most multiply-adds a parameter first."""
    answer = pathlib.Path(folder) / "table.json"
    subprocess.run([str(word) for word in (
        TUTTI, "plan", "table", *names, "--link", f"{arguments.mbit}Mbit,{LATENCY}", "--hosts", arguments.hosts,
        "--batch", arguments.batch, "--gflops", arguments.gflops, "--json", answer)], check=True, capture_output=True)
    return json.loads(answer.read_text())


def run_of(counted, arguments):
    pass_us = 1e6 * counted["multiply_adds"] / (arguments.gflops * 1e9)
    device = Device(sample_us_forward=2 * pass_us, sample_us_backward=4 * pass_us)
    return Run(counted["model"], device, arguments.batch, hosts=arguments.hosts, mbit=arguments.mbit)


def row_of(counted, arguments, predictor):
    run = run_of(counted, arguments)
    alone = Run(run.model, run.device, run.batch, threads=True)
    alone_ms = measured(alone, arguments.steps)["step_ms"]
    figures = measured(run, arguments.steps)
    predicted = predictor.predict(run)
    row = counted | {"alone_ms": alone_ms, "step_ms": figures["step_ms"], "predicted": predicted,
                     "measured_efficiency": alone_ms / figures["step_ms"]}
    print(line_of(row), file=sys.stderr, flush=True)
    return row


def line_of(row):
    return (f"| {row['model']} | {row['multiply_adds'] / 1e6:,.1f} | {4e-6 * row['parameters']:,.2f} | {row['ratio']:.1f} "
            f"| {100 * row['efficiency']:.1f} % | {row['alone_ms']:,.1f} | {1e3 * row['predicted']['step_seconds']:,.1f} "
            f"| {row['step_ms']:,.1f} | {100 * row['predicted']['efficiency']:.1f} % "
            f"| {100 * row['measured_efficiency']:.1f} % |")


def page(rows, arguments):
    named = {row["model"]: row for row in rows}
    lines = ["# Networks by multiply-adds for each parameter", "",
             f"    python3 bench/plan_networks.py {' '.join(sys.argv[1:])}", "",
             f"{arguments.hosts} hosts, a replica of {arguments.batch} samples on each, links of {arguments.mbit} Mbit/s;",
             f"emulated devices of {arguments.gflops:g} GFLOP/s. By counting: compute / max(compute, send) of",
             "`tutti plan table`; predicted: `tutti plan`; measured: a step of one replica alone over a step.",
             "Steps are medians.", "",
             "| network | million multiply-adds | MB | multiply-adds a parameter | efficiency by counting | alone ms "
             "| predicted step ms | measured step ms | predicted efficiency | measured efficiency |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|", *map(line_of, rows), ""]
    if all(name in named for name in ORDER):
        ways = {"multiply-adds a parameter": "ratio", "measured efficiency": "measured_efficiency"}
        for words, key in ways.items():
            order = sorted(ORDER, key=lambda name: -named[name][key])
            lines.append(f"- by {words}: {' > '.join(order)}")
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="the page (default: stdout)")
    parser.add_argument("--networks", default=NETWORKS, help="of `tutti plan table` (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--mbit", type=int, default=1000, help="of each host's link")
    parser.add_argument("--batch", type=int, default=32, help="of a replica")
    parser.add_argument("--gflops", type=float, default=1000, help="of a device")
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        predictor = Predictor(folder, (arguments.batch,), seconds=1)
        rows = [row_of(counted, arguments, predictor)
                for counted in table(arguments.networks.split(","), arguments, folder)]
    text = page(rows, arguments)
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
