"""Two trainings side by side on the same cores: what is left of each one's speed.

    python bench/two_jobs.py --data examples/data/quickdraw --rounds 3

Each training has two replicas, one a core. Prints images/s of one alone, of each of two at once, and
how much of half its speed each of the two keeps; one JSON line a model and strategy. "independent"
are replicas that never wait for each other: what caches and the scheduler cost in any case.
"""

import argparse
import json
import pathlib
import statistics
import subprocess

TUTTI = pathlib.Path(__file__).resolve().parents[1] / "build" / "bin" / "tutti"
# Steps of one measurement: some seconds each on a 2-core machine.
STEPS = {"mlp": 20000, "cnn": 600, "wide": 200}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--models", default="mlp,cnn,wide")
    parser.add_argument("--strategies", default="mirrored,multi_worker,independent")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=argparse.FileType("w"), help="one line a measurement")
    return parser.parse_args()


def start(model, strategy, steps, data):
    command = [TUTTI, "bench", "step", "--model", model, "--strategy", strategy, "--data", data]
    command += ["--replicas", "2", "--threads", "1", "--batch-size", "128", "--preload"]
    command += ["--steps", str(steps), "--warmup", "20"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def rate(job):
    output = job.communicate()[0]
    figures = [line for line in output.splitlines() if '{"bench"' in line]
    if job.returncode != 0 or not figures:
        raise SystemExit(f"bench step failed:\n{output}")
    return json.loads(figures[0][figures[0].index("{") :])["images_per_second"]


def measure(model, strategy, arguments):
    alone, together, kept = [], [], []
    for _ in range(arguments.rounds):
        alone.append(rate(start(model, strategy, STEPS[model], arguments.data)))
        jobs = [start(model, strategy, 2 * STEPS[model], arguments.data) for _ in range(2)]
        rates = [rate(job) for job in jobs]
        together += rates
        kept.append(min(rates) / (alone[-1] / 2))
    return {
        "bench": "two_jobs",
        "model": model,
        "strategy": strategy,
        "alone_images_per_second": round(statistics.median(alone)),
        "each_of_two_images_per_second": round(statistics.median(together)),
        "kept_of_half": round(statistics.median(kept), 3),
    }


def main():
    arguments = parse_arguments()
    print(f"{'model':6} {'strategy':13} {'alone':>10} {'each of two':>12} {'of half':>8}")
    for model in arguments.models.split(","):
        for strategy in arguments.strategies.split(","):
            line = measure(model, strategy, arguments)
            print(
                f"{model:6} {strategy:13} {line['alone_images_per_second']:10,} "
                f"{line['each_of_two_images_per_second']:12,} {line['kept_of_half']:8.2f}",
                flush=True,
            )
            if arguments.json:
                print(json.dumps(line), file=arguments.json, flush=True)


if __name__ == "__main__":
    main()
