"""One thing more touches the files that docs/design/house.md says: tests/data/house has one of each.

    house_test.py                  the page against the patches, and the rules of tools/lint on what they make
    house_test.py --build FOLDER   builds a copy of the tree with all of them in FOLDER, and uses what they add
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "tools" / "lint"))

import floors  # noqa: E402
from common import Tree  # noqa: E402

PAGE = (REPOSITORY / "docs/design/house.md").read_text(encoding="utf-8")
PATCHES = sorted((REPOSITORY / "tests/data/house").glob("*.patch"))
ROW = re.compile(r"^\| (\w+) \| (`.+`) \| `(\w+)` \|$", re.MULTILINE)
PROGRAM = """
add_executable(house tests/data/house/program.cpp)
target_link_libraries(house PRIVATE tutti_models)
tutti_use_torch(house WHOLE)
"""


def paths_in(cell):
    """What a cell of the page names: a name without a folder stands in the folder before it."""
    paths, folder = [], ""
    for name in re.findall(r"`([^`]+)`", cell):
        if "/" in name:
            folder = name.rpartition("/")[0]
        paths.append(name if "/" in name else f"{folder}/{name}")
    return paths


def changes():
    """Name of a change -> (paths, word of the example)."""
    return {name: (paths_in(cell), word) for name, cell, word in ROW.findall(PAGE)}


def touched(patch):
    return re.findall(r"^\+\+\+ b/(.+)$", patch.read_text(encoding="utf-8"), re.MULTILINE)


def copy_with_changes(root):
    """The sources with all patches, in a new checkout in `root`."""
    for name in Tree(REPOSITORY).files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, root / name)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for patch in PATCHES:
        subprocess.run(["git", "apply", str(patch)], cwd=root, check=True)


class HouseTest(unittest.TestCase):
    def test_every_change_of_the_page_is_made(self):
        self.assertEqual(sorted(changes()), [patch.stem for patch in PATCHES])

    def test_each_touches_the_files_that_the_page_says(self):
        for patch in PATCHES:
            paths, _ = changes()[patch.stem]
            patterns = [re.escape(path).replace("NAME", r"\w+") for path in paths]
            files = touched(patch)
            for path in files:
                self.assertTrue(any(re.fullmatch(p, path) for p in patterns), f"{patch.stem}: {path} is not said")
            self.assertEqual(len(files), len(paths), patch.stem)

    def test_the_example_stands_in_each_file_that_is_there(self):
        for name, (paths, word) in changes().items():
            for path in paths:
                if "NAME" not in path:
                    text = (REPOSITORY / path).read_text(encoding="utf-8")
                    self.assertRegex(text, rf"(?i){word.replace('_', '[_-]')}", f"{name}: {path}")

    def test_every_operator_has_a_row_of_its_page(self):
        nn = REPOSITORY / "tutti/nn"
        alternatives = (nn / "ops.h").read_text(encoding="utf-8").split("using Op =")[1].split(";")[0]
        said = re.compile(r'struct OperatorOf<op::(\w+)> : ([^{]+?) \{\s+static constexpr std::string_view kind = "(\w+)"')
        rows = {}
        for path in (nn / "detail").glob("operators_*.h"):
            family = path.stem.removeprefix("operators_")
            for name, bases, kind in said.findall(path.read_text(encoding="utf-8")):
                planned = "no" if "NotPlanned" in bases else "yes"
                channels = "first" if "LibTorchsOrder" in bases else "both"
                rows[name] = f"| `{kind}` | {family} | {planned} | {channels} |"
        page = (REPOSITORY / "docs/design/graph.md").read_text(encoding="utf-8")
        table = page.split("## Operators")[1].split("|---|---|---|---|\n")[1].split("\n\n")[0]
        self.assertEqual(table.splitlines(), [rows[name] for name in re.findall(r"op::(\w+)", alternatives)])

    def test_every_module_has_a_line(self):
        said = re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE)
        self.assertEqual(sorted(said), sorted([*floors.PLACE, "extras"]))

    def test_the_house_keeps_its_rules_with_all_of_them(self):
        with tempfile.TemporaryDirectory() as root:
            copy_with_changes(pathlib.Path(root))
            # In a process of its own: it has the floors of the copy.
            done = subprocess.run(
                [sys.executable, f"{root}/tools/lint/run", "floors", "words"],
                capture_output=True, text=True,
            )
            # How many files see torch is the tree's own matter: a change may bring one.
            found = [line for line in done.stdout.splitlines() if " torch-count: " not in line]
            self.assertEqual([line for line in found if not line.startswith("lint: ")], [], done.stderr)
            self.assertIn("lint: words: ", done.stdout)


class BuiltHouse(unittest.TestCase):
    """What was added is found, from the command line and by a program."""

    folder = pathlib.Path()

    @classmethod
    def setUpClass(cls):
        shutil.rmtree(cls.folder / "tree", ignore_errors=True)
        (cls.folder / "tree").mkdir(parents=True)
        copy_with_changes(cls.folder / "tree")
        with open(cls.folder / "tree/CMakeLists.txt", "a", encoding="utf-8") as lists:
            lists.write(PROGRAM)
        off = [f"-DTUTTI_{what}=OFF" for what in ("BUILD_TESTS", "BUILD_BENCH", "BUILD_EXAMPLES", "WITH_EXTRAS")]
        configure = ["cmake", "-G", "Ninja", "-S", cls.folder / "tree", "-B", cls.folder / "build"]
        subprocess.run([*configure, "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O0", *off], check=True)
        subprocess.run(["cmake", "--build", cls.folder / "build", "--parallel", "2", "--target", "tutti_program", "house"], check=True)

    def run_program(self, name, *words):
        done = subprocess.run([self.folder / "build/bin" / name, *words], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_the_command_line_has_them(self):
        said = self.run_program("tutti", "train", "--help")
        for word in ("sign_sgd", "error_rate", "--stop-at", "--no-hints", "--gradient-peak", "twins"):
            self.assertIn(word, said)

    def test_a_training_takes_them(self):
        data = str(REPOSITORY / "examples/data/quickdraw")
        words = "--strategy twins --optimizer sign_sgd --metrics error_rate --gradient-peak --stop-at 100 --no-hints --epochs 3"
        said = self.run_program("tutti", "train", "mlp", "--data", data, *words.split())
        self.assertRegex(said, r"twins: 2 replicas(.|\n)*epoch 1/3 .*error_rate 0\.")
        self.assertIn("gradient_peak", said)
        self.assertNotIn("epoch 2/3", said)  # it was ended after the first
        self.assertNotIn("try next", said)

    def test_a_program_takes_them(self):
        self.assertIn("found", self.run_program("house", str(self.folder / "rows.f32")))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        BuiltHouse.folder = pathlib.Path(sys.argv[2]).resolve()
        unittest.main(argv=sys.argv[:1], defaultTest="BuiltHouse")
    unittest.main(defaultTest="HouseTest")
