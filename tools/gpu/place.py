"""Where the programs of a check are, and how they are run: each in a group of its own, under a limit."""

import dataclasses
import json
import os
import pathlib
import selectors
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAST_LINES = 12


class Failed(Exception):
    """A part did not show what it is for."""


class Skipped(Exception):
    """A part needs what is not here."""


class Deadline:
    def __init__(self, seconds):
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    def left(self):
        return max(0.0, self.end - time.monotonic())


def last_lines(text):
    return "\n  ".join(text.strip().splitlines()[-LAST_LINES:])


def kill(process):
    """It and what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Place:
    """A checkout with a build, or what tools/gpu_check --pack has made of one."""

    def __init__(self, build, python, dry):
        self.build, self.python, self.dry = build, python, dry
        self.data = ROOT / "examples/data/quickdraw"
        self.environment = {**os.environ, "TUTTI_RECORD_DIR": str(build / "records")}
        folders = []
        if dry:
            folders = [build / "tests/fake_cuda"]
            # One order of work that is late and mixed; one thread, since with more of them kernels'
            # sums would depend on which runs a task.
            self.environment |= {"FAKE_CUDA_ORDER": "seed:7", "FAKE_CUDA_DEVICES": "2", "OMP_NUM_THREADS": "1"}
        elif (build / "lib").exists():  # packed
            folders = [build / "lib", *libraries_of_pytorch(python)]
        if folders:
            before = os.environ.get("LD_LIBRARY_PATH", "")
            self.environment["LD_LIBRARY_PATH"] = ":".join([str(f) for f in folders] + [before] * bool(before))

    def program(self, name):
        path = self.build / "bin" / name
        if not path.exists():
            raise Skipped(f"{name} was not built (cmake --build --preset tests, --preset bench)")
        return str(path)


def libraries_of_pytorch(python):
    """Folders of the libraries of that Python's LibTorch, NVIDIA's wheels among them."""
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", find], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return []
    torch = pathlib.Path(found.stdout.strip())
    return [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]


@dataclasses.dataclass
class Finished:
    name: str
    code: int
    output: str
    errors: str

    def last(self):
        return last_lines(self.output + self.errors)


def run(command, environment, deadline):
    """Failed when it has not ended by then."""
    name = pathlib.Path(command[0]).name
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=deadline.left())
        except subprocess.TimeoutExpired:
            raise Failed(f"{name} was not done in time: {deadline.seconds:.0f} s for this part") from None
        finally:
            kill(process)
        errors.seek(0)
        return Finished(name, process.returncode, output, errors.read())


def json_in(finished):
    """The last line of its output that is a JSON object."""
    for line in reversed(finished.output.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise Failed(f"{finished.name} ended with code {finished.code} and no figures:\n  {finished.last()}")


class Answering:
    """A program that answers a line of JSON with one, as bench/peer/talk.py says."""

    def __init__(self, command, environment, deadline):
        self.name, self.deadline = pathlib.Path(command[0]).name, deadline
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, start_new_session=True, bufsize=0)
        self.heard = b""
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)

    def __enter__(self):
        try:
            self.hello = self.hear()
        except Exception:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        kill(self.process)
        self.selector.close()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            file.close()

    def ask(self, **command):
        try:
            self.process.stdin.write((json.dumps(command) + "\n").encode())
        except BrokenPipeError:
            pass  # hear() says why
        return self.hear()

    def hear(self):
        while b"\n" not in self.heard:
            if not self.selector.select(self.deadline.left()):
                raise Failed(f"{self.name} has not answered in time: {self.deadline.seconds:.0f} s for this part")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                code = self.process.wait()
                self.errors.seek(0)
                raise Failed(f"{self.name} ended with code {code}:\n  {last_lines(self.errors.read())}")
            self.heard += more
        line, self.heard = self.heard.split(b"\n", 1)
        return json.loads(line)
