"""tools/planted_faults: the patches of tests/data/faults still apply, the tests that they name exist, and a
small tree of whose faults one is found.
"""

import fnmatch
import importlib.machinery
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
LISTS = (REPOSITORY / "tests/CMakeLists.txt").read_text(encoding="utf-8")


def load():
    path = str(REPOSITORY / "tools/planted_faults")
    loader = importlib.machinery.SourceFileLoader("planted_faults", path)
    spec = importlib.util.spec_from_loader("planted_faults", loader)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True  # beside the tool nothing is to lie
    sys.modules["planted_faults"] = module  # dataclasses look there
    loader.exec_module(module)
    module.progress = lambda words: None
    return module


planted_faults = load()


def tests_of(binary):
    """Suite.Test, or Prefix/Suite.Test, of what stands in the folders of a test binary."""
    declared = re.search(rf"tutti_test\({binary.removeprefix('test_')}\b([^)]*)\)", LISTS)
    if declared is None:
        return set()
    folders = re.search(r"FOLDERS ([^A-Z]+)", declared[1])
    folders = folders[1].split() if folders else [f"unit/{binary.removeprefix('test_')}"]
    text = "\n".join(path.read_text(encoding="utf-8") for folder in folders
                     for path in sorted((REPOSITORY / "tests" / folder).glob("*.cpp")))
    names = {f"{suite}.{test}" for suite, test in re.findall(r"\bTEST(?:_F)?\(\s*(\w+),\s*(\w+)\)", text)}
    prefixes = re.findall(r"\bINSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+)", text)
    for suite, test in re.findall(r"\bTEST_P\(\s*(\w+),\s*(\w+)\)", text):
        names |= {f"{prefix}/{suite}.{test}" for prefix, of in prefixes if of == suite}
    return names


class Patches(unittest.TestCase):
    faults = planted_faults.all_faults()

    def test_the_three_of_the_fused_step_are_there(self):
        names = {fault.name for fault in self.faults}
        self.assertLessEqual({"wait_before_use", "piece_before_whole", "write_before_words"}, names)

    def test_each_applies(self):
        for fault in self.faults:
            with self.subTest(fault.name):
                done = subprocess.run(["git", "apply", "--check", fault.path], cwd=REPOSITORY, text=True,
                                      capture_output=True)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_each_is_in_the_library_alone(self):
        for fault in self.faults:
            text = fault.path.read_text(encoding="utf-8")
            for path in re.findall(r"^\+\+\+ b/(.+)$", text, re.MULTILINE):
                self.assertRegex(path, r"^tutti/", fault.name)

    def test_the_tests_that_it_names_exist(self):
        for fault in self.faults:
            for check in fault.checks:
                known = tests_of(check.binary)
                for name in check.filter.split(":"):
                    # Of Prefix/Suite.Test/Parameter parameters are not looked at.
                    suite, _, test = name.partition(".")
                    wanted = f"{suite}.{test.partition('/')[0]}"
                    self.assertTrue(fnmatch.filter(known, wanted), f"{fault.name}: {check.binary} has no {name}")


CLAMP = """int clamp(int value, int low) {
  if (value < low) return low;
  return value;
}
"""

# As a binary of GoogleTest answers.
TESTS = """#include <cstdio>
#include <cstring>
int clamp(int value, int low);
bool asked(const char* words, const char* name) {
  if (std::strstr(words, name) == nullptr) return false;
  return std::printf("[ RUN      ] %s\\n", name) > 0;
}
int main(int, char** argv) {
  bool good = true;
  if (asked(argv[1], "Low.IsHeld")) good = clamp(3, 5) == 5;
  else if (asked(argv[1], "High.IsKept")) good = clamp(7, 5) == 7;
  else if (asked(argv[1], "Late.Ends")) while (clamp(3, 5) != 5) {}
  else if (asked(argv[1], "Root.Looks"))
    return std::puts("a.cpp:1: Skipped\\nthis is not root\\n\\n[  SKIPPED ] Root.Looks (0 ms)") < 0;
  else return 0;
  std::puts(good ? "[       OK ] it (0 ms)" : "[  FAILED  ] The.Test (0 ms)");
  return good ? 0 : 1;
}
"""

LOW = "-  if (value < low) return low;\n+  if (value < low) return value;\n"


class Trial(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "clamp.cpp").write_text(CLAMP)
        (self.root / "tests.cpp").write_text(TESTS)
        (self.root / "build/bin").mkdir(parents=True)
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        self.tree = planted_faults.Tree(self.root, self.root / "build", self.build)
        self.asked = []

    def build(self, binaries):
        self.asked.append(binaries)
        command = ["c++", "clamp.cpp", "tests.cpp", "-o", "build/bin/test_m"]
        return planted_faults.run_all(command, cwd=self.root)

    def fault(self, *filters, change=LOW):
        red = "".join(f"red: test_m {each}\n" for each in filters)
        head = "diff --git a/clamp.cpp b/clamp.cpp\n--- a/clamp.cpp\n+++ b/clamp.cpp\n@@ -1,3 +1,3 @@\n"
        path = self.root / "low.patch"
        path.write_text(f"What is low is kept,\nas it is.\n{red}\n{head}"
                        f" int clamp(int value, int low) {{\n{change}   return value;\n")
        return planted_faults.read(path)

    def trial(self, *faults, limit=20):
        code, table = planted_faults.trial(self.tree, faults, limit, 2)
        self.assertEqual((self.root / "clamp.cpp").read_text(), CLAMP)
        return code, table

    def test_a_fault_that_each_of_its_tests_finds(self):
        fault = self.fault("Low.IsHeld")
        self.assertEqual((fault.words, [str(check) for check in fault.checks]),
                         ("What is low is kept, as it is.", ["test_m Low.IsHeld"]))
        code, table = self.trial(fault)
        self.assertEqual(code, 0, table)
        self.assertIn("1 of 1 faults were found", table)
        self.assertRegex(table, r"\| low \| `test_m Low\.IsHeld` \| found: The\.Test \| \d")
        self.assertEqual(self.asked, [["test_m"], ["test_m"]])

    def test_a_test_that_does_not_find_it(self):
        code, table = self.trial(self.fault("Low.IsHeld", "High.IsKept"))
        self.assertEqual(code, 1)
        self.assertIn("| low | `test_m High.IsKept` | **not found** |", table)
        self.assertIn("0 of 1 faults were found", table)

    def test_a_run_that_does_not_end_is_red(self):
        code, table = self.trial(self.fault("Late.Ends"), limit=1)
        self.assertEqual(code, 0, table)
        self.assertIn("found: time limit of 1 s", table)

    def test_a_skipped_test_finds_nothing_and_says_why(self):
        code, table = self.trial(self.fault("Root.Looks"))
        self.assertEqual(code, 1)
        self.assertIn("skipped: this is not root", table)
        self.assertEqual(self.trial(self.fault("Root.Looks", "Low.IsHeld"))[0], 0)

    def test_a_tree_that_is_red_without_a_fault(self):
        (self.root / "tests.cpp").write_text(TESTS.replace("== 7", "== 8"))
        code, table = planted_faults.trial(self.tree, [self.fault("High.IsKept")], 20, 2)
        self.assertEqual((code, table), (1, "red without a fault:\ntest_m High.IsKept: The.Test\n"))
        self.assertEqual(self.asked, [["test_m"]])

    def test_one_that_does_not_build_is_not_found_and_taken_back(self):
        code, table = self.trial(self.fault("Low.IsHeld", change=LOW.replace("return value", "return nothing")))
        self.assertEqual(code, 1)
        self.assertIn("**does not build**", table)

    def test_what_is_no_result(self):
        with self.assertRaisesRegex(planted_faults.Failure, "there is no such test"):
            self.trial(self.fault("Low.Gone"))
        with self.assertRaisesRegex(planted_faults.Failure, "low does not apply"):
            self.trial(self.fault("Low.IsHeld", change=LOW.replace("value <", "value >")))
        (self.root / "silent.patch").write_text("Words alone.\n\ndiff --git a/clamp.cpp b/clamp.cpp\n")
        with self.assertRaisesRegex(planted_faults.Failure, "silent.patch: expected words, then lines"):
            planted_faults.read(self.root / "silent.patch")


if __name__ == "__main__":
    unittest.main()
