"""Emulated hosts: network namespaces behind a bridge, whose links have a rate, and trainings on them.

Needs root and iproute2 (Debian: apt install iproute2). What a host sends is shaped at its own end of the
link, what it receives at the bridge's, by tbf; so both ways have the rate at once. All hosts share the
cores of this machine: `bench_emulated_step` sleeps where a device would compute. Links with latency meet in a
process, `bench_delayed_links`, instead of the bridge: few kernels have netem.
"""
import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TUTTI = ROOT / "build" / "bin" / "tutti"
PROGRAM = ROOT / "build" / "bin" / "bench_emulated_step"
MIDDLE = ROOT / "build" / "bin" / "bench_delayed_links"
CORES = len(os.sched_getaffinity(0))
LIMIT_S = 240
WARM_UP = 3
FIRST = ("nice", "-n", "-15")  # before what else this machine does
MTU = 9000  # few packets: each costs the cores, which all hosts share
# Of what passes tbf, which counts 14 bytes a frame beside it, so much is data of TCP with timestamps.
PAYLOAD = (MTU - 52) / (MTU + 14)
LATENCY = "50us"


@dataclasses.dataclass(frozen=True)
class Device:
    """How long a replica computes: milliseconds of a pass, and microseconds more a sample."""
    forward_ms: float = 0
    backward_ms: float = 0
    sample_us_forward: float = 0
    sample_us_backward: float = 0
    jitter: float = 0

    def flags(self):
        return [word for name, value in dataclasses.asdict(self).items()
                for word in (f"--{name.replace('_', '-')}", repr(value))]

    def seconds(self, batch):
        return (1e-3 * (self.forward_ms + self.backward_ms)
                + 1e-6 * batch * (self.sample_us_forward + self.sample_us_backward))


@dataclasses.dataclass(frozen=True)
class Run:
    """A training. hosts compute; servers, if any, have hosts of their own."""
    model: str
    device: Device
    batch: int
    hosts: int = 1
    replicas: int = 1  # a host
    mbit: int = 0  # of each host's link; 0: of one host
    servers: int = 0
    staleness: str = "0"
    threads: bool = False  # replicas of one host are threads, not processes
    flat: bool = False  # a loop of its own over one tcp group of all replicas, not a strategy
    width: float = 1

    def kind(self):
        if self.servers:
            return f"{self.servers} servers, s={self.staleness}"
        if self.hosts > 1:
            return "tcp" if self.replicas == 1 or self.flat else "hier"
        return "threads" if self.threads else "shm"

    def net(self):
        return self.model if self.width == 1 else f"{self.model} x{self.width:g}"


def sh(*words):
    subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)


def address(host):
    return f"10.77.0.{host + 1}"


class Hosts:
    """Namespaces of so many hosts, for as long as it is open. latency_ms: from one to another, each way."""

    def __init__(self, count, mbit, latency_ms=0.0):
        self.count, self.mbit, self.latency_ms = count, mbit, latency_ms
        self.prefix = f"tutti{os.getpid()}"
        self.middle = None

    def name(self, host):
        return f"{self.prefix}host{host}"

    def __enter__(self):
        hub = f"{self.prefix}hub"
        self.made = [hub]
        try:
            sh("ip", "netns", "add", hub)
            if not self.latency_ms:
                sh("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
                sh("ip", "-n", hub, "link", "set", "bridge", "up")
            for host in range(self.count):
                self.add(host, hub)
            if self.latency_ms:
                self.start_middle(hub)
        except BaseException:
            self.__exit__()
            raise
        return self

    def add(self, host, hub):
        name, wire = self.name(host), f"wire{host}"
        sh("ip", "netns", "add", name)
        self.made.append(name)
        sh("ip", "-n", hub, "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", name)
        sh("ip", "-n", hub, "link", "set", wire, *([] if self.latency_ms else ["master", "bridge"]), "mtu", MTU, "up")
        sh("ip", "-n", name, "addr", "add", f"{address(host)}/24", "dev", "eth0")
        sh("ip", "-n", name, "link", "set", "eth0", "mtu", MTU, "up")
        sh("ip", "-n", name, "link", "set", "lo", "up")
        sh("ip", "netns", "exec", name, "sysctl", "-q", "net.ipv4.tcp_congestion_control=reno")
        # What a link that was idle sends at once: little, but enough for a timer that comes late.
        burst = 64_000 if self.mbit >= 500 else MTU + 200
        for where, device in ((hub, wire), (name, "eth0")):
            sh("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{self.mbit}mbit",
               "burst", burst, "latency", "1s")

    def start_middle(self, hub):
        wires = [f"wire{host}" for host in range(self.count)]
        self.middle = subprocess.Popen([*FIRST, "ip", "netns", "exec", hub, MIDDLE, str(self.latency_ms), *wires],
                                       stdout=subprocess.PIPE, text=True)
        if self.middle.stdout.readline() != "ready\n":
            raise SystemExit(f"{MIDDLE} did not start: see its error above")

    def end_middle(self):
        """Frames that it moved, dropped, its cpu_s and late_us; it ends."""
        self.middle.terminate()
        said, _ = self.middle.communicate(timeout=10)
        self.middle = None
        return json.loads(said)

    def __exit__(self, *_):
        if self.middle:
            self.middle.kill()
            self.middle.wait()
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def commands_of(run, steps, hosts):
    """What each host starts; those that compute first."""
    # On hosts that share cores replicas are not to be pinned and not to spin: as if threads had none to spare.
    program = [PROGRAM, run.model, "--width", run.width, "--batch", run.batch, "--steps", steps, "--warm-up", WARM_UP, *run.device.flags(),
               "--threads", CORES if run.hosts > 1 else 1]
    if run.hosts == 1 and not run.servers:
        if run.threads:
            return [[*program, "--strategy", "mirrored", "--replicas", run.replicas]]
        return [[TUTTI, "run", "-n", run.replicas, *program, "--strategy", "multi_worker"]]
    if run.flat:
        program.append("--flat")
    else:
        program += ["--strategy", "parameter_server" if run.servers else "multi_worker"]
    if run.servers:
        program += ["--staleness", run.staleness, "--partition", f"min:16K:{run.servers}"]  # equal shares
    at_servers = ["--servers-elsewhere", run.servers, "--view-service", f"{address(0)}:29600", "--no-backups"]
    commands = [["ip", "netns", "exec", hosts.name(host), TUTTI, "run", "--nodes", run.hosts, "--node-rank", host,
                 "--rendezvous", f"{address(0)}:29500", "-n", run.replicas,
                 *(at_servers if run.servers else []), *program] for host in range(run.hosts)]
    return commands + [["ip", "netns", "exec", hosts.name(run.hosts + server), TUTTI, "ps", "--view-service",
                        f"{address(0)}:29600"] for server in range(run.servers)]


def run_all(commands, environment=None):
    """Runs them at once, to the end, and returns all that they said; SystemExit with it if one failed."""
    environment = os.environ | {"TUTTI_TOKEN": secrets.token_hex(32)} | (environment or {})
    with tempfile.TemporaryFile("w+") as out:
        processes = [subprocess.Popen([str(word) for word in command], stdout=out, stderr=out, env=environment, cwd=ROOT)
                     for command in commands]
        try:
            codes = [process.wait(timeout=LIMIT_S) for process in processes]
        except subprocess.TimeoutExpired as late:
            raise SystemExit(f"no end within {LIMIT_S} s: {' '.join(map(str, late.cmd))}") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        out.seek(0)
        text = out.read()
    if any(codes):
        raise SystemExit(f"exit codes {codes} of {' '.join(map(str, commands[0]))}\n{text[-3000:]}")
    return text


def measured(run, steps):
    """The figures of `bench_emulated_step`, and core_share: how busy its processes kept the cores."""
    network = Hosts(run.hosts + run.servers, run.mbit) if run.mbit else contextlib.nullcontext()
    with network as hosts:
        text = run_all([[*FIRST, *command] for command in commands_of(run, steps, hosts)])
    lines = [line[line.index("{"):] for line in text.splitlines() if '{"bench"' in line]
    if len(lines) != 1:
        raise SystemExit(f"{run}: {len(lines)} lines of figures, expected one\n{text[-3000:]}")
    figures = json.loads(lines[0])
    processes = 1 if run.threads else run.hosts * run.replicas
    figures["core_share"] = figures["cpu_ms"] * processes / (CORES * figures["step_ms_mean"])
    return figures
