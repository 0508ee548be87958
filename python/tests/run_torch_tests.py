"""Runs PyTorch's own distributed tests on gloo and on tutti and compares.

    python python/tests/run_torch_tests.py                      # all, both backends
    python python/tests/run_torch_tests.py --shard 1/3          # the first third of them
    python python/tests/run_torch_tests.py --only all_reduce    # those whose name matches

Every outcome is appended to RESULTS (default build/torch_tests/results.jsonl) at once; what stands
there is not run again, so a run can be broken off and taken up. --table FILE writes the table of
all outcomes. Exit code 1 when a test passes on gloo and does not on tutti.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEFAULT_RESULTS = HERE.parent.parent / "build" / "torch_tests" / "results.jsonl"
BACKENDS = ("gloo", "tutti")
# The limit of one test; upstream's own watch inside the test process ends it earlier.
TEST_LIMIT_S = 150
# A worker is given up when it says nothing for so long.
WORKER_LIMIT_S = TEST_LIMIT_S + 60


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--world-size", type=int, default=3, help="as upstream runs gloo")
    parser.add_argument("--shard", default="1/1", help="I/N: every Nth test, from the Ith")
    parser.add_argument("--only", default="", help="regular expression on the name")
    parser.add_argument("--again", action="store_true", help="run what has a result, too")
    parser.add_argument("--again-failed", action="store_true", help="run what did not pass, too")
    parser.add_argument("--results", type=Path, default=DEFAULT_RESULTS)
    parser.add_argument("--table", type=Path, help="write the table here")
    parser.add_argument("--minutes", type=float, help="stop starting tests after so long")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def read_results(path):
    """The last outcome of each (backend, test)."""
    outcomes = {}
    if path.exists():
        for line in path.read_text().splitlines():
            one = json.loads(line)
            outcomes[one["backend"], one["test"]] = one
    return outcomes


class Recorder:
    """Appends outcomes of one backend, one JSON object a line."""

    def __init__(self, path, backend):
        self.path, self.backend = path, backend

    def write(self, test, outcome, seconds, reason=""):
        one = {"backend": self.backend, "test": test, "outcome": outcome}
        one |= {"seconds": round(seconds, 2), "reason": reason[-4000:]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(one) + "\n")
        print(f"{self.backend:6} {outcome:8} {seconds:6.1f} s  {test}", flush=True)


def worker(backend, results):
    """Reads names of tests from standard input and runs each; "?" prints all names."""
    import unittest

    import distributed_tests

    names = unittest.TestLoader().getTestCaseNames(distributed_tests.TorchTests)
    recorder = Recorder(results, backend)
    for line in sys.stdin:
        name = line.strip()
        if name == "?":
            print(" ".join(names), flush=True)
            continue
        start = time.monotonic()
        with tempfile.TemporaryFile() as log, redirected(log):
            result = unittest.TestResult()
            distributed_tests.TorchTests(name).run(result)
            log.seek(0)
            tail = log.read()[-3000:].decode(errors="replace")
        outcome, reason = judge(result, tail)
        recorder.write(name, outcome, time.monotonic() - start, reason)


def judge(result, tail):
    troubles = result.failures + result.errors
    if troubles:
        return "failed", troubles[0][1][-1500:] + "\n" + tail
    if result.skipped:
        return "skipped", result.skipped[0][1]
    return "passed", ""


class redirected:
    """Standard output and error of this process and its children go to `file`."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        sys.stdout.flush()
        self.saved = [os.dup(1), os.dup(2)]
        os.dup2(self.file.fileno(), 1)
        os.dup2(self.file.fileno(), 2)

    def __exit__(self, *_):
        sys.stdout.flush()
        for descriptor, saved in zip((1, 2), self.saved):
            os.dup2(saved, descriptor)
            os.close(saved)


class WorkerProcess:
    """A process that runs tests of one backend, started anew when it dies or is stuck."""

    def __init__(self, backend, arguments):
        self.backend, self.arguments, self.process = backend, arguments, None

    def start(self):
        environment = dict(os.environ)
        environment |= {
            "BACKEND": self.backend,
            "WORLD_SIZE": str(self.arguments.world_size),
            "TEMP_DIR": tempfile.mkdtemp(prefix="torch_tests_"),
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_LIMIT_S),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        environment["INIT_METHOD"] = f"file://{environment['TEMP_DIR']}/init_file"
        paths = [str(HERE), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        command = [sys.executable, __file__, "--worker", self.backend]
        command += ["--results", str(self.arguments.results)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def ask(self, line, limit_s):
        """The worker's one line of answer, or None when it died or was too slow and is ended."""
        import select

        if self.process is None:
            self.start()
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], limit_s)
            answer = self.process.stdout.readline() if ready else ""
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.end()
            return None
        return answer.strip()

    def end(self):
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, 9)  # its own session: the worker and its ranks
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process = None


def choose(names, arguments):
    index, count = (int(part) for part in arguments.shard.split("/"))
    return [n for n in names[index - 1 :: count] if re.search(arguments.only, n)]


def run_all(arguments):
    backends = arguments.backends.split(",")
    workers = {backend: WorkerProcess(backend, arguments) for backend in backends}
    names = workers[backends[0]].ask("?", WORKER_LIMIT_S)
    if names is None:
        sys.exit("the tests cannot be imported: see above (expecttest and tutti installed?)")
    done = read_results(arguments.results)
    begin = time.monotonic()
    for test in choose(names.split(), arguments):
        for backend in backends:
            outcome = done.get((backend, test), {}).get("outcome")
            passed_over = outcome in ("failed", "died") and arguments.again_failed
            if outcome is not None and not arguments.again and not passed_over:
                continue
            if arguments.minutes and time.monotonic() - begin > 60 * arguments.minutes:
                break
            start = time.monotonic()
            answer = workers[backend].ask(test, WORKER_LIMIT_S)
            if answer is None:
                recorder = Recorder(arguments.results, backend)
                recorder.write(test, "died", time.monotonic() - start, "the worker died or hung")
            else:
                print(answer, flush=True)
    for one in workers.values():
        one.end()


def worse_on_tutti(outcomes):
    """Tests that pass on gloo and do not on tutti, with what they say there."""
    worse = []
    for (backend, test), one in sorted(outcomes.items()):
        ours = outcomes.get(("tutti", test))
        if backend == "gloo" and one["outcome"] == "passed" and ours is not None:
            if ours["outcome"] != "passed":
                worse.append((test, ours["outcome"], ours["reason"]))
    return worse


def table(outcomes):
    count = collections.defaultdict(collections.Counter)
    seconds = collections.Counter()
    for (backend, _), one in outcomes.items():
        count[backend][one["outcome"]] += 1
        seconds[backend] += one["seconds"]
    lines = ["| backend | ran | passed | failed | skipped | seconds |", "|---|---|---|---|---|---|"]
    for backend, kinds in sorted(count.items()):
        failed = kinds["failed"] + kinds["died"]
        lines.append(
            f"| {backend} | {kinds['passed'] + failed} | {kinds['passed']} | {failed} "
            f"| {kinds['skipped']} | {seconds[backend]:.0f} |"
        )
    worse = worse_on_tutti(outcomes)
    lines += ["", f"Passed on gloo and not on tutti: {len(worse)}."]
    lines += [f"* `{test}`: {outcome}" for test, outcome, _ in worse]
    for backend in BACKENDS:
        failed = [t for (b, t), o in sorted(outcomes.items())
                  if b == backend and o["outcome"] in ("failed", "died")]
        if failed:
            lines += ["", f"Failed on {backend}: " + ", ".join(f"`{t}`" for t in failed) + "."]
    return "\n".join(lines) + "\n"


def main():
    arguments = parse_arguments()
    if arguments.worker:
        return worker(arguments.worker, arguments.results)
    run_all(arguments)
    outcomes = read_results(arguments.results)
    text = table(outcomes)
    print(text)
    if arguments.table:
        arguments.table.write_text(text)
    return 1 if worse_on_tutti(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
