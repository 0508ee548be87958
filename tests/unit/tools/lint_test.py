"""The checks of tools/lint find what is planted in a small tree, and nothing in a clean one."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "tools" / "lint"))

import bands  # noqa: E402
import budgets  # noqa: E402
import database  # noqa: E402
import documents  # noqa: E402
import environment  # noqa: E402
import floors  # noqa: E402
import peers  # noqa: E402
import words  # noqa: E402
from common import AllowList, Tree, blank, finding  # noqa: E402


class LintTest(unittest.TestCase):
    def tree(self, **files):
        """A checkout with these files; `__` in a name stands for `/`, the last `_` for the dot."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        subprocess.run(["git", "init", "-q", folder.name], check=True)
        for name, text in files.items():
            stem, _, suffix = name.replace("__", "/").rpartition("_")
            path = pathlib.Path(folder.name, f"{stem}.{suffix}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Tree(folder.name)

    def rules(self, found):
        return sorted({text.split(":")[2].strip() for text in found})


class ClangToolsTest(LintTest):
    def test_sources_of_a_unity_build_are_found(self):
        tree = self.tree(unity_0_cxx_cxx='/* made */\n#include "/a/one.cpp"\n#include "/a/two.cpp"\n')
        made = str(pathlib.Path(tree.root, "unity_0_cxx.cxx"))
        entries = database.each_source({"file": made, "command": f"c++ -O2 -c {made}"})
        self.assertEqual(
            [(e["file"], e["command"]) for e in entries],
            [(f"/a/{name}.cpp", f"c++ -O2 -c /a/{name}.cpp") for name in ("one", "two")],
        )
        single = {"file": "/a/three.cpp", "command": "c++ -c /a/three.cpp"}
        self.assertEqual(database.each_source(single), [single])


class FloorsTest(LintTest):
    def test_includes_downwards_are_fine(self):
        tree = self.tree(
            tutti__comm__group__a_h='#include "tutti/net/flag.h"\n#include "tutti/comm/group/work.h"\n',
            tutti__sync__world_h='#include <torch/types.h>\n#include "tutti/data/npy.h"\n',
            tutti__tutti_h='#include "tutti/train/model/model.h"\n',
        )
        self.assertEqual(floors.check(tree), [])

    def test_each_way_up_is_found(self):
        cases = {
            "a higher floor": ("tutti__base__a_h", '#include "tutti/comm/group/group.h"\n'),
            "later in its row": ("tutti__comm__group__a_h", '#include "tutti/cluster/join/join.h"\n'),
            "another row": ("tutti__optim__a_h", '#include "tutti/comm/group/group.h"\n'),
            "torch below floor 3": ("tutti__data__a_cpp", "#include <ATen/ATen.h>\n"),
            "the umbrella": ("tutti__train__fit__a_h", '#include "tutti/tutti.h"\n'),
            "no such module": ("tutti__misc__a_h", "\n"),
        }
        for name, (path, text) in cases.items():
            with self.subTest(name):
                self.assertEqual(self.rules(floors.check(self.tree(**{path: text}))), ["floors"])

    def test_all_of_torch_is_in_the_umbrella_header_alone(self):
        whole = "#include <torch/torch.h>\n"
        self.assertEqual(floors.check(self.tree(tutti__tutti_h=whole)), [])
        for path in ("tutti__train__fit__a_h", "tutti__train__fit__a_cpp"):
            self.assertEqual(self.rules(floors.check(self.tree(**{path: whole}))), ["whole-torch"])

    def test_rooms_are_floors_within_a_module(self):
        down = '#include "tutti/ps/wire/message.h"\n#include "tutti/ps/view/detail/a.h"\n'
        self.assertEqual(floors.check(self.tree(tutti__ps__view__a_h=down)), [])
        for path, text in (
            ("tutti__ps__wire__a_h", '#include "tutti/ps/view/view.h"\n'),
            ("tutti__ps__a_h", "\n"),
            ("tutti__cli__a_h", '#include "tutti/cli/bench/step.h"\n'),
        ):
            with self.subTest(path):
                self.assertEqual(self.rules(floors.check(self.tree(**{path: text}))), ["rooms"])

    def test_the_core_does_without_extras(self):
        up = '#include "tutti/extras/mds/mds.h"\n'
        self.assertEqual(self.rules(floors.check(self.tree(tutti__data__a_h=up))), ["extras"])
        below = '#include "tutti/net/link.h"\n'
        self.assertEqual(floors.check(self.tree(tutti__extras__mds__a_h=below)), [])
        above = '#include "tutti/train/fit/fit.h"\n'
        for folder, rule, text in (("mds", "floors", above), ("misc", "rooms", "\n")):
            tree = self.tree(**{f"tutti__extras__{folder}__a_h": text})
            self.assertEqual(self.rules(floors.check(tree)), [rule])

    def test_a_stand_in_defines_what_its_extra_does(self):
        parts = {
            "tutti__data__sources__a_h": "int read_it();\nint write_it();\n",
            "tutti__extras__mds__a_cpp": "int read_it() {\n}\nint own() {\n}\n",
            "tutti__data__sources__absent__mds_absent_cpp": "int read_it() {\n}\n",
        }
        self.assertEqual(floors.check(self.tree(**parts)), [])
        for path in ("tutti__extras__mds__a_cpp", "tutti__data__sources__absent__mds_absent_cpp"):
            more = parts | {path: parts[path] + "int write_it() {\n}\n"}
            self.assertEqual(self.rules(floors.check(self.tree(**more))), ["stand-in"])

    def test_what_is_not_for_users_stands_in_detail(self):
        own = "namespace tutti::detail {\n}\n"
        user = "namespace tutti {\nnamespace detail {\n}\n}\n"
        self.assertEqual(floors.check(self.tree(tutti__net__a_h=user)), [])
        self.assertEqual(floors.check(self.tree(tutti__net__detail__a_h=own)), [])
        self.assertEqual(self.rules(floors.check(self.tree(tutti__net__a_h=own))), ["private"])
        tree = self.tree(
            tutti__net__detail__a_h=own, python__src__a_h='#include "tutti/net/detail/a.h"\n'
        )
        self.assertEqual(self.rules(floors.check(tree)), ["private"])

    def test_torch_is_seen_through_headers(self):
        tree = self.tree(
            tutti__sync__a_h="#include <torch/torch.h>\n",
            tutti__sync__b_h='#include "tutti/sync/a.h"\n',
            tutti__sync__c_cpp='#include "tutti/sync/b.h"\n',
            tutti__sync__d_cpp="#include <vector>\n",
        )
        self.assertEqual(floors.torch_sources(tree), ["tutti/sync/c.cpp"])


class WordsTest(LintTest):
    def test_a_word_stands_with_its_owners(self):
        lane = "struct Lane {\n};\n"
        self.assertEqual(words.check(self.tree(tutti__sync__a_h=lane)), [])
        self.assertEqual(words.check(self.tree(tutti__train__a_h=lane.replace("Lane", "CoreLane"))), [])
        for path, text in (("tutti__train__a_h", lane), ("tutti__train__fit__plan_h", "\n")):
            with self.subTest(path):
                self.assertEqual(self.rules(words.check(self.tree(**{path: text}))), ["word"])


class BudgetsTest(LintTest):
    def test_forbidden_words(self):
        cases = {
            "goto": "void f() { goto end; }\n",
            "raw-new": "int* p = new int(3);\n",
            "swallow": "void f() { try { g(); } catch (...) { } }\n",
            "todo": "// TODO: later\n",
            "columns": "// " + "x" * 98 + "\n",
        }
        for rule, text in cases.items():
            with self.subTest(rule):
                found = budgets.check(self.tree(tests__a_cpp=text))
                self.assertEqual(self.rules(found), [rule])

    def test_json_is_read_in_one_place(self):
        reads = "#include <nlohmann/json.hpp>\nauto j = nlohmann::json::parse(text);\n"
        other = "// as nlohmann does\nauto j = parse_json(text);\n"
        tree = self.tree(
            tutti__data__a_cpp=reads,
            tutti__data__b_cpp=other,
            tutti__base__json_cpp=reads,
            tests__a_cpp=reads,
        )
        found = budgets.check_readers(tree)
        self.assertEqual([f.split(":")[:3] for f in found], [["tutti/data/a.cpp", "1", " json"],
                                                             ["tutti/data/a.cpp", "2", " json"]])

    def test_command_lines_are_read_in_one_place(self):
        reads = "#include <CLI/CLI.hpp>\nCLI::App app;\n"
        tree = self.tree(
            tutti__cli__a_cpp="// as CLI11 does\nCommand program;\n",
            tutti__cli__parse_cpp=reads,
            tests__a_cpp=reads,
            bench__a_cpp=reads,
        )
        found = budgets.check_readers(tree)
        self.assertEqual([f.split(":")[:3] for f in found], [["tests/a.cpp", "1", " cli11"],
                                                             ["tests/a.cpp", "2", " cli11"]])

    def test_words_in_comments_strings_and_placement_new_are_fine(self):
        text = '// a new goto\nauto s = "goto new int";\nauto* p = new (place) int(3);  // TODO(#8): x\n'
        self.assertEqual(budgets.check(self.tree(tests__a_cpp=text)), [])

    def test_headers(self):
        header = "/// What it is.\n" * 3 + "struct A {};\n" * 3
        tests = "int a;\n" * 400
        self.assertEqual(budgets.check(self.tree(tutti__base__a_h=header, tests__a_cpp=tests)), [])
        cases = {
            "header-lines": header * 50,
            "comment-share": header + "struct B {};\n" * 30,
            "header-macro": header + "#define TWICE(x) x x\n",
            "using-namespace": header + "using namespace std;\n",
        }
        for rule, text in cases.items():
            with self.subTest(rule):
                tree = self.tree(tutti__base__a_h=text, tests__a_cpp=tests)
                self.assertEqual(self.rules(budgets.check(tree)), [rule])

    def test_an_engines_insides_are_no_public_headers(self):
        tree = self.tree(
            tutti__comm__shm__shm_h="", tutti__comm__shm__layout_h="", tutti__data__detail__a_h=""
        )
        self.assertEqual(tree.public_headers(), ["tutti/comm/shm/shm.h"])

    def test_functions(self):
        code = "namespace a {\nclass B {\n  int f() {\n    if (x) {\n    }\n  }\n};\nint g() { return 1; }\n}\n"
        self.assertEqual(budgets.functions(code), [(3, 6), (8, 8)])
        long = "int f() {\n" + "  g();\n" * 100 + "}\n"
        self.assertEqual(
            self.rules(budgets.check(self.tree(tests__a_cpp=long))), ["function-lines"]
        )

    def test_conditionals_and_test_share(self):
        source = "/// A.\n" + "int a;\n" * 100
        found = budgets.check(self.tree(tutti__base__a_cpp=source + "#if A\n#endif\n" * 3))
        self.assertEqual(self.rules(found), ["conditionals", "test-share"])

    def test_readme(self):
        self.assertEqual(budgets.check(self.tree(README_md="# a\n```cpp\n```\n")), [])
        late = self.tree(README_md="# a\n" + "\n" * 30 + "```cpp\n```\n")
        self.assertEqual(self.rules(budgets.check(late)), ["readme"])

    def test_blank_keeps_lines(self):
        text = 'a /* x\n y */ b "//" // c\n'
        self.assertEqual(blank(text), 'a     \n      b "  "     \n')


class AllowListTest(LintTest):
    def test_entries_excuse_and_stale_ones_are_found(self):
        tree = self.tree(
            tools__lint_allow_txt="goto a.cpp because\nraw-new b.cpp\ntodo c.cpp why not\n"
        )
        allow = AllowList(tree)
        kept = allow.filter([finding("goto", "a.cpp", 3, "x"), finding("goto", "b.cpp", 3, "x")])
        self.assertEqual(kept, ["b.cpp:3: goto: x"])
        self.assertEqual(len(allow.leftovers()), 2)


class EnvironmentTest(LintTest):
    def test_both_directions(self):
        tree = self.tree(
            tutti__base__a_cpp='auto a = getenv("HOME");\nconstexpr auto kName = "TUTTI_LOG";\n',
            docs__guide__environment_md="| `TUTTI_LOG` | level |\n| `OLD` | gone |\n",
        )
        found = environment.check(tree)
        self.assertEqual(len(found), 2)
        self.assertIn("HOME is read here", found[0])
        self.assertIn("OLD is listed", found[1])


class PeersTest(LintTest):
    CALLS = {"from_p.md": {"versions": ["p 1"], "places": {"p.d": ["put", "get"], "p.d.f()": ["x"]}}}
    HEADER = "namespace tutti::way {\n/// put_all(\nstruct Box {\n  int count = 0;\n  void put(int);\n};\nvoid take(Box);\n}\n"
    PAGE = (
        "Words.\n\n| `p.d` | tutti, or why not |\n|---|---|\n"
        "| `put`, `get` | `tutti::way::Box::put(1)`, `tutti::way::Box::count` |\n"
        "\n| `p.d.f()` | tutti, or why not |\n|---|---|\n| `x` | nothing to choose |\n"
    )

    def found(self, page):
        tree = self.tree(
            from_p_md=page,
            tutti__way_h=self.HEADER,
            tests__tables__peer_calls_json=json.dumps(self.CALLS),
        )
        return [text.split(": ", 2)[2] for text in peers.check(tree)]

    def test_a_complete_page_is_fine(self):
        self.assertEqual(self.found(self.PAGE), [])

    def test_what_is_wrong_is_named(self):
        for old, new, says in (
            ("`put`, `get`", "`put`", ["no row for get of p.d"]),
            ("`x`", "`x`, `y`", ["p.d.f() has no y"]),
            ("`put`, `get`", "`put`, `get`, `put`", ["put of p.d has two rows"]),
            ("`x`", "x", ["names no call: x", "no row for x of p.d.f()"]),
            ("nothing to choose", "", ["`x`: say what is ours, or why not"]),
            ("Box::put", "Box::put_all", ["no public header has tutti::way::Box::put_all"]),
            ("Box::put", "Box::take", ["no public header has tutti::way::Box::take"]),
            ("way::Box::put", "other::Box::put", ["no public header has tutti::other::Box::put"]),
            ("`p.d.f()`", "`p.d.g()`", ["tests/tables/peer_calls.json has no place `p.d.g()`"]
             + ["no row for x of p.d.f()"]),
        ):
            with self.subTest(new):
                self.assertEqual(self.found(self.PAGE.replace(old, new, 1)), says)


class DocumentsTest(LintTest):
    PAGE = """# t
```cpp
#include <cstdio>
int main(int argc, char** argv) {
  std::printf("%d\\n", argc);
}
```
```console
$ ./hello a b
3
$ tutti run -n 2 ./hello  # 1 1
```
## next
```cpp compile-only
int main() {}
```
"""

    def test_programs_and_what_they_print(self):
        first, second = documents.programs(self.tree(README_md=self.PAGE))
        self.assertEqual([c.expected for c in first.commands], ["3\n", "1 1"])
        self.assertEqual(first.commands[0].text, "./hello a b")
        self.assertEqual((first.name, second.commands), ("README_md_2", []))

    def test_extracted_source_runs(self):
        tree = self.tree(README_md=self.PAGE)
        source, program = tree.root / "programs.cpp", tree.root / "bin" / "doc_programs"
        program.parent.mkdir()
        source.write_text(documents.extract(tree))
        subprocess.run(["c++", "-std=c++20", source, "-o", program], check=True)
        first = documents.programs(tree)[0]
        command = documents.Command(1, "./hello a b", "3")
        self.assertIsNone(documents.run_command(tree.root, first, command))
        command.expected = "4"
        self.assertIn("the page says: 4", documents.run_command(tree.root, first, command))
        command.text = "./hello && exit 7"
        self.assertIn("ended with 7", documents.run_command(tree.root, first, command))

    def session(self, body, program=True):
        """A page's session, in a checkout whose programs say how they were called."""
        page = (self.PAGE if program else "") + f"```console run\n{body}```\n"
        tree = self.tree(README_md=page)
        script = tree.root / "bin" / "doc_programs"
        script.parent.mkdir()
        script.write_text('#!/bin/sh\necho "$@"\n')
        script.chmod(0o755)
        session = documents.sessions(tree)[0]
        with tempfile.TemporaryDirectory() as folder:
            return documents.run_session(tree.root, session, pathlib.Path(folder))

    def test_a_session_has_one_folder(self):
        wrong, left_out = self.session("$ (umask 077; echo 7 > a)\n$ cat a # 7\n$ A=1 ls a \\\n    examples/x\n")
        self.assertEqual(len(wrong), 1, wrong)
        self.assertIn("`A=1 ls a examples/x` ended with", wrong[0][1])
        self.assertEqual(left_out, [])

    def test_a_session_runs_the_last_program_above(self):
        self.assertEqual(self.session("$ ./hello a\nREADME_md_14 a\n"), ([], []))
        wrong, _ = self.session("$ ./hello a\n", program=False)
        self.assertIn("not found", wrong[0][1])

    def test_commands_of_a_session_run_beside_each_other(self):
        meets = "$ mkfifo f\n$ echo hi > f &\n$ cat f # hi\n"
        self.assertEqual(self.session(meets), ([], []))
        wrong, _ = self.session("$ sh -c 'exit 7' &\n$ true\n")
        self.assertIn("`sh -c 'exit 7' &` ended with 7", wrong[0][1])

    def test_programs_that_are_not_there_are_named(self):
        wrong, left_out = self.session("$ no_such_launcher -n 2 ./hello\n$ echo on # on\n")
        self.assertEqual(wrong, [])
        self.assertEqual([program for _, program in left_out], ["no_such_launcher"])

    BANDS = """```console run bands figures
$ echo loss 0.5, steps 1,200; echo loss 0.25
loss 0.4, steps 1,200
loss 0.2
```
<!-- bands
B1: 1000 .. 1300, not 2400 (if steps counted twice)
A1 / A2: 1.9 .. 2.1, not 1
-->
"""

    def run_with_bands(self, text):
        tree = self.tree(docs__questions_md=text)
        with contextlib.redirect_stdout(io.StringIO()):
            found = documents.run_sessions(tree, tree.root, ["docs/questions.md"])
        return documents.check_bands(tree), found

    def test_output_lies_in_bands(self):
        self.assertEqual(self.run_with_bands(self.BANDS), ([], []))

    def test_a_run_that_leaves_its_bands_is_found(self):
        page, run = self.run_with_bands(self.BANDS.replace("loss 0.25", "loss 0.5"))
        self.assertEqual(page, [])
        self.assertIn("A1 / A2: 1.9 .. 2.1, not 1`: it is 1", run[0])

    def test_so_is_a_page(self):
        page, run = self.run_with_bands(self.BANDS.replace("\nloss 0.4", "\nloss 0.3"))
        self.assertIn("A1 / A2: 1.9 .. 2.1, not 1`: it is 1.5", page[0])
        self.assertEqual(run, [])

    def test_so_is_one_that_takes_long(self):
        with unittest.mock.patch.object(documents, "BANDS_CPU_S", 1e-6):
            page, run = self.run_with_bands(self.BANDS)
        self.assertEqual(page, [])
        self.assertRegex(run[0], "took .* s of cores, at most 1e-06")

    def test_sessions_with_bands_run_when_their_page_is_asked_for(self):
        tree = self.tree(docs__questions_md=self.BANDS.replace("loss 0.25", "loss 0.5"))
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(documents.run_sessions(tree, tree.root, []), [])
        self.assertIn("0 commands", said.getvalue())

    def test_a_loop_is_no_program_that_is_missing(self):
        page, run = self.run_with_bands(self.BANDS.replace("$ echo", "$ for i in 1; do echo \"$(echo '\"')\" > a; done; echo"))
        self.assertEqual((page, run), ([], []))

    def test_a_picture_may_be_another(self):
        text = self.BANDS.replace("figures", "picture").replace("\nloss 0.2\n", "\n## 0.2\n")
        self.assertEqual(self.run_with_bands(text), ([], []))

    def test_bands_that_say_nothing_are_errors(self):
        for text, why in (
            ("A1: 1 .. 2", "is no band"),
            ("A1: 1 .. 2, not 1.5", "the wrong answer lies in the band"),
            ("A1: nan, not nan", "the wrong answer lies in the band"),
            ("A1: 2 .. 1, not 3", "the band is empty"),
        ):
            with self.assertRaisesRegex(ValueError, why):
                bands.Band(text)
        with self.assertRaisesRegex(ValueError, "no bands stand behind it"):
            bands.behind("```\n", 4)
        for found in self.run_with_bands(self.BANDS.replace("<!-- bands", "<!-- band")):
            self.assertIn("no bands stand behind it", found[0])

    def test_cells(self):
        says = "vgg11_bn: 1,024 steps, 2e-3 [0]\nloss -nan, -3\n"
        for what, figure in (("A1", 1024), ("B1", 0.002), ("C1 + 1", 1), ("B2 * 2 - A1", -1030)):
            self.assertEqual(bands.value(what, says), figure)
        left = lambda text: bands.left([bands.Band(text)], says)
        self.assertEqual(left("A2: nan, not 1"), [])
        self.assertEqual(left("A1: nan, not 1"), ["`A1: nan, not 1`: it is 1024"])
        self.assertEqual(left("C2: 1 .. 2, not 3"), ["`C2: 1 .. 2, not 3`: there is no C2"])
        self.assertEqual(left("A1 / C1: 1 .. 2, not 3"), ["`A1 / C1: 1 .. 2, not 3`: it is nan"])
        self.assertIn("is no cell", left("f(A1): 1 .. 2, not 3")[0])
        self.assertIn("no expression", left("A1 +: 1 .. 2, not 3")[0])

    def test_a_page_may_show_a_page(self):
        shown = "````markdown\n" + self.PAGE + "````\n"
        self.assertEqual(documents.programs(self.tree(README_md=shown)), [])

    def test_matching(self):
        self.assertTrue(documents.matches("a ... c\n", "a  b c  \n"))
        self.assertTrue(documents.matches("a\n...\nz", "a\nb\nc\nz\n"))
        self.assertFalse(documents.matches("a c", "a b c"))
        self.assertFalse(documents.matches("", "a"))

    def test_figures_stand_for_any_figures(self):
        says = "epoch 1/3  loss 1.25  2,118 images/s\n"
        self.assertTrue(documents.matches(says, "epoch 1/3  loss 0.8  12,340 images/s", figures=True))
        self.assertFalse(documents.matches(says, "epoch 1/3  loss nan  12,340 images/s", figures=True))
        self.assertFalse(documents.matches(says, "epoch 1/3  12,340 images/s", figures=True))
        self.assertFalse(documents.matches(says, "epoch 1/3  loss 0.8  12,340 images/s"))
        page = self.PAGE.replace("```console", "```console figures")
        first = documents.programs(self.tree(README_md=page))[0]
        self.assertEqual([c.figures for c in first.commands], [True, True])

    def test_lines_that_wait_for_their_text(self):
        page = "# a\n\nRESULTS\n\n<!-- RESULTS -->\n**TODO**: 3\n\nRESULTS are below; TODO lists are not.\n"
        found = documents.check_placeholders(self.tree(docs__a_md=page))
        self.assertEqual([int(text.split(":")[1]) for text in found], [3, 5, 6])
        self.assertIn("RESULTS stands for what is to come", found[0])

    def test_pages_missing_in_the_index(self):
        tree = self.tree(docs__README_md="[a](design/a.md)\n", docs__design__a_md="", docs__design__b_md="")
        self.assertEqual([f.split(":")[0] for f in documents.check_index(tree)], ["docs/design/b.md"])

    def test_flags_of_commands(self):
        page = "```sh\ntutti run -n 2 ./a --theirs\ntutti train mlp --epochs 3 --epoch 2\ntutti fly\n```\n"
        tree = self.tree(README_md=page)
        program = tree.root / "bin" / "tutti"
        program.parent.mkdir()
        program.write_text('#!/bin/sh\n[ "$1" != fly ] && echo "  --epochs N"\n')
        program.chmod(0o755)
        found = documents.check_flags(tree, tree.root)
        self.assertEqual(len(found), 2, found)
        self.assertIn("knows no --epoch", found[0])
        self.assertIn("fly --help fails", found[1])


if __name__ == "__main__":
    unittest.main()
