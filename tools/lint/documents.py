"""Programs in README.md and docs: they compile, run, and print what the page says.

A program is a ```cpp block with `int main`. A ```console block that follows it, before the next
heading, says how it is run and what it prints:

    $ tutti run -n 4 ./hello        a command; ./NAME is the program above, `#` starts what it prints
    10 10 10 10                     or the lines below say it; `...` stands for any text

In a block marked "console figures" any number stands for any number, as speeds and losses are. Without
a console block the program is run without arguments and must exit 0; "```cpp compile-only" asks for
compiling alone.

"```console run" is a session: its commands run as printed, in order, in a folder that all sessions of
the page share, with what readers are to have themselves (readers_data.py: photos/, new/, housing.csv); ./NAME is the last program above. A line goes on behind `\`; one that ends in `&` runs
beside the next, and has come to its end at the end of the block. Behind a "```console run bands" block stand bands that
its output must lie in (bands.py), with `picture` nothing else of it is compared; such sessions run when
their page is asked for. A command whose program is not on
this machine (srun) is named as left out; so is a session of "```console run hosts", of which each line
runs on a host of its own, h0 and then h1 (hosts.py), where there can be none. In every ```console and ```sh block, flags of `tutti` commands must be known to
that command's --help. All programs become one source file, each in a namespace of its own, so that
the torch headers are read once.

    documents.py extract OUT.cpp             writes that file (the build does)
    documents.py run BUILD_DIR               runs the programs, checks what they print (ctest does)
    documents.py sessions BUILD_DIR [PAGE...]    runs the sessions (ctest does), of a page those with bands, too
"""

import dataclasses
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import bands
import hosts
import readers_data
from common import ROOT, Tree, blank, finding

PAGES = (r"README\.md", r"docs/.*\.md", r"examples/.*\.md")
FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^ *(?P=ticks)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
LIMIT_S = 120
BANDS_CPU_S = 60  # of all cores, a block with bands: what a reader who tries it has to wait for
PLACEHOLDER = re.compile(r"^[ >*#|`_<!-]*(?:RESULTS|TODO|TBD|FIXME)\b[^A-Za-z]*$", re.MULTILINE)


@dataclasses.dataclass
class Block:
    path: str
    line: int
    language: str
    options: list
    body: str
    start: int
    end: int


@dataclasses.dataclass
class Command:
    line: int
    text: str
    expected: str = None
    figures: bool = False  # any number stands for any number
    picture: bool = False  # other lines may be there in the next run
    bands: list = dataclasses.field(default_factory=list)  # that its figures lie in


@dataclasses.dataclass
class Program:
    name: str
    block: Block
    commands: list


@dataclasses.dataclass
class Session:
    block: Block
    program: Program  # the last above on the page; None
    commands: list


def blocks(tree, path):
    text = tree.text(path)
    for match in FENCE.finditer(text):
        words = match.group("info").split() or [""]
        indent = match.group("indent")
        body = re.sub(f"^{indent}", "", match.group("body"), flags=re.MULTILINE)
        yield Block(
            path,
            text.count("\n", 0, match.start("info")) + 1,
            words[0],
            words[1:],
            body,
            match.start(),
            match.end(),
        )


def commands(block):
    """The `$` lines of a console block, each with what it must print (None: anything)."""
    result = []
    for number, line in enumerate(block.body.splitlines(), block.line + 1):
        if line.startswith("$ "):
            text, mark, says = line[2:].partition(" # ")
            says = says.strip() if mark else None
            figures, picture = (word in block.options for word in ("figures", "picture"))
            result.append(Command(number, text.strip(), says, figures, picture))
        elif result and result[-1].text.endswith("\\"):
            result[-1].text = f"{result[-1].text[:-1].rstrip()} {line.strip()}"
        elif result and line.strip():
            result[-1].expected = (result[-1].expected or "") + line + "\n"
    return result


def has_bands(block):
    return block.language == "console" and "bands" in block.options


def programs(tree):
    result = []
    for path in tree.matching(*PAGES):
        text, page = tree.text(path), list(blocks(tree, path))
        for index, block in enumerate(page):
            if block.language != "cpp" or not re.search(r"\bint main\s*\(", block.body):
                continue
            after = page[index + 1] if index + 1 < len(page) else None
            shown = (
                after
                and after.language == "console"
                and "run" not in after.options
                and not HEADING.search(text[block.end : after.start])
            )
            runs = (
                []
                if "compile-only" in block.options
                else commands(after) if shown else [Command(block.line, "./program")]
            )
            name = re.sub(r"\W+", "_", f"{path}_{block.line}")
            result.append(Program(name, block, runs))
    return result


def sessions(tree):
    above, result = {(p.block.path, p.block.line): p for p in programs(tree)}, []
    for path in tree.matching(*PAGES):
        program = None
        for block in blocks(tree, path):
            program = above.get((path, block.line), program)
            if block.language == "console" and "run" in block.options:
                result.append(Session(block, program, commands(block)))
    return result


def with_bands(tree, session):
    """The session, with the bands that stand behind it; ValueError for what is no band."""
    last = session.commands[-1]
    last.bands = bands.behind(tree.text(session.block.path), session.block.end)
    return session


def check_bands(tree):
    """What pages print lies in its own bands."""
    found = []
    for session in sessions(tree):
        if not has_bands(session.block):
            continue
        last = session.commands[-1]
        try:
            wrong = bands.left(with_bands(tree, session).commands[-1].bands, last.expected or "")
        except ValueError as why:
            wrong = [str(why)]
        found += [finding("docs", session.block.path, last.line, text) for text in wrong]
    return found


def return_from_main(body):
    """Ends main with a return: outside the global namespace it is a function like any other."""
    code = blank(body)
    depth, position = 0, re.search(r"\bint main\s*\(", code).end()
    for match in re.finditer(r"[{}]", code[position:]):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            end = position + match.start()
            return f"{body[:end]} return 0; {body[end:]}"
    return body


def extract(tree):
    """One source file with every program, and a main that runs the one its first argument names."""
    found = programs(tree)
    headers, bodies, calls = {}, [], []
    for program in found:
        block, lines = program.block, []
        for number, line in enumerate(block.body.splitlines(), block.line + 1):
            if re.match(r"\s*#\s*include\b", line):
                headers.setdefault(line.strip(), f'#line {number} "{block.path}"')
                lines.append("")
            else:
                lines.append(line)
        body = return_from_main("\n".join(lines))
        bodies.append(
            f'namespace {program.name} {{\n#line {block.line + 1} "{block.path}"\n{body}\n}}\n'
        )
        arguments = "argc, argv" if re.search(r"\bint main\s*\(\s*int", block.body) else ""
        calls.append(f'  if (name == "{program.name}") return {program.name}::main({arguments});\n')
    text = "// Made from the programs in README.md and docs by tools/lint/documents.py.\n"
    text += "".join(f"{where}\n{header}\n" for header, where in headers.items())
    text += '#line 1 "doc_programs.cpp"\n#include <cstdio>\n#include <string_view>\n'
    text += "".join(bodies)
    text += (
        "int main(int argc, char** argv) {\n"
        '  const std::string_view name = argc > 1 ? argv[1] : "";\n'
        "  if (argc > 1) {\n    argv[1] = argv[0];\n    ++argv;\n    --argc;\n  }\n"
        + "".join(calls)
        + '  std::fprintf(stderr, "doc_programs: no program of that name\\n");\n  return 2;\n}\n'
    )
    return text


def matches(expected, output, figures=False):
    """Equal but for white space at line ends and around, and with `figures` for the values of numbers;
    `...` stands for any text."""
    tidy = lambda text: "\n".join(line.rstrip() for line in text.strip().splitlines())
    pattern = ".*?".join(re.escape(part) for part in tidy(expected).split("..."))
    if figures:
        pattern = re.sub(r"\d(?:[\d,]|\\\.)*", lambda _: r"\d[\d,.]*", pattern)
    return re.fullmatch(pattern, tidy(output), re.DOTALL) is not None


def prepare_folder(folder, build, program, text):
    """Where a reader would stand: the program under the name the command uses, examples beside it."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    for name in set(re.findall(r"(?<!\S)\./(\S+)", text)) if program else ():
        script = folder / name
        calls = f'#!/bin/sh\nexec "{build}/bin/doc_programs" {program.name} "$@"\n'
        if script.exists() and script.read_text() == calls:
            continue  # it may be running
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(calls)
        script.chmod(0o755)


def settings(build):
    """Other launchers, too: torchrun of .venv, Open MPI's as root and with more ranks than cores; .venv's plugins."""
    return dict(
        os.environ,
        VIRTUAL_ENV=f"{ROOT}/.venv",
        PATH=f"{build}/bin:{os.environ['PATH']}:{ROOT}/.venv/bin",
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_rmaps_base_oversubscribe="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
    )


class Running:
    """A command that was started; its end is waited for by problem()."""

    def __init__(self, build, folder, command, where=()):
        self.command = command
        self.out, self.err = (tempfile.TemporaryFile("w+") for _ in range(2))
        self.process = subprocess.Popen(
            [*where, "sh", "-c", command.text.removesuffix("&")],
            cwd=folder,
            env=settings(build),
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.err,
            start_new_session=True,
        )

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self.process.wait(), self.printed(self.out), self.printed(self.err)

    @staticmethod
    def printed(file):
        with file:
            file.seek(0)
            return file.read()

    def problem(self):
        text, expected = self.command.text, self.command.expected
        try:
            self.process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.end()
            return f"`{text}` did not end within {LIMIT_S} s"
        code, out, err = self.end()  # and what it left running
        if code != 0:
            return f"`{text}` ended with {code}\n{out}{err}"
        compared = expected is not None and not self.command.picture
        if compared and not matches(expected, out, self.command.figures):
            return f"`{text}`\n  the page says: {expected.strip()}\n  it printed:    {out.strip()}"
        if left := bands.left(self.command.bands, out):
            return f"`{text}` left its bands: {'; '.join(left)}\n  it printed: {out.strip()}"
        return None


def run_command(build, program, command):
    with tempfile.TemporaryDirectory(prefix="tutti-doc-") as name:
        folder = pathlib.Path(name)
        prepare_folder(folder, build, program, command.text)
        return Running(build, folder, command).problem()


def missing_program(build, text):
    """What a command would start, where there is none of that name; else ""."""
    if text.startswith("for "):
        return ""  # a loop of the shell, with quotes in quotes maybe
    words = [w for w in shlex.split(text) if not re.match(r"\w+=", w)]
    if words[0].startswith(("./", "(")) or shutil.which(words[0], path=settings(build)["PATH"]):
        return ""
    return words[0]


def run_session(build, session, folder):
    """[(command, what is wrong)], [(command, what is missing)]."""
    if "hosts" not in session.block.options:
        return run_lines(build, session, folder, lambda number: ())
    if not hosts.possible():
        return [], [(session.commands[0], "root and iproute2, for two hosts")]
    with hosts.Hosts() as two:
        return run_lines(build, session, folder, two.on)


def run_lines(build, session, folder, place_of):
    wrong, left_out, beside = [], [], []
    for number, command in enumerate(session.commands):
        if missing := missing_program(build, command.text):
            left_out.append((command, missing))
            continue
        prepare_folder(folder, build, session.program, command.text)
        running = Running(build, folder, command, place_of(number))
        if command.text.endswith("&"):
            beside.append(running)
        elif problem := running.problem():
            wrong.append((command, problem))
    for running in beside:
        if wrong:
            running.end()
        elif problem := running.problem():
            wrong.append((running.command, problem))
    return wrong, left_out


def tutti_commands(tree):
    """(path, line, words) of each command of the program in console and sh blocks."""
    for path in tree.matching(*PAGES):
        for block in blocks(tree, path):
            if block.language not in ("sh", "bash", "console", "shell"):
                continue
            for number, line in enumerate(block.body.splitlines(), block.line + 1):
                line = re.sub(r"^\$ ", "", line).split(" # ")[0].strip()
                try:
                    words = [w for w in shlex.split(line) if not re.match(r"[A-Z_]+=", w)]
                except ValueError:
                    continue
                is_tutti = lambda word: word == "tutti" or word.endswith("bin/tutti")
                begins = [i for i, word in enumerate(words) if is_tutti(word)]
                if begins[:1] != [0]:
                    continue
                for begin, end in zip(begins, [*begins[1:], None]):  # tutti run tutti train
                    yield path, number, words[begin + 1 : end]


def check_flags(tree, build):
    found, helps = [], {}

    def help_of(command):
        if command not in helps:
            done = subprocess.run(
                [f"{build}/bin/tutti", *command, "--help"],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            helps[command] = done.stdout if done.returncode == 0 else ""
        return helps[command]

    for path, number, words in tutti_commands(tree):
        names = [w for w in words if re.fullmatch(r"[a-z][a-z0-9-]*", w)]
        command = tuple(names[:1])
        if names[1:] and re.search(rf"^  {names[1]} ", help_of(command), re.MULTILINE):
            command = tuple(names[:2])  # bench step, plan measure
        if not help_of(command):
            found.append(finding("docs", path, number, f"tutti {' '.join(command)} --help fails"))
            continue
        own = words[: words.index("--")] if "--" in words else words
        if command == ("run",):  # what follows the program is the program's
            program = next((i for i, w in enumerate(own) if "/" in w), len(own))
            own = own[:program]
        for word in own:
            flag = word.split("=")[0]
            if flag.startswith("--") and not re.search(
                re.escape(flag) + r"(?![\w-])", helps[command]
            ):
                found.append(
                    finding("docs", path, number, f"tutti {' '.join(command)} knows no {flag}")
                )
    return found


def check_placeholders(tree):
    """No page has a line that waits for its text: "RESULTS"."""
    found = []
    for path in tree.matching(*PAGES, r"CHANGELOG\.md", r"CONTRIBUTING\.md"):
        text = tree.text(path)
        for match in PLACEHOLDER.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(finding("docs", path, line, f"{match.group().strip()} stands for what is to come"))
    return found


def check_pages(tree):
    """What needs no build."""
    return check_index(tree) + check_placeholders(tree) + check_bands(tree)


def check_index(tree):
    """Every page stands in the index of docs/."""
    index = tree.text("docs/README.md") if "docs/README.md" in tree.files else ""
    pages = [p.removeprefix("docs/") for p in tree.matching(r"docs/.+/[^/]+\.md")]
    return [
        finding("docs", f"docs/{p}", 1, "not in docs/README.md") for p in pages if f"({p})" not in index
    ]


def run(tree, build):
    found, count = check_pages(tree), 0
    for program in programs(tree):
        for command in program.commands:
            count += 1
            problem = run_command(build, program, command)
            if problem:
                found.append(finding("docs", program.block.path, command.line, problem))
    found += check_flags(tree, build)
    print(
        f"documentation: {len(programs(tree))} programs, {count} commands run, {len(found)} wrong"
    )
    return found


def children_cpu_s():
    """Of commands that have come to their end, and of what they have started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_sessions(tree, build, pages):
    found, count, left_out = [], 0, []
    with tempfile.TemporaryDirectory(prefix="tutti-doc-") as name:
        for session in sessions(tree):
            path = session.block.path
            if path not in pages if pages else has_bands(session.block):
                continue
            if has_bands(session.block):
                try:
                    with_bands(tree, session)
                except ValueError as why:
                    found.append(finding("docs", path, session.commands[-1].line, str(why)))
                    continue
            folder = pathlib.Path(name, re.sub(r"\W+", "_", path))
            if not folder.exists():
                folder.mkdir()
                readers_data.write(folder)
            began, cpu_s = time.monotonic(), children_cpu_s()
            wrong, missing = run_session(build, session, folder)
            if has_bands(session.block):
                line, spent = session.commands[-1].line, children_cpu_s() - cpu_s
                print(f"{path}:{line}: {time.monotonic() - began:.1f} s, {spent:.1f} of cores")
                if spent > BANDS_CPU_S:
                    text = f"took {spent:.0f} s of cores, at most {BANDS_CPU_S}"
                    found.append(finding("docs", path, line, text))
            count += len(session.commands) - len(missing)
            found += [finding("docs", path, command.line, problem) for command, problem in wrong]
            left_out += [f"{path}:{command.line} ({program})" for command, program in missing]
    print(f"documentation: {count} commands of sessions run, {len(found)} wrong")
    if left_out:
        print(f"left out, for what is not on this machine: {', '.join(left_out)}")
    return found


def main(arguments):
    tree = Tree()
    if arguments[:1] == ["extract"] and len(arguments) == 2:
        out, text = pathlib.Path(arguments[1]), extract(tree)
        if not out.exists() or out.read_text() != text:
            out.write_text(text)
        return 0
    if arguments[:1] in (["run"], ["sessions"]) and len(arguments) >= 2:
        build = pathlib.Path(arguments[1]).resolve()
        found = (
            run(tree, build) if arguments[0] == "run" else run_sessions(tree, build, arguments[2:])
        )
        print("\n".join(found))
        return 1 if found else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
