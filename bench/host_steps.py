#!/usr/bin/env python3
"""Steps over emulated hosts that compute: ours beside DistributedDataParallel, in turn.

    sudo .venv/bin/python bench/host_steps.py --out bench/results/host_steps_MACHINE_YYYYMM.md
    sudo .venv/bin/python bench/host_steps.py --cases gpt@1000,wide@4000 --rounds 1 --without-peer

A case is MODEL@MBIT of each host's link. Hosts are network namespaces (bench/emulated_hosts.py: needs root
and iproute2), host r computes on core r alone, with one thread. The peer needs torch in the Python that
runs this (tools/setup --bench). What stands in the table, as medians over the rounds of median steps:

  t1      all hosts compute at once, each by itself, so that they share the memory and nothing travels
  t2      what crosses a link each way in an all-reduce, over its rate
  fused, all_reduce    strategy multi_worker
  s=0, s=1, s=inf      parameter servers, one a host, without backups; a step of worker 0
  t1 of the peer       as t1, in PyTorch
  DDP     over each backend, with the best of the buckets asked for, in MB; over tutti: make python

gpt: 4 blocks of 256 features, 12 windows of 64 characters a host; cnn 64, wide 128, mlp 64 doodles a host.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

from emulated_hosts import PAYLOAD, ROOT, TUTTI, Hosts, address, run_all

CORES = sorted(os.sched_getaffinity(0))
PEER = ROOT / "bench" / "peer" / "host_step.py"
DOODLES = ROOT / "examples" / "data" / "quickdraw"
CASES = "gpt@1000,gpt@500,wide@4000,wide@1000,cnn@4000"
BATCHES = {"gpt": 12, "wide": 128, "cnn": 64, "mlp": 64}  # of a host
GPT = ["--layers", 4, "--features", 256, "--heads", 4, "--context", 64, "--stride", 64]
OURS = {"fused": [], "all_reduce": ["--reduction", "all_reduce"]}
STALENESS = ("0", "1", "inf")


def arguments_of_user():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=CASES, help=f"(default: {CASES})")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--buckets", default="25,2,1", help="of DDP, in MB (default: 25,2,1)")
    parser.add_argument("--backends", default="gloo", help="of DDP: gloo, tutti or both (default: gloo)")
    parser.add_argument("--without-peer", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, help="the page (default: stdout)")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("SKIPPED: bench/host_steps.py makes network namespaces, which needs root")
    if not 2 <= arguments.hosts <= len(CORES):
        parser.error(f"--hosts {arguments.hosts}: expected 2 to {len(CORES)}, a core each")
    for bucket in arguments.buckets.split(","):
        if not bucket.isdigit() or int(bucket) < 1:
            parser.error(f"--buckets {bucket!r}: expected whole MB, as 25,2,1")
    for backend in arguments.backends.split(","):
        if backend not in ("gloo", "tutti"):
            parser.error(f"--backends {backend!r}: expected gloo, tutti or gloo,tutti")
    for case in arguments.cases.split(","):
        model, _, mbit = case.partition("@")
        if model not in BATCHES or not mbit.isdigit() or int(mbit) < 1:
            parser.error(f"--cases {case}: expected MODEL@MBIT, MODEL one of {', '.join(BATCHES)}")
    return arguments


class Bench:
    def __init__(self, arguments, folder):
        self.hosts, self.steps, self.folder = arguments.hosts, arguments.steps, pathlib.Path(folder)
        self.text = self.folder / "text.txt"
        pages = sorted((ROOT / "docs").rglob("*.md"))
        self.text.write_text("".join(page.read_text() for page in pages))

    def train(self, model, strategy, hosts, host):
        words = [TUTTI, "train", model, "--data", self.text if model == "gpt" else DOODLES,
                 "--batch-size", BATCHES[model] * hosts, "--strategy", *strategy, "--threads", 1,
                 "--max-steps", self.steps, "--verbose", 0, "--json", self.folder / f"{host}.json"]
        return words + (GPT if model == "gpt" else [])

    def run(self, commands, network=None):
        """Each command on its host and core; the figures that they wrote, by host."""
        for old in self.folder.glob("*.json"):
            old.unlink()
        placed = []
        for host, command in enumerate(commands):
            where = ["ip", "netns", "exec", network.name(host)] if network else []
            placed.append([*where, "taskset", "-c", CORES[host], *command])
        run_all(placed, {"GLOO_SOCKET_IFNAME": "eth0"})
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob("*.json"))]

    def alone(self, model):
        figures = self.run([self.train(model, ["one_device"], 1, host) for host in range(self.hosts)])
        return max(each["step_ms_p50"] for each in figures)

    def ours(self, model, mbit, strategy, servers=False):
        launcher = [TUTTI, "run", "--nodes", self.hosts, "--rendezvous", f"{address(0)}:29500", "-n", 1]
        if servers:
            launcher += ["--servers", 1, "--no-backups"]
        with Hosts(self.hosts, mbit) as network:
            figures = self.run([[*launcher, "--node-rank", host, *self.train(model, strategy, self.hosts, host)]
                                for host in range(self.hosts)], network)
        if strategy == ["multi_worker"]:
            self.sent_once = figures[0]["wire_bytes_per_step"]  # and once more as sums
        return figures[0]["step_ms_p50"]

    def rank_of_peer(self, model, host, *more):
        return [sys.executable, PEER, model, "--batch", BATCHES[model], "--steps", self.steps, "--data", DOODLES,
                "--text", self.text, "--json", self.folder / f"{host}.json", *more]

    def peer_alone(self, model):
        figures = self.run([self.rank_of_peer(model, host) for host in range(self.hosts)])
        return max(each["step_ms_p50"] for each in figures)

    def peer(self, model, mbit, backend, bucket):
        more = ["--ranks", self.hosts, "--meet", f"{address(0)}:29700", "--backend", backend, "--bucket-mb", bucket]
        with Hosts(self.hosts, mbit) as network:
            figures = self.run([self.rank_of_peer(model, host, *more, "--rank", host)
                                for host in range(self.hosts)], network)
        return figures[0]["step_ms_p50"]

    def contenders(self, model, mbit, peers):
        served = ["parameter_server", "--staleness"]
        runs = {name: lambda more=more: self.ours(model, mbit, ["multi_worker", *more])
                for name, more in OURS.items()}
        runs |= {f"s={s}": lambda s=s: self.ours(model, mbit, [*served, s], servers=True) for s in STALENESS}
        if peers:
            runs["t1 of the peer"] = lambda: self.peer_alone(model)
        return runs | {f"DDP {backend} {bucket}": lambda backend=backend, bucket=bucket:
                       self.peer(model, mbit, backend, bucket) for backend, bucket in peers}


def measured(bench, model, mbit, peers, rounds):
    times = {}
    for number in range(rounds):
        times.setdefault("t1", []).append(bench.alone(model))
        for name, run in bench.contenders(model, mbit, peers).items():
            times.setdefault(name, []).append(run())
        print(f"{model}@{mbit} round {number + 1}:",
              ", ".join(f"{name} {values[-1]:.1f}" for name, values in times.items()), file=sys.stderr, flush=True)
    medians = {name: statistics.median(values) for name, values in times.items()}
    medians["t2"] = 2 * bench.sent_once / (mbit * 1e6 / 8 * PAYLOAD) * 1e3
    return medians


def line_of(model, mbit, ms, peers):
    most = max(ms["t1"], ms["t2"])
    cells = [model, f"{mbit} Mbit/s", f"{ms['t1']:.1f}", f"{ms['t2']:.1f}"]
    cells += [f"{ms[name]:.1f} ({ms[name] / most:.2f})" for name in (*OURS, *(f"s={s}" for s in STALENESS))]
    if peers:
        cells.append(f"{ms['t1 of the peer']:.1f}")
    for backend in dict.fromkeys(backend for backend, _ in peers):
        theirs, best = min((ms[f"DDP {backend} {bucket}"], bucket) for of, bucket in peers if of == backend)
        cells += [f"{theirs:.1f}, {best} MB", f"{theirs / ms['fused']:.2f}"]
    return "| " + " | ".join(cells) + " |"


def main():
    arguments = arguments_of_user()
    backends = [] if arguments.without_peer else arguments.backends.split(",")
    peers = [(backend, bucket) for backend in backends for bucket in arguments.buckets.split(",")]
    head = ["model", "link", "t1", "t2", *OURS, *(f"s={s}" for s in STALENESS)]
    head += ["t1 of the peer"] if peers else []
    head += [word for backend in backends for word in (f"DDP, {backend}", f"{backend} / fused")]
    lines = [f"# Steps over {arguments.hosts} hosts of one core", "",
             f"    .venv/bin/python bench/host_steps.py {' '.join(sys.argv[1:])}", "",
             "Milliseconds; in brackets over max(t1, t2). `bench/host_steps.py --help` says what is what.", "",
             "| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, folder)
        for case in arguments.cases.split(","):
            model, _, mbit = case.partition("@")
            ms = measured(bench, model, int(mbit), peers, arguments.rounds)
            lines.append(line_of(model, int(mbit), ms, peers))
    text = "\n".join(lines) + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
