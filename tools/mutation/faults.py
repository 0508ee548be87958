"""Faults that a text of C++ may have, and the text with all of them in it, each behind a switch.

A source is cut into the statements of its function bodies by brackets alone: enough for code in this
project's form. A fault is known by what it changes and what stands before, not by its file and line:
two trees between which files have moved are tried with the same ones.
"""

import dataclasses
import hashlib
import re

SWITCH = "::tutti::mutation::planted"
# A text may begin with a directive, which has a line of its own; its lines keep their numbers.
DECLARATION = "namespace tutti::mutation { bool planted(int) noexcept; }\n#line 1\n"

# What defines the switch: TUTTI_FAULT is the fault that is on; where TUTTI_FAULT_RECORD names a file,
# each that is reached is written there, by whatever process of a test reaches it.
DEFINITION = r"""#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace tutti::mutation {

bool planted(int number) noexcept {
  static const int kFault = [] {
    const char* const text = std::getenv("TUTTI_FAULT");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  static const char* const kRecord = std::getenv("TUTTI_FAULT_RECORD");
  static std::atomic<bool> reached[100'000];
  if (kRecord != nullptr && !reached[number].exchange(true)) {
    char line[16];
    const int length = std::snprintf(line, sizeof line, "%d\n", number);
    const int file = open(kRecord, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || write(file, line, length) != length) std::abort();
    close(file);
  }
  return kFault == number;
}

}  // namespace tutti::mutation
"""


@dataclasses.dataclass(frozen=True)
class Fault:
    path: str
    line: int
    kind: str
    begin: int  # the span that it changes
    end: int
    was: str
    becomes: str  # "" where it is left out
    key: str  # the change, its statement with what stands before, how often the same came earlier

    def words(self):
        one_line = lambda text: " ".join(text.split())
        return f"{one_line(self.was)} -> {one_line(self.becomes) or '(left out)'}"


def masked(text):
    """The same length, without comments, literals of text and directives."""
    pattern = (r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
               r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"
               r'|^[ \t]*#(?:\\\n|[^\n])*')
    blank = lambda match: re.sub(r"[^\n]", lambda c: "_" if match[0][0] in "\"R'" else " ", match[0])
    return re.sub(pattern, blank, text, flags=re.DOTALL | re.MULTILINE)


def closing(code, at):
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0:
            return i + 1
    return len(code)


def is_body(head, inside):
    """Whether the brace behind `head` begins statements; `inside`: within statements already."""
    head = head.strip()
    if re.search(r"\b(namespace|class|struct|union|enum|extern)\b", head) and not head.endswith(")"):
        return False
    if inside and (head == "" or re.search(r"\b(else|do|try)$", head)):
        return True
    return bool(re.search(r"(\)|\])\s*(const|noexcept|override|mutable|final|\s|->\s*[\w:<>*&, ]+)*$", head))


def statements(code):
    """(begin, end) of each statement in a function's body that ends with ";", and of heads of blocks."""
    found = []
    stack = [[False, 0, 0]]  # [statements here, where the one begins, depth of parentheses]
    for i, c in enumerate(code):
        top = stack[-1]
        if c in "([":
            top[2] += 1
        elif c in ")]":
            top[2] -= 1
        elif c == "{":
            body = is_body(code[top[1]:i], top[0])
            if body and top[0] and top[2] == 0:
                found.append((top[1], i))
            stack.append([body, i + 1, 0])
        elif c == "}" and len(stack) > 1:
            body = stack.pop()[0]
            top = stack[-1]
            after = code[i + 1:].lstrip()[:1]
            if top[2] == 0 and after not in (";", ",", ")", ".", "?", "("):
                top[1] = i + 1
            elif top[2] == 0 and not top[0] and body:
                top[1] = i + 1
        elif c == ";" and top[2] == 0:
            if top[0]:
                found.append((top[1], i + 1))
            top[1] = i + 1
    return found


HEAD = re.compile(r"\s*(?:\}|else\b|(if|while|for|switch)\s*(?:constexpr\s*)?\("
                  r"|case\b[^:?]*:(?!:)|default\s*:)")


def parts(code, begin, end):
    """(kind, begin, end): the conditions before a statement, and the statement itself."""
    while True:
        head = HEAD.match(code, begin, end)
        if not head:
            break
        if head[1] is None:
            begin = head.end()
            continue
        opening = head.end() - 1
        behind = closing(code, opening)
        inside = code[opening + 1:behind - 1]
        if "constexpr" in head[0] or head[1] == "switch":
            pass
        elif head[1] == "for":
            first = inside.find(";")
            last = inside.rfind(";")
            if 0 <= first < last and inside[first + 1:last].strip():
                yield "loop", opening + 2 + first, opening + 1 + last
        elif ";" not in inside and not re.search(r"(?<![=!<>])=(?!=)", inside):
            yield "condition", opening + 1, behind - 1
        begin = behind
    begin += len(code[begin:end]) - len(code[begin:end].lstrip())
    if begin < end:
        yield "statement", begin, end


NAME = r"[\w.]+(?:->\w+|\(\)|\[\w+\])*"
# What is changed in an expression: kind, pattern, what becomes of it.
CHANGES = [
    ("comparison", r" (<=|>=|<|>) (?![^(]*>\()", {"<": " <= ", "<=": " < ", ">": " >= ", ">=": " > "}),
    ("comparison", r" (==|!=) ", {"==": " != ", "!=": " == "}),
    ("and / or", r" (&&|\|\|) ", {"&&": " || ", "||": " && "}),
    ("sign", rf"(?<=[\w)\]]) ([+\-*]) (?=[\w(])", {"+": " - ", "-": " + ", "*": " + "}),
    ("operands", rf"(?<![\w.>)\]] [*/%] )\b({NAME}) ([-/%]) ({NAME})\b(?!\()", None),
    ("constant", r"(?<![\w.'\[<])(\d+)(?![\w.'])", None),
    ("constant", r"\b(true|false)\b", {"true": "false", "false": "true"}),
    ("negation", r"(?<![\w)\]])!(?=[\w(])", {"!": ""}),
]


def changes_of(text, code):
    """(kind, changed text) of an expression: each with one change."""
    for kind, pattern, becomes in CHANGES:
        for match in re.finditer(pattern, code):
            if becomes is not None:
                new = [becomes[match[1] if match.lastindex else match[0]]]
            elif kind == "operands":
                new = [f"{match[3]} {match[2]} {match[1]}"]
            else:
                number = int(match[1], 8 if re.match(r"0\d", match[1]) else 10)
                new = [str(number + 1)] + ([str(number - 1)] if number > 1 else [])
            for one in new:
                yield kind, text[:match.start()] + one + text[match.end():]


CALL = re.compile(r"(?!(?:return|throw|delete|co_\w+|using|goto|break|continue|static_assert|new)\b)"
                  r"[\w:]+(?:(?:->|\.|::)\w+|\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\])*\(.*\);$", re.DOTALL)
ASSIGNED = re.compile(rf"(\*?[\w.]+(?:->[\w.]+|\[[^\]]*\]|\(\))*) ([-+*/|&]?=) (.*);$", re.DOTALL)
DECLARED = re.compile(r"(?!return\b)(?:const )?[\w:<>, ]+[&*]? \w+ = (.*);$", re.DOTALL)


def faults_of(path, text):
    """All that may be planted in the text of a .cpp file."""
    code = masked(text)
    found, seen = [], {}

    def add(kind, begin, end, becomes, statement):
        before = text[max(0, statement[0] - 200):statement[0]]
        subject = " ".join((before + text[statement[0]:statement[1]]).split())
        change = " ".join(becomes.split())
        again = seen[(kind, subject, change)] = seen.get((kind, subject, change), -1) + 1
        key = f"{kind}|{subject}|{change}|{again}"
        line = text.count("\n", 0, begin) + 1
        found.append(Fault(path, line, kind, begin, end, text[begin:end], becomes, key))

    def add_changes(begin, end, statement):
        # An expression is written twice; what holds a body, an initializer or a declaration is not.
        if not re.search(r"[{}]|\[[&=\]]", code[begin:end]):
            for kind, becomes in changes_of(text[begin:end], code[begin:end]):
                add(kind, begin, end, becomes, statement)

    for whole in statements(code):
        for kind, begin, end in parts(code, *whole):
            here = (begin, end)
            if kind in ("condition", "loop"):
                if kind == "condition" and "{" not in code[begin:end]:
                    add("condition negated", begin, end, f"!({text[begin:end]})", here)
                add_changes(begin, end, here)
                continue
            words = code[begin:end]
            if re.match(r"(static|constexpr|thread_local)\b", words):
                continue
            assigned, declared = ASSIGNED.match(words), DECLARED.match(words)
            if words.startswith("return ") and len(words) > 8:
                add_changes(begin + 7, end - 1, here)
            elif assigned:
                add("assignment left out", begin, end, "", here)
                add_changes(begin + assigned.start(3), begin + assigned.end(3), here)
            elif declared:
                add_changes(begin + declared.start(1), begin + declared.end(1), here)
            elif words.startswith("throw"):
                add("throw left out", begin, end, "", here)
            elif CALL.match(words) and code.count("(", begin, end) == code.count(")", begin, end):
                waits = re.search(r"\b(wait|join|after|notify|rethrow|check|abort)\w*\(", words)
                add(f"{waits[1] if waits else 'call'} left out", begin, end, "", here)
            elif re.match(r"(\+\+|--)", words):
                add("step left out", begin, end, "", here)
    return found


def chosen(candidates, count, seed):
    """So many of them; the same text is drawn alike wherever it stands."""
    rank = lambda fault: hashlib.sha256(f"{seed}|{fault.key}".encode()).hexdigest()
    return sorted(candidates, key=lambda fault: (rank(fault), fault.path, fault.begin))[:count]


def planted(text, faults):
    """The text with `faults`, pairs of a number and a Fault of it; lines stay where they are."""
    spans = {}
    for number, fault in faults:
        spans.setdefault((fault.begin, fault.end), []).append((number, fault))
    insertions = []  # (place, order at one place, text)
    for (begin, end), there in spans.items():
        size = end - begin
        without = [f"!{SWITCH}({number})" for number, fault in there if not fault.becomes]
        changed = [(number, fault) for number, fault in there if fault.becomes]
        if without:
            insertions += [(begin, (1, -size), f"{{ if ({' && '.join(without)}) "), (end, (0, size), " }")]
        if changed:
            flat = lambda words: re.sub(r"\s*\n\s*", " ", re.sub(r"//[^\n]*", "", words))
            head = "".join(f"{SWITCH}({number}) ? ({flat(fault.becomes)}) : "
                           for number, fault in changed)
            insertions += [(begin, (1, -size), f"({head}("), (end, (0, size), "))")]
    for place, _, words in sorted(insertions, reverse=True):
        text = text[:place] + words + text[place:]
    return DECLARATION + text
