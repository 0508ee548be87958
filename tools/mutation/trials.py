"""Plants faults in a copy of a tree, builds it once, and tries each fault with the tests that reach it."""

import concurrent.futures
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import time

import faults

ERROR = re.compile(r"^(\S+\.cpp):(\d+):\d+: (?:fatal )?error:", re.MULTILINE)


class Failure(Exception):
    """What is no result of a fault."""


def put(path, text):
    """Writes what is new, so that what is as before is not compiled again."""
    if not path.exists() or path.read_bytes() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)


@dataclasses.dataclass
class Tree:
    source: pathlib.Path
    copy: pathlib.Path
    switch: str  # of the copy: the file that defines the switch
    build: object  # () -> (exit code, what the compiler said)
    texts: dict = dataclasses.field(default_factory=dict)  # of the sources that may have faults

    def make(self, modules):
        """A copy of all that git knows; returns what may be planted in the folders `modules`."""
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                cwd=self.source, capture_output=True, check=True).stdout.decode()
        for name in listed.split("\0"):
            path = self.source / name
            if not path.is_file():
                continue
            if name.endswith(".cpp") and any(name.startswith(m.rstrip("/") + "/") for m in modules):
                self.texts[name] = path.read_text()
            else:
                put(self.copy / name, path.read_bytes())
                (self.copy / name).chmod(path.stat().st_mode)
        if not self.texts:
            raise Failure(f"no source in {', '.join(modules)} of {self.source}")
        put(self.copy / self.switch, faults.DEFINITION.encode())
        return [fault for name, text in self.texts.items() for fault in faults.faults_of(name, text)]

    def built(self, candidates, count, seed):
        """{number: Fault} of `count` that compile, in the build; others are drawn for those that do not."""
        drawn = faults.chosen(candidates, len(candidates), seed)
        refused = set()
        while True:
            kept = [f for f in drawn if f not in refused][:count]
            numbered = dict(enumerate(kept, 1))
            for name, text in self.texts.items():
                there = [(number, fault) for number, fault in numbered.items() if fault.path == name]
                put(self.copy / name, (faults.planted(text, there) if there else text).encode())
            code, said = self.build()
            if code == 0:
                return numbered
            at = {(pathlib.Path(path).resolve(), int(line)) for path, line in ERROR.findall(said)}
            wrong = {f for f in kept for line in range(f.line, f.line + f.was.count("\n") + 1)
                     if ((self.copy / f.path).resolve(), line) in at}
            if not wrong:
                raise Failure(f"the copy does not build:\n{said[-4000:]}")
            refused |= wrong


@dataclasses.dataclass
class Suite:
    binary: pathlib.Path
    name: str
    seconds: float = 0
    reaches: frozenset = frozenset()

    def run(self, environment, folder, limit):
        """(exit code or None at the limit, what it printed), with all that it started ended."""
        command = [self.binary, f"--gtest_filter={self.name}.*"]
        records = {"TUTTI_RECORD_DIR": str(folder / "build/tests/records")}
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **records, **environment},
                                   text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   errors="replace", start_new_session=True)
        try:
            said, _ = process.communicate(timeout=limit)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def suites_of(binary, folder):
    listed = subprocess.run([binary, "--gtest_list_tests"], cwd=folder, capture_output=True, text=True,
                            check=True, timeout=120).stdout
    return [Suite(binary, match[1]) for match in re.finditer(r"^(\S+)\.(?: |$)", listed, re.MULTILINE)]


def recorded(suites, folder, scratch, limit):
    """The suites that are green without a fault, each with the faults that it reaches, and the others."""
    green, red = [], []
    for suite in suites:
        record = scratch / "reached"
        record.unlink(missing_ok=True)
        begin = time.monotonic()
        code, _ = suite.run({"TUTTI_FAULT": "0", "TUTTI_FAULT_RECORD": str(record)}, folder, limit)
        suite.seconds = time.monotonic() - begin
        reached = record.read_text().split() if record.exists() else []
        suite.reaches = frozenset(int(number) for number in reached)
        (green if code == 0 else red).append(suite)
    return green, red


def found_by(number, suites, folder):
    """Who finds the fault: a test, a crash or a time limit in a suite; "" where all stay green, None
    where no suite reaches it."""
    reaching = sorted((s for s in suites if number in s.reaches), key=lambda s: s.seconds)
    for suite in reaching:
        limit = 20 + 6 * suite.seconds
        environment = {"TUTTI_FAULT": str(number), "GTEST_FAIL_FAST": "1"}
        code, said = suite.run(environment, folder, limit)
        if code is None:
            return f"{suite.name}: time limit"
        if code != 0:
            failed = re.search(r"^\[  FAILED  \] ([^\s,]+)", said, re.MULTILINE)
            return failed[1] if failed else f"{suite.name}: exit code {code}"
    return "" if reaching else None


def tried(numbered, suites, folder, jobs):
    """(number, Fault, found_by()) of each, as they end."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(found_by, number, suites, folder): number for number in numbered}
        for ended in concurrent.futures.as_completed(waiting):
            yield waiting[ended], numbered[waiting[ended]], ended.result()
