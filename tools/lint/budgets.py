"""Budgets: sizes, comment shares, and what must not appear. They are alarms: see tools/lint_allow.txt."""

import re

from common import comment_lines, finding

MAX_SOURCE_LINES = 800
MAX_HEADER_LINES = 250
MIN_COMMENT_SHARE = 0.25
MAX_FUNCTION_LINES = 100
MAX_IFS_PER_1000_LINES = 2
MIN_TEST_LINES_PER_SOURCE_LINE = 0.45
MAX_README_LINES_BEFORE_CODE = 25
MAX_TOP_FOLDERS = 10
MAX_COLUMNS = 100


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def check_lengths(tree):
    found = []
    public = set(tree.public_headers())
    for path in tree.cpp():
        lines = tree.text(path).count("\n")
        if path in public and lines > MAX_HEADER_LINES:
            found.append(
                finding("header-lines", path, lines, f"{lines} lines, at most {MAX_HEADER_LINES}")
            )
        elif lines > MAX_SOURCE_LINES:
            found.append(
                finding("source-lines", path, lines, f"{lines} lines, at most {MAX_SOURCE_LINES}")
            )
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if len(line) > MAX_COLUMNS and "http" not in line:
                found.append(
                    finding("columns", path, number, f"{len(line)} columns, at most {MAX_COLUMNS}")
                )
    return found


def comment_share(text):
    """Lines that carry a comment, over lines that are neither blank nor includes."""
    counted = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not re.match(r"\s*#\s*(include|pragma)\b", line)
    ]
    return len(comment_lines(text).intersection(counted)) / max(1, len(counted))


def check_comments(tree):
    found = []
    for path in tree.public_headers():
        share = comment_share(tree.text(path))
        if share < MIN_COMMENT_SHARE:
            found.append(
                finding(
                    "comment-share",
                    path,
                    1,
                    f"{share:.0%} of the lines carry a comment, "
                    f"at least {MIN_COMMENT_SHARE:.0%}",
                )
            )
    return found


def functions(code):
    """(first line, last line) of each function body outside other functions."""
    code = re.sub(
        r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
        lambda m: re.sub(r"[^\n]", " ", m.group()),
        code,
        flags=re.MULTILINE,
    )
    stack, start, result = [], 0, []
    for match in re.finditer(r"[{};]", code):
        position, token = match.start(), match.group()
        if token == "{":
            head = code[start:position]
            is_scope = re.search(r"\b(namespace|class|struct|union|enum|extern)\b[^()=]*$", head)
            inside = any(kind == "function" for kind, _ in stack)
            kind = "scope" if is_scope or ")" not in head else "function"
            begin = start + len(head) - len(head.lstrip())
            stack.append(("inner" if inside else kind, begin))
        elif token == "}" and stack:
            kind, begin = stack.pop()
            if kind == "function":
                result.append((line_of(code, begin), line_of(code, position)))
        start = position + 1
    return result


def check_functions(tree):
    found = []
    for path in tree.cpp():
        for first, last in functions(tree.code(path)):
            if last - first + 1 > MAX_FUNCTION_LINES:
                found.append(
                    finding(
                        "function-lines",
                        path,
                        first,
                        f"{last - first + 1} lines, " f"at most {MAX_FUNCTION_LINES}",
                    )
                )
    return found


FORBIDDEN = [
    ("goto", r"\bgoto\b", "no goto"),
    (
        "raw-new",
        r"\bnew\s+[A-Za-z_:(]",
        "no raw new: std::make_unique, std::make_shared or a container",
    ),
    (
        "swallow",
        r"catch\s*\(\s*\.\.\.\s*\)\s*\{\s*\}",
        "an error must not vanish: name what may fail and say why that is fine",
    ),
]
# (rule, the one source that sees a library, whose that rule is, the library, what is to be had instead).
# What a file or a peer says is read in one place, which bounds how deep it goes; and each source that
# sees nlohmann's headers, or CLI11's, is seconds of a build.
READERS = [
    (
        "json",
        "tutti/base/json.cpp",
        r"tutti/.*\.(h|cpp)",
        re.compile(r"\bnlohmann\b"),
        "a Json is of tutti/base/json.h",
    ),
    (
        "cli11",
        "tutti/cli/parse.cpp",
        r"(tutti|tests|bench/compare)/.*\.(h|cpp)",
        re.compile(r"\bCLI(::|/)"),
        "flags are described by tutti/cli/arguments.h",
    ),
]
PLACEMENT_NEW = re.compile(r"\bnew\s*\(")


def check_forbidden(tree):
    found = []
    for path in tree.cpp():
        code = PLACEMENT_NEW.sub(lambda m: " " * len(m.group()), tree.code(path))
        for rule, pattern, text in FORBIDDEN:
            found += [
                finding(rule, path, line_of(code, m.start()), text)
                for m in re.finditer(pattern, code)
            ]
        for match in re.finditer(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))", tree.text(path)):
            found.append(
                finding(
                    "todo",
                    path,
                    line_of(tree.text(path), match.start()),
                    "say it with an issue number, TODO(#12), or do it",
                )
            )
    for path in tree.public_headers():
        for match in re.finditer(r"^[ \t]*#[ \t]*define\b", tree.code(path), re.MULTILINE):
            found.append(
                finding(
                    "header-macro",
                    path,
                    line_of(tree.code(path), match.start()),
                    "no macros in public headers",
                )
            )
        if re.search(r"^[ \t]*using namespace\b", tree.code(path), re.MULTILINE):
            found.append(
                finding("using-namespace", path, 1, "no using namespace in public headers")
            )
    return found


def check_readers(tree):
    return [
        finding(rule, path, line_of(tree.code(path), match.start()), words)
        for rule, reader, paths, library, words in READERS
        for path in tree.matching(paths)
        if path != reader
        for match in library.finditer(tree.code(path))
    ]


def check_conditionals(tree):
    sources = tree.matching(r"tutti/.*\.(h|cpp)")
    lines = sum(tree.text(p).count("\n") for p in sources)
    where = [
        p
        for p in sources
        for _ in re.finditer(r"^[ \t]*#[ \t]*(if|ifdef|ifndef)\b", tree.code(p), re.MULTILINE)
    ]
    if len(where) * 1000 <= MAX_IFS_PER_1000_LINES * max(lines, 1000):
        return []
    return [
        finding(
            "conditionals",
            "tutti",
            1,
            f"{len(where)} #if in {lines} lines, at most "
            f"{MAX_IFS_PER_1000_LINES} in 1000: " + " ".join(sorted(set(where))),
        )
    ]


def filled_lines(tree, pattern):
    return sum(
        1 for p in tree.matching(pattern) for line in tree.text(p).splitlines() if line.strip()
    )


def check_tests(tree):
    source = filled_lines(tree, r"tutti/.*\.(h|cpp)")
    tests = filled_lines(tree, r"tests/.*\.(h|cpp|py|cmake)")
    if tests >= MIN_TEST_LINES_PER_SOURCE_LINE * source:
        return []
    return [
        finding(
            "test-share",
            "tests",
            1,
            f"{tests} test lines for {source} source lines = {tests / source:.2f}, "
            f"at least {MIN_TEST_LINES_PER_SOURCE_LINE}",
        )
    ]


def check_shape(tree):
    found = []
    folders = sorted({f.split("/")[0] for f in tree.files if "/" in f and not f.startswith(".")})
    if len(folders) > MAX_TOP_FOLDERS:
        found.append(
            finding(
                "top-folders",
                "README.md",
                1,
                f"{len(folders)} top folders, at most {MAX_TOP_FOLDERS}",
            )
        )
    if "README.md" in tree.files:
        lines = tree.text("README.md").splitlines()
        first = next((n for n, line in enumerate(lines, 1) if line.startswith("```cpp")), None)
        if first is None or first > MAX_README_LINES_BEFORE_CODE:
            found.append(
                finding(
                    "readme",
                    "README.md",
                    first or 1,
                    "the first library code stands in line "
                    f"{MAX_README_LINES_BEFORE_CODE} or before",
                )
            )
    return found


def check(tree):
    return [
        f
        for part in (
            check_lengths,
            check_comments,
            check_functions,
            check_forbidden,
            check_readers,
            check_conditionals,
            check_tests,
            check_shape,
        )
        for f in part(tree)
    ]
