"""clang-format over all C++ sources; clang-tidy over floors 0 to 2 and what changed.

Both come from pip, pinned, into build/lint-venv: another version formats otherwise.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from common import ROOT, finding
from database import clang_database
from floors import FIRST_TORCH_FLOOR, FLOORS

TOOLS = ("clang-format==19.1.7", "clang-tidy==19.1.0.1")
VENV = ROOT / "build" / "lint-venv"


def tool(name):
    """The pinned tool; installed on first use."""
    mark = VENV / "tools.txt"
    if not mark.exists() or mark.read_text() != " ".join(TOOLS):
        print(f"lint: installing {' and '.join(TOOLS)} in build/lint-venv", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        subprocess.run(
            [
                VENV / "bin/python",
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                *TOOLS,
            ],
            check=True,
        )
        mark.write_text(" ".join(TOOLS))
    return VENV / "bin" / name


def fix_format(tree):
    subprocess.run([tool("clang-format"), "-i", *tree.cpp()], cwd=tree.root, check=True)


def check_format(tree):
    done = subprocess.run(
        [tool("clang-format"), "--dry-run", "--ferror-limit=1", *tree.cpp()],
        cwd=tree.root,
        capture_output=True,
        text=True,
    )
    places = re.findall(
        r"^(\S+?):(\d+):\d+: (?:warning|error): code should be", done.stderr, re.MULTILINE
    )
    if done.returncode != 0 and not places:
        return [finding("format", ".clang-format", 1, done.stderr.strip())]
    return [
        finding("format", path, line, "not as clang-format writes it: make format")
        for path, line in places
    ]


def changed(tree):
    """Sources that differ from the upstream branch, or are not committed."""
    names = set()
    for arguments in (
        ["diff", "--name-only", "@{upstream}...HEAD"],
        ["diff", "--name-only", "HEAD"],
    ):
        done = subprocess.run(["git", *arguments], cwd=tree.root, capture_output=True, text=True)
        names.update(done.stdout.split() if done.returncode == 0 else [])
    return names


def tidy_sources(tree):
    low = "|".join(m for floor in FLOORS[:FIRST_TORCH_FLOOR] for row in floor for m in row)
    names = set(tree.matching(rf"tutti/({low})/.*\.cpp"))
    return sorted(names | {f for f in changed(tree) if f in set(tree.cpp()) and f.endswith(".cpp")})


def check_tidy(tree, build=ROOT / "build"):
    if not (build / "compile_commands.json").exists():
        return [
            finding(
                "tidy", "CMakeLists.txt", 1, "build first: build/compile_commands.json is missing"
            )
        ]
    folder, entries = clang_database(build)
    compiled = {os.path.relpath(entry["file"], ROOT) for entry in entries}
    sources = [f for f in tidy_sources(tree) if f in compiled]
    jobs = str(len(os.sched_getaffinity(0)))
    run = subprocess.run(
        ["xargs", "-0", "-n", "1", "-P", jobs, tool("clang-tidy"), "--quiet", "-p", folder],
        cwd=tree.root,
        input="\0".join(sources),
        capture_output=True,
        text=True,
    )
    lines = sorted(
        set(re.findall(r"^/.*?:\d+:\d+: (?:warning|error): .*$", run.stdout, re.MULTILINE))
    )
    found = []
    for line in lines:
        path, number, _, text = line.split(":", 3)
        found.append(finding("tidy", os.path.relpath(path, ROOT), number, text.strip()))
    if run.returncode != 0 and not found:
        found.append(finding("tidy", ".clang-tidy", 1, (run.stderr or run.stdout).strip()))
    return found
