"""tools/quickstart, with a cmake of the test's own: what it shows of a build and its failures."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]

# As make does, the other jobs of the build go on after the one that failed.
NOISE = "\n".join(f"[{i}/900] Building CXX object fit_errors.cpp.{i}.o" for i in range(200))


class QuickstartTest(unittest.TestCase):
    def build(self, log):
        """The quick start in a checkout whose build prints `log` and fails; every look at the clock
        is 10 s after the one before."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        (root / "tools").mkdir()
        (root / "bin").mkdir()
        shutil.copy(REPOSITORY / "tools/quickstart", root / "tools/quickstart")
        (root / "log").write_bytes(log)
        cmake = root / "bin/cmake"
        cmake.write_text(f'#!/bin/sh\n[ "$1" = --build ] || exit 0\ncat "{root}/log"\nexit 1\n')
        date = root / "bin/date"
        date.write_text(
            f'#!/bin/sh\nn=$(cat "{root}/now" || echo 0)\n'
            f'echo $((n + 10)) | tee "{root}/now"\n'
        )
        for program in (cmake, date):
            program.chmod(0o755)
        result = subprocess.run(
            [root / "tools/quickstart", "2"],
            capture_output=True,
            timeout=60,
            env={**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}"},
        )
        self.assertEqual(result.returncode, 1, result)
        return result

    def failed_build(self, log):
        """stderr of a build that prints `log`."""
        return self.build(log).stderr.decode(errors="replace")

    def test_says_how_far_the_build_is_and_how_long_it_takes(self):
        steps = "".join(f"[{i}/40] Building CXX object {i}.o\n" for i in range(1, 41))
        lines = self.build(f"-- Configuring done\n{steps}".encode()).stdout.decode().splitlines()
        self.assertIn("about 6 min with 2 jobs", lines[0])
        self.assertEqual(
            lines[1:5],
            [
                "   4 of 40 steps, 10 s; about 1 min 30 s left",
                "   8 of 40 steps, 20 s; about 1 min 20 s left",
                "   12 of 40 steps, 30 s; about 1 min 10 s left",
                "   16 of 40 steps, 40 s; about 1 min 0 s left",
            ],
        )
        self.assertEqual(lines[10:], ["   40 of 40 steps, 1 min 40 s; about 0 s left"])

    def test_shows_no_steps_where_there_is_nothing_to_build(self):
        self.assertEqual(len(self.build(b"ninja: no work to do.\n").stdout.splitlines()), 1)

    def test_shows_the_first_errors_and_not_the_end(self):
        compiler = (
            "FAILED: tutti/gradients.cpp.o\n"
            "/usr/bin/c++ -O2 " + "-Wmany " * 1000 + "\n"
            "tutti/sync/gradients.cpp: In function 'void f()':\n"
            "tutti/sync/gradients.cpp:81:5: error: invalid use of incomplete type 'class Node'\n"
            "   81 |     node->name();\n"
            "      |     ^~~~~~~~~~~~\n"
            "torch/csrc/autograd/edge.h:14:8: note: forward declaration of 'class Node'\n"
        )
        shown = self.failed_build(f"{NOISE}\n{compiler}{NOISE}\nninja: stopped\n".encode())
        self.assertIn("gradients.cpp:81:5: error: invalid use of incomplete type", shown)
        self.assertIn("node->name();", shown)
        self.assertIn("build/quickstart-build.log", shown)
        self.assertNotIn("fit_errors.cpp.199.o", shown)
        self.assertNotIn("-Wmany", shown)

    def test_knows_the_errors_of_all_tools(self):
        for line in (
            "CMake Error at CMakeLists.txt:40 (find_package):",
            "a.o: undefined reference to `f()'",
            "c++: fatal error: Killed signal terminated program cc1plus",
            "ninja: error: loading 'build.ninja': No such file or directory",
            "/usr/bin/ld: final link failed: No space left on device",
        ):
            self.assertIn(line, self.failed_build(f"{NOISE}\n{line}\n{NOISE}\n".encode()))

    def test_shows_no_more_than_a_screen(self):
        errors = "\n".join(f"a.cpp:{i}:1: error: {'x' * 5000} {i}" for i in range(300))
        shown = self.failed_build(errors.encode())
        self.assertIn("a.cpp:0:1: error: xxx", shown)
        self.assertNotIn("a.cpp:50:1", shown)
        self.assertLess(len(shown), 20_000)

    def test_shows_the_end_where_nothing_looks_like_an_error(self):
        shown = self.failed_build(f"{NOISE}\nsomething odd \xff\n".encode("latin-1"))
        self.assertIn("something odd", shown)
        self.assertIn("fit_errors.cpp.199.o", shown)

    def test_names_an_error_in_bytes_that_are_no_text(self):
        shown = self.failed_build(b"\xff\xfe\x00\nb.cpp:1:1: error: x\n" + NOISE.encode())
        self.assertIn("b.cpp:1:1: error: x", shown)


if __name__ == "__main__":
    unittest.main()
