#!/usr/bin/env python3
"""Steps over emulated hosts that compute: ours beside DistributedDataParallel and MPI, in turn.

    sudo .venv/bin/python bench/host_steps.py --out bench/results/host_steps_MACHINE_YYYYMM.md
    sudo .venv/bin/python bench/host_steps.py --cases gpt@1000,wide@4000 --rounds 1 --without-peers
    sudo .venv/bin/python bench/host_steps.py --cases gpt@1000+5,resnet18@4000 --hosts 2,3,4

A case is MODEL@MBIT of each host's link, or MODEL@MBIT+MS with so many milliseconds from host to host, each way.
Hosts are network namespaces (bench/emulated_hosts.py: needs root and iproute2), host r computes on core r
alone, with one thread; more hosts than cores share these. Links with latency meet in a process that computes,
too: the page says how much. Peers need torch in the Python that runs this and Open MPI (tools/setup --bench),
and backend tutti (make python); one that is not there is left out, and the page says so. What stands in the
table, as medians over the rounds of median steps:

  t1      all hosts compute at once, each by itself, so that they share the memory and nothing travels
  t2      what crosses a link each way in an all-reduce, over its rate; latency not counted
  fused, all_reduce    strategy multi_worker
  idle    of fused: the share of a step in which a host's core has nothing to do, of the idlest host. What is left
          of it is what hiding could win yet: a core that sends, receives and computes without a pause cannot be faster
  s=0, s=1, s=inf      parameter servers, one a host, without backups; a step of worker 0
  t1 of the peer       as t1, in PyTorch
  DDP     over each backend, with the best of the buckets asked for, in MB; beside it over ours in step: fused,
          of dlrm s=0
  MPI     PyTorch, and one all-reduce of all gradients by Open MPI after backward

gpt: 4 blocks of 256 features, 12 windows of 64 characters a host; cnn 64, wide 128, mlp 64, resnet18 16 doodles a
host; dlrm 256 samples a host (bench/dlrm_step.cpp), whose table of rows is on servers, so that multi_worker has
none of it, in DDP's peer a gradient of rows alone (sparse), which MPI's all-reduce cannot sum.
"""
import argparse
import dataclasses
import os
import pathlib
import signal
import statistics
import sys
import tempfile

from host_trainings import BATCHES, CORES, HOROVOD, PEERS, Trainings, case_of, missing

CASES = "gpt@1000,gpt@500,wide@4000,wide@1000,cnn@4000"
OURS = {"fused": [], "all_reduce": ["--reduction", "all_reduce"]}
STALENESS = ("0", "1", "inf")
WAYS = (*OURS, *(f"s={s}" for s in STALENESS))


def arguments_of_user():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=CASES, help=f"(default: {CASES})")
    parser.add_argument("--hosts", default="2", help="how many, as 2,3,4 (default: 2)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--buckets", default="25,2,1", help="of DDP, in MB (default: 25,2,1)")
    parser.add_argument("--peers", default=",".join(PEERS),
                        help="gloo and tutti: DDP's backends; mpi: sums by Open MPI (default: all)")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, help="the page (default: stdout)")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("SKIPPED: bench/host_steps.py makes network namespaces, which needs root")
    if arguments.rounds < 1 or arguments.steps < 1:
        parser.error(f"--rounds {arguments.rounds} --steps {arguments.steps}: expected 1 or more")
    for count in arguments.hosts.split(","):
        if count not in ("2", "3", "4", "5", "6", "7", "8"):
            parser.error(f"--hosts {arguments.hosts!r}: expected numbers from 2 to 8, as 2,3,4")
    for bucket in arguments.buckets.split(","):
        if not bucket.isdigit() or int(bucket) < 1:
            parser.error(f"--buckets {bucket!r}: expected whole MB, as 25,2,1")
    for peer in arguments.peers.split(","):
        if peer not in PEERS:
            parser.error(f"--peers {peer!r}: expected some of {','.join(PEERS)}")
    for case in arguments.cases.split(","):
        if not case_of(case):
            parser.error(f"--cases {case}: expected MODEL@MBIT or MODEL@MBIT+MS, MODEL one of {', '.join(BATCHES)}")
    return arguments


def contenders(run, case, peers, buckets):
    """What to run, by its name in the table; buckets: of DDP."""
    served = ["parameter_server", "--staleness"]
    runs = {"t1": lambda: run.alone(case)}
    if case.model != "dlrm":
        runs |= {name: lambda more=more: run.ours(case, ["multi_worker", *more]) for name, more in OURS.items()}
    runs |= {f"s={s}": lambda s=s: run.ours(case, [*served, s], servers=True) for s in STALENESS}
    if peers:
        runs["t1 of the peer"] = lambda: run.peer_alone(case)
    for backend in (peer for peer in peers if peer != "mpi"):
        runs |= {(backend, bucket): lambda backend=backend, bucket=bucket: run.ddp(case, backend, bucket)
                 for bucket in buckets}
    if "mpi" in peers and case.model != "dlrm":
        runs["mpi"] = lambda: run.mpi(case)
    return runs


def words_of(name):
    return name if isinstance(name, str) else "DDP " + " ".join(name)


def is_ours(name):
    return name == "t1" or name in WAYS


def or_nothing(once):
    """Its milliseconds; NaN where a peer does not end: the rest of the page is worth having."""
    try:
        return once()
    except SystemExit as error:
        print(f"LEFT OUT of this round: {error}", file=sys.stderr, flush=True)
        return float("nan")


def measured(run, case, runs, rounds):
    times = {name: [] for name in runs}
    for number in range(rounds):
        for name, once in runs.items():
            times[name].append(once() if is_ours(name) else or_nothing(once))
            if name == "fused":
                times.setdefault("idle", []).append(run.idle)
        print(f"{case.hosts} hosts, {case.model}, {case.link()}, round {number + 1}:",
              ", ".join(f"{words_of(name)} {values[-1]:.4g}" for name, values in times.items()), file=sys.stderr, flush=True)
    medians = {name: statistics.median(known) for name, values in times.items()
               if (known := [value for value in values if value == value])}
    if "fused" in runs:
        medians["t2"] = run.t2(case)
    return medians


def line_of(case, ms, peers):
    most = max(ms["t1"], ms.get("t2", 0))
    in_step = ms.get("fused", ms["s=0"])

    def cell(name, more=""):
        return f"{ms[name]:.1f}{more}" if name in ms else "-"

    cells = [case.model, case.link(), cell("t1"), cell("t2")]
    for name in WAYS:
        cells.append(cell(name, f" ({ms[name] / most:.2f})" if "t2" in ms else ""))
        if name == "fused":
            cells.append(f"{ms['idle']:.0%}" if "idle" in ms else "-")
    cells += [cell("t1 of the peer")] if peers else []
    for peer in peers:
        best = peer if peer == "mpi" else min((name for name in ms if name[0] == peer), key=ms.get, default=peer)
        cells.append(cell(best, f", {best[1]} MB" if peer != "mpi" else ""))
        cells.append(f"{ms[best] / in_step:.2f}" if best in ms else "-")
    return "| " + " | ".join([str(case.hosts), *cells]) + " |"


def main():
    arguments = arguments_of_user()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what deletes the namespaces
    wanted = [] if arguments.without_peers else arguments.peers.split(",")
    lacks = missing(wanted)
    peers = [peer for peer in wanted if peer not in lacks]
    left_out = [f"{peer}: {why}" for peer, why in lacks.items()] + ([HOROVOD] if wanted else [])
    for line in left_out:
        print(f"LEFT OUT {line}", file=sys.stderr, flush=True)
    counts = [int(count) for count in arguments.hosts.split(",")]
    head = ["hosts", "model", "link", "t1", "t2", "fused", "idle", *WAYS[1:], *(["t1 of the peer"] if peers else [])]
    for peer in peers:
        head += ["MPI" if peer == "mpi" else f"DDP, {peer}", f"{peer} / ours"]
    lines = ["# Steps over hosts of one core", "",
             f"    .venv/bin/python bench/host_steps.py {' '.join(sys.argv[1:])}", "",
             "Milliseconds; in brackets over max(t1, t2). `bench/host_steps.py --help` says what is what.", "",
             "| " + " | ".join(head) + " |", "|---:|---|---|" + "---:|" * (len(head) - 3)]
    with tempfile.TemporaryDirectory() as folder:
        run = Trainings(arguments.steps, folder)
        for count in counts:
            for words in arguments.cases.split(","):
                case = dataclasses.replace(case_of(words), hosts=count)
                runs = contenders(run, case, peers, arguments.buckets.split(","))
                lines.append(line_of(case, measured(run, case, runs, arguments.rounds), peers))
    lines.append("")
    if max(counts) > len(CORES):
        lines.append(f"More than {len(CORES)} hosts share {len(CORES)} cores: t1, too, is of hosts that share.")
    if run.middle_share:
        lines.append(f"Latency is given by a process on the same cores, which computed for up to {run.middle_share:.0%} of a step.")
    lines += [f"Left out: {line}." for line in left_out]
    text = "\n".join(lines).rstrip() + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
