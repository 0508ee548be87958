"""tools/mutation: which faults a text may have, and a small module whose tests find some of them."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "tools/mutation"))

import faults  # noqa: E402
import trials  # noqa: E402

MODULE = """#include "clamp.h"
// A place between two others; "a < b" in words is none.

#include <stdexcept>

namespace {
constexpr int kMost = 10;
struct Waiter { void wait() { ++calls; } int calls = 0; };
}  // namespace

int clamp(int value, int low) {
  if (low > kMost) throw std::invalid_argument("low");
  Waiter waiter;
  waiter.wait();
  if (value < low)
    value = low;
  else if (value > kMost)
    return kMost;
  const auto twice = [](int one) { return one + one; };
  const int never = twice(value) - value;
  return waiter.calls == 1 && never > -100 ? never : -1;
}
"""

# As a binary of GoogleTest answers.
TESTS = """#include <cstdio>
#include <cstring>
int clamp(int value, int low);
int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--gtest_list_tests") == 0)
    return std::puts("Low.\\n  IsHeld\\nRefusal.\\n  IsThrown") < 0;
  bool good = true;
  if (std::strstr(argv[1], "Low.")) {
    good = clamp(3, 5) == 5 && clamp(7, 5) == 7 && clamp(40, 5) == 10;
    if (!good) std::puts("[  FAILED  ] Low.IsHeld (0 ms)");
  } else {
    good = false;
    try { clamp(1, 11); } catch (...) { good = true; }
    if (!good) std::puts("[  FAILED  ] Refusal.IsThrown (0 ms)");
  }
  return good ? 0 : 1;
}
"""


class Faults(unittest.TestCase):
    found = faults.faults_of("m/clamp.cpp", MODULE)

    def becoming(self, kind):
        return {(f.line, f.words()) for f in self.found if f.kind == kind}

    def test_statements_that_may_be_left_out(self):
        self.assertEqual(self.becoming("wait left out"), {(14, "waiter.wait(); -> (left out)")})
        self.assertEqual(self.becoming("assignment left out"), {(16, "value = low; -> (left out)")})
        self.assertEqual(self.becoming("throw left out"),
                         {(12, 'throw std::invalid_argument("low"); -> (left out)')})
        self.assertEqual(self.becoming("step left out"), {(8, "++calls; -> (left out)")})

    def test_expressions_that_may_be_changed(self):
        self.assertIn((15, "value < low -> value <= low"), self.becoming("comparison"))
        self.assertIn((17, "value > kMost -> !(value > kMost)"), self.becoming("condition negated"))
        self.assertIn((20, "twice(value) - value -> twice(value) + value"), self.becoming("sign"))
        self.assertIn((19, "one + one -> one - one"), self.becoming("sign"))
        self.assertTrue(any("|| never" in words for _, words in self.becoming("and / or")))
        self.assertTrue(any("-101" in words for _, words in self.becoming("constant")))

    def test_nothing_outside_of_bodies_or_in_words(self):
        self.assertEqual({f.line for f in self.found} & {1, 2, 4, 6, 7, 11}, set())

    def test_the_same_are_drawn_where_a_file_has_moved(self):
        moved = faults.faults_of("n/other.cpp", "\n\n" + MODULE)
        words = lambda all_: [f.words() for f in faults.chosen(all_, 5, seed=3)]
        self.assertEqual(words(moved), words(self.found))
        self.assertNotEqual(words(self.found), [f.words() for f in faults.chosen(self.found, 5, seed=4)])


class Trials(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.source, self.copy = (pathlib.Path(self.folder.name) / name for name in ("source", "copy"))
        for name, text in (("m/clamp.cpp", MODULE), ("m/clamp.h", "int clamp(int value, int low);\n"),
                           ("tests.cpp", TESTS)):
            trials.put(self.source / name, text.encode())
        subprocess.run(["git", "init", "-q"], cwd=self.source, check=True)

    def build(self):
        done = subprocess.run(
            ["c++", "-std=c++20", "-Im", self.copy / "m/clamp.cpp", "tests.cpp", "switch.cpp", "-o", "tests"],
            cwd=self.copy, capture_output=True, text=True)
        return done.returncode, done.stderr

    def test_one_build_serves_all_and_each_is_tried_where_it_is_reached(self):
        tree = trials.Tree(self.source, self.copy, "switch.cpp", self.build)
        candidates = tree.make(["m"])
        numbered = tree.built(candidates, 1000, seed=1)
        self.assertEqual(len(numbered), len(candidates))
        suites = trials.suites_of(self.copy / "tests", self.copy)
        green, red = trials.recorded(suites, self.copy, self.copy, 20)
        self.assertEqual(([s.name for s in green], red), (["Low", "Refusal"], []))
        results = {fault.words(): finder for _, fault, finder in trials.tried(numbered, green, self.copy, 2)}
        self.assertEqual(results["value = low; -> (left out)"], "Low.IsHeld")
        self.assertEqual(results['throw std::invalid_argument("low"); -> (left out)'], "Refusal.IsThrown")
        self.assertEqual(results["waiter.wait(); -> (left out)"], "Low.IsHeld")
        self.assertEqual(results["value > kMost -> value >= kMost"], "")  # 10 is 10 either way

    def test_what_does_not_compile_is_replaced(self):
        head = "int clamp(int value, int low) {"
        text = MODULE.replace(
            head, f"constexpr int two() {{ return 1 + 1; }}\nstatic_assert(two() == 2);\n{head}")
        trials.put(self.source / "m/clamp.cpp", text.encode())
        tree = trials.Tree(self.source, self.copy, "switch.cpp", self.build)
        candidates = tree.make(["m"])
        self.assertTrue(any(f.was == "1 + 1" for f in candidates))
        numbered = tree.built(candidates, 1000, seed=1)
        self.assertFalse(any(f.was == "1 + 1" for f in numbered.values()))
        self.assertEqual(len(numbered), len([f for f in candidates if f.was != "1 + 1"]))

    def test_a_copy_that_cannot_be_built_is_no_result(self):
        trials.put(self.source / "tests.cpp", b"int main() { return nothing; }\n")
        tree = trials.Tree(self.source, self.copy, "switch.cpp", self.build)
        with self.assertRaisesRegex(trials.Failure, "does not build"):
            tree.built(tree.make(["m"]), 3, seed=1)


if __name__ == "__main__":
    unittest.main()
