"""The compilation database that clang's tools and editors read: an entry a source file, though modules
are compiled in one piece, and nothing that only GCC knows.

    tools/lint/database.py BUILD   writes BUILD/editor/compile_commands.json; the build runs it
"""

import json
import pathlib
import re
import sys

# Options that clang does not know, and says so.
GCC_ONLY = r"-fpch-preprocess|-Winvalid-pch|-Wno-subobject-linkage|--param=ggc\S+"


def each_source(entry):
    """The entries of the sources that one made by CMake's unity build includes."""
    made = pathlib.Path(entry["file"])
    if not re.fullmatch(r"unity_\d+_cxx\.cxx", made.name):
        return [entry]
    sources = re.findall(r'^#include "(.*)"$', made.read_text(), re.MULTILINE)
    assert sources, f"no sources in {made}"
    return [
        {**entry, "file": source, "command": entry["command"].replace(str(made), source)}
        for source in sources
    ]


def clang_database(build):
    """The folder of the one that this writes, and its entries."""
    made = json.loads((build / "compile_commands.json").read_text())
    entries = [entry for one in made for entry in each_source(one)]
    for entry in entries:
        command = re.sub(r" -include \S+/cmake_pch\.hxx", "", entry["command"])
        entry["command"] = re.sub(rf" ({GCC_ONLY})(?= )", "", command)
    folder = build / "editor"
    folder.mkdir(exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps(entries, indent=1))
    return folder, entries


if __name__ == "__main__":
    clang_database(pathlib.Path(sys.argv[1]))
