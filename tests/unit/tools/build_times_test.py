"""tools/build_times: a step counts once, by its last run, in its part of the tree."""

import pathlib
import subprocess
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
LOG = """# ninja log v6
0\t9000\t1\ttests/CMakeFiles/test_a.dir/a.cpp.o\taa
1000\t3500\t2\ttutti/CMakeFiles/tutti_base.dir/Unity/unity_0_cxx.cxx.o\tbb
3500\t4000\t3\ttutti/libtutti_base.a\tcc
4000\t6000\t4\ttests/CMakeFiles/test_a.dir/a.cpp.o\taa
6000\t7000\t5\tshare/tutti.1\tdd
6000\t7000\t5\tshare/tutti.bash\tdd
"""


def build_times(*arguments):
    return subprocess.run([REPOSITORY / "tools/build_times", *arguments], capture_output=True, text=True, check=False)


class BuildTimes(unittest.TestCase):
    def test_parts(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / ".ninja_log").write_text(LOG)
            told = build_times(folder, "--slowest", "1")
        self.assertEqual(told.returncode, 0, told.stderr)
        rows = {row[:20].strip(): row[20:].split() for row in told.stdout.splitlines() if " steps " in row}
        self.assertEqual(rows["tests"], ["1", "steps", "2", "s"])
        self.assertEqual(rows["library and program"], ["1", "steps", "2", "s"])
        self.assertEqual(rows["the rest"], ["1", "steps", "1", "s"])
        self.assertEqual(rows["all"], ["4", "steps", "6", "s"])
        self.assertEqual(told.stdout.splitlines()[-1], "     2.5 s  tutti/CMakeFiles/tutti_base.dir/Unity/unity_0_cxx.cxx.o")

    def test_without_a_build(self):
        with tempfile.TemporaryDirectory() as folder:
            told = build_times(folder)
        self.assertEqual(told.returncode, 2)
        self.assertIn("build first", told.stderr)


if __name__ == "__main__":
    unittest.main()
