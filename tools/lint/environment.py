"""Environment variables: every one the library reads stands in one table, and nothing else does."""

import re

from common import finding

TABLE = "docs/guide/environment.md"
READ = re.compile(r'\bgetenv\(\s*"([A-Z][A-Z0-9_]*)"')
# Names of ours are read through constants too: any literal of that form counts.
OURS = re.compile(r'"(TUTTI_[A-Z0-9_]+)"')
ROW = re.compile(r"^\|\s*`([A-Z][A-Z0-9_]*)`", re.MULTILINE)


def read_variables(tree):
    """name -> (path, line) of one place that reads it."""
    found = {}
    for path in tree.matching(r"(tutti|python)/.*\.(h|cpp)"):
        text = tree.text(path)
        for match in [*READ.finditer(text), *OURS.finditer(text)]:
            found.setdefault(match.group(1), (path, text.count("\n", 0, match.start()) + 1))
    return found


def check(tree):
    read = read_variables(tree)
    listed = set(ROW.findall(tree.text(TABLE))) if TABLE in tree.files else set()
    missing = [
        finding("environment", path, line, f"{name} is read here and missing in {TABLE}")
        for name, (path, line) in read.items()
        if name not in listed
    ]
    stale = [
        finding("environment", TABLE, 1, f"{name} is listed and read nowhere")
        for name in sorted(listed - set(read))
    ]
    return missing + stale
