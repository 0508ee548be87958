#!/usr/bin/env python3
"""What `tutti plan choose` takes beside measurements of all that it could have taken, on emulated hosts.

    sudo python3 bench/plan_choices.py --record choices.json --out bench/results/plan_choices_MACHINE_YYYYMM.md
    sudo python3 bench/plan_choices.py --only 3,8

A case is a network, a link and lists of hosts, replicas, batches and servers: every job of them is
measured for a short while, and the command is asked over the same lists. Lost is 1 - useful samples a
second (for objective cost, of a host) of its choice over those of the best; samples of a batch B are
useful as 1 / (1 + B / noise scale). Needs root and iproute2, as bench/plan_runs.py, whose networks,
devices and machine files these are. --record keeps what was measured: cases that it has are not run again.
"""
import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile

from emulated_hosts import CORES, LATENCY, Run, measured
from plan_runs import BATCHES, NETS, Predictor, steps_of, tutti

WITHIN = 0.05


@dataclasses.dataclass(frozen=True)
class Case:
    net: str
    mbit: int
    hosts: tuple
    replicas: tuple  # of a host
    batches: tuple  # of a replica
    servers: tuple = ()
    noise: int = 0  # samples; 0: all are as useful
    objective: str = "time"

    def jobs(self):
        """What the command looks at: each exchange, on so many hosts, with each batch."""
        for hosts in self.hosts:
            for replicas in self.replicas:
                for batch in self.batches:
                    job = dataclasses.replace(NETS[self.net], batch=batch, hosts=hosts, replicas=replicas,
                                              mbit=self.mbit if hosts > 1 else 0)
                    yield job
                    if hosts > 1 and replicas > 1:
                        yield dataclasses.replace(job, flat=True)
                    for servers in self.servers:
                        yield dataclasses.replace(job, mbit=self.mbit, servers=servers)

    def words(self):
        noise = f"noise scale {self.noise}, " if self.noise else ""
        return f"{NETS[self.net].net()} | {self.mbit} Mbit/s | {noise}{self.objective}"


CASES = [
    Case("lenet", 50, (1, 2, 4), (1,), (16, 64), noise=200),
    Case("lenet", 100, (2,), (1, 2), (8, 32), servers=(1,), noise=100),
    Case("lenet", 200, (2, 4), (2,), (8, 64), noise=400),
    Case("mlp", 50, (2, 4), (2,), (32, 128), noise=500),
    Case("mlp", 100, (2, 4), (1,), (16, 64), servers=(1, 2)),
    Case("cnn", 50, (1, 2, 3), (1, 2), (32,), objective="cost"),
    Case("cnn", 200, (2, 4), (1,), (8, 32, 128), noise=200),
    Case("gpt", 100, (1, 2), (1, 2), (32, 128), objective="cost"),
    Case("gpt", 200, (2, 3), (1,), (64, 256), servers=(1, 2), noise=1000),
    Case("gpt", 500, (2,), (1, 2), (16, 64), servers=(1,), noise=300),
    Case("resnet", 100, (1, 2, 4), (1,), (32, 128), noise=1000),
    Case("resnet", 200, (2, 3), (2,), (16, 64), noise=200),
    Case("wide", 500, (1, 2), (1, 2), (32, 128), noise=1000),
    Case("resnet18", 1000, (1, 2), (1,), (16, 64, 128), noise=500),
]


def useful(case, run, step_seconds):
    """Useful samples a second; of a host, where hosts are what counts."""
    samples = run.batch * run.hosts * run.replicas
    speed = samples / step_seconds / (1 + samples / case.noise if case.noise else 1)
    return speed / (run.hosts + run.servers) if case.objective == "cost" else speed


def numbers(values):
    return ",".join(map(str, values))


def chosen(case, predictor):
    """The answer of the command over the lists of the case."""
    answer = predictor.folder / "choice.json"
    words = ["plan", "choose", NETS[case.net].model, "--machine",
             predictor.asked(NETS[case.net], max(case.servers, default=0)), "--link", f"{case.mbit}Mbit,{LATENCY}",
             "--hosts", numbers(case.hosts), "--replicas-per-host", numbers(case.replicas),
             "--batch", numbers(case.batches), "--engine", "all", "--target-images", 1e6, "--objective", case.objective, "--json", answer]
    if case.servers:
        words += ["--strategy", "all", "--servers", numbers(case.servers), "--staleness", 0]
    if case.noise:
        words += ["--noise-scale", case.noise]
    tutti(*words)
    return json.loads(answer.read_text())


def is_chosen(run, best):
    how = f"{run.servers} servers, s=0" if run.servers else "all_reduce"
    return ((run.hosts, run.hosts * run.replicas, run.batch, how) ==
            (best["hosts"], best["replicas"], best["batch"], best["exchange"])
            and (run.servers > 0 or run.kind() == best["engine"]))


def measure(case, predictor, seconds):
    """What was measured of each job, and which was chosen; plain values."""
    answer = chosen(case, predictor)
    size = json.loads(predictor.file(NETS[case.net]).read_text())["bytes"]
    rows = []
    for run in case.jobs():
        figures = measured(run, steps_of(run, size, seconds))
        predicted = predictor.predict(run)["step_seconds"]
        rows.append({"how": run.kind(), "hosts": run.hosts, "replicas": run.replicas, "batch": run.batch,
                     "predicted_ms": 1e3 * predicted, "measured_ms": figures["step_ms"],
                     "core_share": figures["core_share"], "predicted": useful(case, run, predicted),
                     "measured": useful(case, run, 1e-3 * figures["step_ms"]), "chosen": is_chosen(run, answer["best"])})
        print(line_of(case, rows[-1]), file=sys.stderr, flush=True)
    if len(rows) != answer["tried"] or sum(row["chosen"] for row in rows) != 1:
        sys.exit(f"{case}: {len(rows)} jobs measured, the command looked at {answer['tried']}; chosen: {answer['best']}")
    return {"case": repr(case), "why": answer["why"], "jobs": rows}


def line_of(case, row):
    return (f"| {case.words()} | {row['how']} | {row['hosts']} x {row['replicas']} | {row['batch']} "
            f"| {row['predicted_ms']:.1f} | {row['measured_ms']:.1f} | {row['predicted']:.0f} | {row['measured']:.0f} "
            f"| {100 * row['core_share']:.0f} % | {'chosen' if row['chosen'] else ''} |")


def job_words(row):
    return f"{row['hosts']} x {row['replicas']}, batch {row['batch']}, {row['how']}"


def summary(case, rows, busiest):
    """The line of a case, and what its choice lost; None where the cores were the limit of it."""
    kept = [row for row in rows if row["core_share"] <= busiest]
    taken = next(row for row in rows if row["chosen"])
    best = max(kept, key=lambda row: row["measured"])
    lost = 1 - taken["measured"] / best["measured"] if taken in kept else None
    words = "the cores were busy" if lost is None else f"{100 * lost:.1f} %"
    return f"| {case.words()} | {len(kept)} | {job_words(best)} | {job_words(taken)} | {words} |", lost


def page(records, busiest, command):
    lines, lost, jobs = [], [], []
    for case in CASES:
        if repr(case) not in records:
            continue
        rows = records[repr(case)]["jobs"]
        line, loss = summary(case, rows, busiest)
        lines.append(line)
        lost.append(loss)
        jobs += [line_of(case, row) for row in rows]
    decided = [loss for loss in lost if loss is not None]
    good = sum(loss <= WITHIN for loss in decided)
    return "\n".join([
        "# Choices beside measurements of all jobs", "", f"    {command}", "",
        f"Hosts are network namespaces of a machine of {CORES} cores, devices are emulated, as in plan_runs. Of each case every job",
        "was measured (median step), and `tutti plan choose` was asked over the same lists, with machine files of one replica",
        f"alone. Jobs that keep the cores more than {100 * busiest:.0f} % busy are left out. Lost: of the best measured, in useful samples a",
        "second (objective cost: of a host; with a noise scale N samples of a batch B count 1 / (1 + B / N)).", "",
        f"**Within {100 * WITHIN:.0f} % in {good} of {len(decided)} cases.**", "",
        "| network | link | objective | jobs | best measured | chosen | lost |", "|---|---|---|---:|---|---|---:|", *lines, "",
        "Jobs as hosts x replicas of a host, batch of a replica; shm, tcp, hier: engine of an all-reduce (tcp with several",
        "replicas a host: one group of all, a loop of its own).", "", "## All jobs", "",
        "| network | link | objective | how | hosts x replicas | batch | predicted ms | measured ms | useful/s predicted "
        "| measured | cores busy | |", "|---|---|---|---|---|---:|---:|---:|---:|---:|---:|---|", *jobs, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="the page (default: stdout)")
    parser.add_argument("--record", type=pathlib.Path, help="JSON of what was measured, read and written")
    parser.add_argument("--seconds", type=float, default=1.5, help="timed steps of a job")
    parser.add_argument("--only", default="", help="numbers of cases, from 1, as 3,8 (default: all)")
    parser.add_argument("--most-busy", type=float, default=0.95, help="share of the cores; busier jobs are left out")
    arguments = parser.parse_args()
    cases = CASES
    if arguments.only:
        places = [int(word) if word.isdigit() else 0 for word in arguments.only.split(",")]
        if not all(1 <= place <= len(CASES) for place in places):
            parser.error(f"--only {arguments.only}: expected numbers from 1 to {len(CASES)}, as 3,8")
        cases = [CASES[place - 1] for place in places]
    records = {}
    if arguments.record and arguments.record.exists():
        records = {one["case"]: one for one in json.loads(arguments.record.read_text())}
    with tempfile.TemporaryDirectory() as folder:
        predictor = Predictor(folder, BATCHES, seconds=3)
        for case in cases:
            if repr(case) in records:
                continue
            records[repr(case)] = measure(case, predictor, arguments.seconds)
            if arguments.record:
                arguments.record.write_text(json.dumps(list(records.values()), indent=1))
    text = page(records, arguments.most_busy, "python3 bench/plan_choices.py " + " ".join(sys.argv[1:]))
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
