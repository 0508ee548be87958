"""Pipelines, tensor parallel layers and sharded parameters of tutti beside PyTorch's over Gloo, two ranks of one core each.

    python bench/model_parallel.py --program build/bin/bench_model_parallel --rounds 9
    python bench/model_parallel.py --cases mlp-small-1f1b,tensor-large --json FILE
    python bench/model_parallel.py --cases mlp-large-1f1b --torch-linear

Both sides stay alive and are measured in turn; who begins changes from round to round. Prints
milliseconds of a step (forward, backward, in the sharded cases an update; the slowest rank's), medians
over the rounds, and the median of the rounds' ratios, PyTorch's time / tutti's, with its least and most.
tutti's ranks are threads of one process (strategy mirrored), in the sharded cases two processes as
PyTorch's are, which it needs; --threads has threads there too. tutti's dense layers choose
their own kernel of products; with --torch-linear those of the mlp cases are PyTorch's, so that what is
left is the pipeline.
"""
import argparse
import json
import os
import pathlib
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PEER = HERE / "peer" / "model_parallel.py"
PROGRAM = HERE.parent / "build" / "bin" / "bench_model_parallel"
# mode, flags of both sides, steps of a round: about a second
CASES = {
    "mlp-small-gpipe": ("pipeline-mlp", "--schedule gpipe --width 256 --layers 4 --rows 16", 100),
    "mlp-small-1f1b": ("pipeline-mlp", "--schedule 1f1b --width 256 --layers 4 --rows 16", 100),
    "mlp-large-gpipe": ("pipeline-mlp", "--schedule gpipe --width 1024 --layers 4 --rows 64", 6),
    "mlp-large-1f1b": ("pipeline-mlp", "--schedule 1f1b --width 1024 --layers 4 --rows 64", 6),
    "mlp-large-zb-h1": ("pipeline-mlp", "--schedule zb-h1 --width 1024 --layers 4 --rows 64", 6),
    "gpt-gpipe": ("pipeline-gpt", "--schedule gpipe --width 128 --layers 2 --rows 2", 20),
    "gpt-1f1b": ("pipeline-gpt", "--schedule 1f1b --width 128 --layers 2 --rows 2", 20),
    "gpt-zb-h1": ("pipeline-gpt", "--schedule zb-h1 --width 128 --layers 2 --rows 2", 20),
    "tensor-small": ("tensor", "--width 256 --layers 4 --rows 64", 100),
    "tensor-large": ("tensor", "--width 1024 --layers 4 --rows 256", 4),
    "sharded-mlp": ("sharded-mlp", "--width 1024 --layers 10 --rows 64", 6),
    "sharded-gpt": ("sharded-gpt", "--width 384 --layers 6 --rows 2", 6),
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(PROGRAM))
    parser.add_argument("--cases", default=",".join(CASES), help=", ".join(CASES))
    parser.add_argument("--torch-linear", action="store_true", help="tutti's mlp cases too")
    parser.add_argument("--threads", action="store_true", help="tutti's sharded cases by threads")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=argparse.FileType("w"), help="one line a case")
    arguments = parser.parse_args()
    unknown = set(arguments.cases.split(",")) - set(CASES)
    if unknown:
        parser.error(f"--cases: no {sorted(unknown)[0]}; there are {', '.join(CASES)}")
    return arguments


class Side:
    """The processes of one side."""

    def __init__(self, commands, environments=({}, {})):
        self.processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                           env=os.environ | environment)
                          for command, environment in zip(commands, environments)]
        self.answers()  # each says when it is ready

    def answers(self):
        lines = [process.stdout.readline() for process in self.processes]
        if not all(lines):
            raise SystemExit("a rank ended early: see its error above")
        return [json.loads(line) for line in lines]

    def step_ms(self, steps):
        for process in self.processes:
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        return max(answer["step_ms"] for answer in self.answers())

    def end(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(timeout=60)


def tutti_side(arguments, common):
    command = [arguments.program, *common, "--serve", "--replicas", "2"]
    if arguments.torch_linear:
        command.append("--torch-linear")
    if arguments.threads or not common[0].startswith("sharded"):
        shard = ["--shard", "parameters"] if common[0].startswith("sharded") else []
        return Side([[*command, *shard, "--strategy", "mirrored"]])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]),
                 "TUTTI_TOKEN": secrets.token_hex(32)}
    return Side([[*command, "--shard", "parameters", "--strategy", "multi_worker"]] * 2,
                [place | {"RANK": str(rank)} for rank in range(2)])


def compare(case, arguments, folder):
    mode, flags, steps = CASES[case]
    common = [mode, *flags.split()]
    sides = {
        "tutti": tutti_side(arguments, common),
        "torch": Side([[sys.executable, PEER, *common, "--rank", str(rank), "--store", f"{folder}/{case}"]
                       for rank in range(2)]),
    }
    times = {name: [] for name in sides}
    for round_number in range(arguments.rounds):
        for name in sides if round_number % 2 == 0 else reversed(sides):
            times[name].append(sides[name].step_ms(steps))
    for side in sides.values():
        side.end()
    ratios = sorted(theirs / ours for ours, theirs in zip(times["tutti"], times["torch"]))
    return {"bench": "model_parallel", "case": case, "flags": flags,
            "torch_linear": arguments.torch_linear, "threads": arguments.threads,
            "tutti_ms": round(statistics.median(times["tutti"]), 3),
            "torch_ms": round(statistics.median(times["torch"]), 3),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_least": round(ratios[0], 3), "ratio_most": round(ratios[-1], 3)}


def main():
    arguments = parse_arguments()
    print(f"{'case':16} {'tutti ms':>9} {'torch ms':>9}   torch / tutti (least, most)")
    with tempfile.TemporaryDirectory() as folder:
        for case in arguments.cases.split(","):
            line = compare(case, arguments, folder)
            print(f"{case:16} {line['tutti_ms']:9.2f} {line['torch_ms']:9.2f}   {line['ratio']:.2f} "
                  f"({line['ratio_least']:.2f}, {line['ratio_most']:.2f})", flush=True)
            if arguments.json:
                print(json.dumps(line), file=arguments.json, flush=True)


if __name__ == "__main__":
    main()
