"""What the checks share: the tracked files, a C++ scanner, the allow-list, and how a finding looks."""

import functools
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Finding(str):
    """One line: `path:line: rule: what and what to do`."""


def finding(rule, path, line, text):
    return Finding(f"{path}:{line}: {rule}: {text}")


class Tree:
    """The files of a checkout that git tracks or would track."""

    def __init__(self, root=ROOT):
        self.root = pathlib.Path(root)

    @functools.cached_property
    def files(self):
        listing = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=self.root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        return sorted({f for f in listing.split("\0") if f and (self.root / f).is_file()})

    def matching(self, *patterns):
        return [f for f in self.files if any(re.fullmatch(p, f) for p in patterns)]

    def cpp(self):
        return self.matching(r"(tutti|tests|examples|bench)/.*\.(h|cpp)")

    def public_headers(self):
        """Headers of the library that users may include: not detail/, not an engine's insides."""
        inside = r"tutti/(cli/.*|.*/(detail|kernels)/.*|comm/(solo|shm|hier|tcp|mpi|nccl|compression)/(?!\3\.h).*)"
        return [f for f in self.matching(r"tutti/.*\.h") if not re.fullmatch(inside, f)]

    @functools.lru_cache(maxsize=None)
    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    @functools.lru_cache(maxsize=None)
    def code(self, path):
        """The text with comments and the contents of literals blanked; line numbers stay."""
        return blank(self.text(path))


TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)


def blank(text):
    def spaces(match):
        token = match.group()
        if token.startswith("/"):
            return re.sub(r"[^\n]", " ", token)
        return token[0] + re.sub(r"[^\n]", " ", token[1:-1]) + token[-1]

    return TOKEN.sub(spaces, text)


def comment_lines(text):
    """Numbers of the lines that carry a comment, or a part of one."""
    lines = set()
    for match in TOKEN.finditer(text):
        if match.group().startswith("/"):
            first = text.count("\n", 0, match.start()) + 1
            lines.update(range(first, first + match.group().count("\n") + 1))
    return lines


class AllowList:
    """tools/lint_allow.txt: `RULE PATH reason`; an entry that excuses nothing is itself a finding."""

    path = "tools/lint_allow.txt"

    def __init__(self, tree):
        self.entries, self.used = {}, set()
        self.bad = []
        if self.path not in tree.files:
            return
        for number, line in enumerate(tree.text(self.path).splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            words = line.split(None, 2)
            if len(words) < 3:
                self.bad.append(finding("allow-list", self.path, number, "want: RULE PATH reason"))
            else:
                self.entries[(words[0], words[1])] = number

    def filter(self, findings):
        kept = []
        for text in findings:
            path, _, rule = text.split(":", 3)[:3]
            key = (rule.strip(), path)
            if key in self.entries:
                self.used.add(key)
            else:
                kept.append(text)
        return kept

    def leftovers(self):
        return self.bad + [
            finding("allow-list", self.path, number, f"{rule} {path} excuses nothing: remove it")
            for (rule, path), number in self.entries.items()
            if (rule, path) not in self.used
        ]
