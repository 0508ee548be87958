"""Trainings over emulated hosts that compute, ours and others', one at a time: what bench/host_steps.py times.

Host r computes on core r alone with one thread; where there are more hosts than cores they share: core r mod cores.
A case is MODEL@MBIT of each host's link, or MODEL@MBIT+MS with so many milliseconds from host to host, each way.
"""
import ctypes
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

from emulated_hosts import PAYLOAD, ROOT, TUTTI, WARM_UP, Hosts, address, run_all

CORES = sorted(os.sched_getaffinity(0))
DLRM = ROOT / "build" / "bin" / "bench_dlrm_step"
PEER = ROOT / "bench" / "peer" / "host_step.py"
DOODLES = ROOT / "examples" / "data" / "quickdraw"
BATCHES = {"mlp": 64, "wide": 128, "cnn": 64, "gpt": 12, "resnet18": 16, "dlrm": 256}  # of a host
GPT = ["--layers", 4, "--features", 256, "--heads", 4, "--context", 64, "--stride", 64]
PEERS = ("gloo", "tutti", "mpi")
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "eth0"}
HOROVOD = ("Horovod: its last release, 0.28.1 of 2023, has no wheel, and its source asks for C++14, which the headers of "
           "PyTorch 2.13 refuse")
# Starts a command on the host of an address, as ssh would: for mpirun, which takes one name for one host.
AGENT = """#!/bin/sh
host=$((${{1##*.}} - 1)); shift
exec ip netns exec {prefix}host$host unshare --uts sh -c "hostname host$host; $*"
"""


@dataclasses.dataclass(frozen=True)
class Case:
    model: str
    mbit: int
    latency_ms: float = 0
    hosts: int = 2

    def link(self):
        return f"{self.mbit} Mbit/s" + (f" + {self.latency_ms:g} ms" if self.latency_ms else "")

    def batch(self):
        return BATCHES[self.model]


def case_of(words):
    """None where the words are no case."""
    found = re.fullmatch(r"(\w+)@(\d+)(?:\+(\d+(?:\.\d+)?))?", words)
    if not found or found[1] not in BATCHES or int(found[2]) < 1 or float(found[3] or 0) > 1000:
        return None
    return Case(found[1], int(found[2]), float(found[3] or 0))


def missing(peers):
    """What each of them lacks here."""
    lacks = {}
    if not importlib.util.find_spec("torch"):
        return {peer: f"no torch in {sys.executable} (tools/setup --bench)" for peer in peers}
    module = [sys.executable, "-c", "import tutti.torch"]
    if subprocess.run(module, env=os.environ | ENVIRONMENT, capture_output=True).returncode:
        lacks["tutti"] = f"{sys.executable} cannot import tutti.torch (make python)"
    try:
        ctypes.CDLL("libmpi.so.40")
    except OSError as error:
        lacks["mpi"] = f"{error} (Open MPI: tools/setup --bench)"
    if not shutil.which("mpirun"):
        lacks["mpi"] = "no mpirun (Open MPI: tools/setup --bench)"
    return {peer: why for peer, why in lacks.items() if peer in peers}


class CoreWatch:
    """What the cores do, ten times a second, until it ends."""

    def __init__(self):
        self.seen, self.ended = [], threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def watch(self):
        while not self.ended.wait(0.1):
            lines = [line.split() for line in pathlib.Path("/proc/stat").read_text().splitlines()]
            ticks = {line[0]: [int(tick) for tick in line[1:9]] for line in lines if line[0][3:].isdigit()}
            self.seen.append((time.time(), [ticks[f"cpu{core}"] for core in CORES]))

    def idle(self, begin, end):
        """The share of that time in which the idlest core had nothing to do; NaN of too short ones."""
        inside = [ticks for at, ticks in self.seen if begin <= at <= end]
        if len(inside) < 3:
            return float("nan")
        passed = [[late - early for early, late in zip(*core)] for core in zip(inside[0], inside[-1])]
        return max((core[3] + core[4]) / max(1, sum(core)) for core in passed)


class Trainings:
    """Each method runs one, of so many timed steps, and returns milliseconds of the median step."""

    def __init__(self, steps, folder):
        self.steps, self.folder = steps, pathlib.Path(folder)
        self.idle = None  # of the hosts' cores, the share of the last fused steps
        self.sent_once = None  # bytes of the last fused step that host 0 sent as gradients
        self.middle_share = 0  # the most of a step that bench_delayed_links computed, with what begins a job
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(page.read_text() for page in sorted((ROOT / "docs").rglob("*.md"))))

    def figures(self, host):
        return self.folder / f"{host}.json"

    def place(self, host):
        return ["taskset", "-c", CORES[host % len(CORES)]]

    def run(self, commands):
        """All at once, to their end; the figures that they wrote, by host."""
        for old in self.folder.glob("*.json"):
            old.unlink()
        run_all(commands, ENVIRONMENT)
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob("*.json"))]

    def over_links(self, case, commands):
        """commands: of the open Hosts. The figures of host 0 and its milliseconds."""
        with Hosts(case.hosts, case.mbit, case.latency_ms) as hosts, CoreWatch() as watch:
            figures = self.run(commands(hosts))[0]
            middle = hosts.end_middle() if case.latency_ms else None
        ms = figures["step_ms_p50"]
        if not ms:
            raise SystemExit(f"{case}: worker 0 was given none of {self.steps} steps: ask for more")
        written, lasted = self.figures(0).stat().st_mtime, self.steps * ms / 1e3
        self.idle = watch.idle(written - 0.8 * lasted, written - 0.1 * lasted)
        if middle:
            if middle["dropped"]:
                raise SystemExit(f"{case}: bench_delayed_links dropped {middle['dropped']} frames")
            self.middle_share = max(self.middle_share, 1e3 * middle["cpu_s"] / (self.steps + WARM_UP) / ms)
        return figures, ms

    def in_namespaces(self, of_host):
        return lambda hosts: [["ip", "netns", "exec", hosts.name(host), *self.place(host), *of_host(host)]
                              for host in range(hosts.count)]

    def train(self, case, replicas, strategy, host):
        # Where nobody waits, workers share out the steps.
        steps = self.steps * (replicas if strategy[-1] in ("1", "inf") else 1)
        if case.model == "dlrm":
            return [DLRM, case.batch() * replicas, steps, self.figures(host), "--strategy", *strategy, "--threads", 1]
        words = [TUTTI, "train", case.model, "--data", self.text if case.model == "gpt" else DOODLES,
                 "--batch-size", case.batch() * replicas, "--strategy", *strategy, "--threads", 1,
                 "--max-steps", steps, "--verbose", 0, "--json", self.figures(host)]
        return words + (GPT if case.model == "gpt" else [])

    def alone(self, case):
        figures = self.run([[*self.place(host), *self.train(case, 1, ["one_device"], host)] for host in range(case.hosts)])
        return max(each["step_ms_p50"] for each in figures)

    def ours(self, case, strategy, servers=False):
        launcher = [TUTTI, "run", "--nodes", case.hosts, "--rendezvous", f"{address(0)}:29500", "-n", 1]
        if servers:
            launcher += ["--servers", 1, "--no-backups"]
        figures, ms = self.over_links(case, self.in_namespaces(
            lambda host: [*launcher, "--node-rank", host, *self.train(case, case.hosts, strategy, host)]))
        if strategy == ["multi_worker"]:
            self.sent_once = figures["wire_bytes_per_step"]
        return ms

    def t2(self, case):
        """After a fused step of this case: an all-reduce's bytes, gradients and as many as sums, over the link's rate."""
        return 2 * self.sent_once / (case.mbit * 1e6 / 8 * PAYLOAD) * 1e3

    def rank_of_peer(self, case, host, *more):
        return [sys.executable, PEER, case.model, "--batch", case.batch(), "--steps", self.steps, "--data", DOODLES,
                "--text", self.text, "--json", self.figures(host), *more]

    def peer_alone(self, case):
        figures = self.run([[*self.place(host), *self.rank_of_peer(case, host)] for host in range(case.hosts)])
        return max(each["step_ms_p50"] for each in figures)

    def ddp(self, case, backend, bucket):
        more = ["--ranks", case.hosts, "--meet", f"{address(0)}:29700", "--backend", backend, "--bucket-mb", bucket]
        return self.over_links(case, self.in_namespaces(
            lambda host: self.rank_of_peer(case, host, *more, "--rank", host)))[1]

    def mpi(self, case):
        agent = self.folder / "agent"
        options = {"plm_rsh_agent": agent, "btl": "tcp,self", "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0",
                   "mpi_yield_when_idle": int(case.hosts > len(CORES))}

        def commands(hosts):
            agent.write_text(AGENT.format(prefix=hosts.prefix))
            agent.chmod(0o700)
            command = ["ip", "netns", "exec", hosts.name(0), "mpirun", "--allow-run-as-root", "--bind-to", "none"]
            command += [word for option in options.items() for word in ("--mca", *option)]
            for host in range(case.hosts):
                rank = self.rank_of_peer(case, host, "--ranks", case.hosts, "--rank", host, "--backend", "mpi")
                command += [*([":"] if host else []), "-n", 1, "-H", address(host), *self.place(host), *rank]
            return [command]

        return self.over_links(case, commands)[1]
