"""tools/skipped_tests: what it finds in GoogleTest's files."""

import pathlib
import subprocess
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]

CASE = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="Listener">
  <testcase name="Works" status="run" result="completed" time="0" classname="Listener" />
  <testcase name="{name}" status="run" result="skipped" time="0" classname="{suite}">
    <skipped message="test_listener.cpp:9&#x0A;no IPv6"><![CDATA[test_listener.cpp:9
no IPv6]]></skipped>
  </testcase>
</testsuite></testsuites>
"""


class SkippedTest(unittest.TestCase):
    def skipped(self, name, *arguments, promised=2, suite="Listener", more=""):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "results"
            results.mkdir()
            (results / "a.xml").write_text(CASE.format(name=name, suite=suite))
            (pathlib.Path(folder) / "test_a_list.cmake").write_text(
                f"# {promised} {results}/a.xml\nadd_test([[a]] [[test_a]])\n{more}")
            return subprocess.run([REPOSITORY / "tools/skipped_tests", *arguments, folder],
                                  capture_output=True, text=True)

    def test_lists_of_binaries_that_are_no_more_promise_nothing(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "results").mkdir()
            (folder / "results/a.xml").write_text(CASE.format(name="WorksOverIPv6", suite="Listener"))
            for test in ("test_a", "test_gone"):
                (folder / f"{test}_list.cmake").write_text(f"# 2 {folder}/results/{test[5:]}.xml\n")
            (folder / "CTestTestfile.cmake").write_text('include("test_a_ctests.cmake")\n')
            command = [REPOSITORY / "tools/skipped_tests", folder]
            self.assertEqual(subprocess.run(command, capture_output=True).returncode, 0)
            (folder / "CTestTestfile.cmake").write_text('include("test_gone_ctests.cmake")\n')
            self.assertEqual(subprocess.run(command, capture_output=True).returncode, 1)

    def test_names_each_with_its_reason(self):
        run = self.skipped("WorksOverIPv6")
        self.assertEqual(run.stdout, "skipped: Listener.WorksOverIPv6: no IPv6\n")
        self.assertEqual(run.returncode, 0)

    def test_known_ones_are_no_failure(self):
        run = self.skipped("WorksOverIPv6", "--new")
        self.assertEqual((run.stdout, run.returncode), ("", 0))

    def test_a_suite_may_be_known_as_a_whole(self):
        run = self.skipped("AreCounted", "--new", suite="Waits")
        self.assertEqual((run.stdout, run.returncode), ("", 0))
        run = self.skipped("AreCounted", "--new", suite="WaitsOfOthers")
        self.assertEqual(run.returncode, 1)

    def test_new_ones_are(self):
        run = self.skipped("WorksOverIPv7", "--new")
        self.assertEqual(run.stdout, "newly skipped: Listener.WorksOverIPv7: no IPv6\n")
        self.assertEqual(run.returncode, 1)

    def test_a_process_that_ends_in_the_middle_is_no_success(self):
        run = self.skipped("WorksOverIPv6", promised=3)
        self.assertEqual(run.stderr, "no result: a: 2 of 3 tests have one\n")
        self.assertEqual(run.returncode, 1)

    def test_a_slow_one_may_be_left_out_where_not_all_are_asked_for(self):
        slow = "# slow 1 /not/there/b.xml\n"
        self.assertEqual(self.skipped("WorksOverIPv6", "--new", more=slow).returncode, 0)
        run = self.skipped("WorksOverIPv6", "--all", more=slow)
        self.assertEqual(run.stderr, "no result: b: 0 of 1 tests have one\n")
        self.assertEqual(run.returncode, 1)

    def test_no_results_are_not_no_skips(self):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([REPOSITORY / "tools/skipped_tests", "--new", folder],
                                 capture_output=True, text=True)
        self.assertEqual(run.returncode, 2)


if __name__ == "__main__":
    unittest.main()
