"""DistributedDataParallel over backend tutti beside the same over Gloo.

    python bench/ddp_backends.py --data examples/data/quickdraw --rounds 5 --json FILE
    python bench/ddp_backends.py --data examples/data/quickdraw --models mlp --busy

model  mlp     784-128-10                      wide  784-2048-2048-10
       cnn     conv 16-32-64, dense 128-10

Both backends train the same model in turn, in processes that stay alive between rounds (one thread a
rank), so that a drift of the machine meets both. Prints images/s of all ranks, medians over the
rounds, and the median of the rounds' ratios with its spread; one JSON line a model.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

STEP = pathlib.Path(__file__).resolve().parent / "peer" / "step.py"
BACKENDS = ("tutti", "gloo")
# Steps of one measurement: about a second each on a 2-core machine.
STEPS = {"mlp": 800, "cnn": 60, "wide": 30}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--models", default="mlp,cnn,wide")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="of one rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", action="store_true", help="beside a busy loop on each core")
    parser.add_argument("--pin", action="store_true", help="rank r to core r")
    parser.add_argument("--json", type=argparse.FileType("w"), help="one line a model")
    return parser.parse_args()


@contextlib.contextmanager
def busy_cores(wanted):
    """A loop on each usable core that never waits."""
    loop = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    cores = sorted(os.sched_getaffinity(0)) if wanted else []
    loops = [subprocess.Popen([sys.executable, "-c", loop, str(core)]) for core in cores]
    try:
        yield
    finally:
        for process in loops:
            process.kill()
            process.wait()


class Peers:
    """The ranks of one backend."""

    def __init__(self, backend, arguments, folder):
        self.processes = [
            subprocess.Popen(
                [sys.executable, STEP, "ddp", "--backend", backend, "--data", arguments.data]
                + ["--rank", str(rank), "--ranks", str(arguments.ranks)]
                + (["--cores", str(rank)] if arguments.pin else [])
                + ["--store", f"{folder}/{backend}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(arguments.ranks)
        ]
        self.answers()  # each says which torch it runs when it is ready

    def answers(self):
        lines = [process.stdout.readline() for process in self.processes]
        if not all(lines):
            raise SystemExit("a rank ended early: see its error above")
        return [json.loads(line) for line in lines]

    def measure(self, **command):
        """Images a second of all ranks together."""
        for process in self.processes:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        return sum(answer["images_per_second"] for answer in self.answers())

    def end(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(timeout=60)


def compare(model, peers, arguments):
    rates = {backend: [] for backend in BACKENDS}
    for round_number in range(arguments.rounds):
        # Who begins changes from round to round.
        for backend in BACKENDS if round_number % 2 == 0 else reversed(BACKENDS):
            rates[backend].append(
                peers[backend].measure(
                    model=model, batch=arguments.batch, steps=STEPS[model], warmup=10
                )
            )
    ratios = sorted(ours / theirs for ours, theirs in zip(rates["tutti"], rates["gloo"]))
    return {
        "bench": "ddp_backends",
        "model": model,
        "ranks": arguments.ranks,
        "batch": arguments.batch,
        "busy": arguments.busy,
        "tutti_images_per_second": round(statistics.median(rates["tutti"])),
        "gloo_images_per_second": round(statistics.median(rates["gloo"])),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_least": round(ratios[0], 3),
        "ratio_most": round(ratios[-1], 3),
    }


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder, busy_cores(arguments.busy):
        peers = {backend: Peers(backend, arguments, folder) for backend in BACKENDS}
        print(f"{'model':6} {'tutti':>10} {'gloo':>10}   ratio (least, most)   images/s")
        for model in arguments.models.split(","):
            line = compare(model, peers, arguments)
            print(
                f"{model:6} {line['tutti_images_per_second']:10,} "
                f"{line['gloo_images_per_second']:10,}   {line['ratio']:.2f} "
                f"({line['ratio_least']:.2f}, {line['ratio_most']:.2f})",
                flush=True,
            )
            if arguments.json:
                print(json.dumps(line), file=arguments.json, flush=True)
        for peer in peers.values():
            peer.end()


if __name__ == "__main__":
    main()
