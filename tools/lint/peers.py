"""Pages for who comes from elsewhere: each public call of the peer has a row, ours or why not.

tests/tables/peer_calls.json has the calls, by page and *place* (make_peer_calls.py asked the peers).
A table of the page whose first heading is a place has the names that are looked up there, as code,
several in a cell where one answer serves all:

    | `torch.distributed` | tutti, or why not |
    |---|---|
    | `isend`, `irecv` | `tutti::Group::send`, `tutti::Group::recv`: all operations return at once |

Found are calls without a row, rows that name no call, answers that are empty, and names
`tutti::...` whose words no public header declares all, or whose last one does not stand in the
braces of the type before it (of a type with bases: in its header). Words are found by the look of
them: a parameter or a local name of an inline function counts too. Whether what is named does what
the peer's call does, nobody but a reader sees.
"""

import json
import re

from common import finding

TABLE = "tests/tables/peer_calls.json"
SECOND_HEADING = "tutti, or why not"
CODE = re.compile(r"`([^`]+)`")
OURS = re.compile(r"\btutti((?:::\w+)+)")

TYPE = re.compile(r"\b(?:class|struct|enum)\s+(\w+)(?:\s+final)?\s*(:[^{;]*)?\{")
ENUMERATORS = re.compile(r"\benum\b[^;{]*\{([^}]*)\}")
DECLARED = re.compile(
    r"\b(?:class|struct|union|enum class|enum)\s+(\w+)"
    r"|\busing\s+(\w+)\s*="
    r"|(?:\b(?!return\b|throw\b|new\b|else\b|case\b)\w+|[>&*\]])[&*]?\s+[&*]*(\w+)\s*[({;=\[]"
    r"|\bnamespace\s+([\w:]+)\s*\{"
)


def declared_words(code):
    """Types, functions, fields, enumerators and namespaces of a header."""
    words = {w for match in DECLARED.findall(code) for found in match for w in found.split("::")}
    for body in ENUMERATORS.findall(code):
        words.update(re.findall(r"\w+", body))
    return words


def braces_from(code, begin):
    """What stands between the brace before `begin` and the one that closes it."""
    depth = 1
    for end in range(begin, len(code)):
        depth += {"{": 1, "}": -1}.get(code[end], 0)
        if depth == 0:
            return code[begin:end]
    return code[begin:]


def members(code):
    """By type without bases, the words of its braces."""
    found = {}
    for match in TYPE.finditer(code.replace("enum class", "enum")):
        name, bases = match.groups()
        if bases is None:
            body = braces_from(code.replace("enum class", "enum"), match.end())
            words = declared_words(body) | set(re.findall(r"\boperator\b", body))
            if match.group(0).startswith("enum"):
                words.update(re.findall(r"\w+", body))
            found.setdefault(name, set()).update(words)
    return found


def is_declared(headers, names):
    """Whether one of headers, as words and members(), has all of `names`: the last in the one before
    where that is a type without bases."""
    having = [types for words, types in headers if set(names) <= words]
    if len(names) < 2 or not any(names[-2] in types for _, types in headers):
        return bool(having)
    return any(names[-1] in types.get(names[-2], ()) for types in having)


def cells(line):
    """Of a line of a table; None for any other."""
    line = line.strip()
    if not (line.startswith("|") and line.endswith("|") and len(line) > 1):
        return None
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line[1:-1])]


def rows(text, places):
    """(line, place, cells) of each row of the tables of calls, and (line, None, cells) of a heading
    that is none of the places."""
    place, inside = None, False
    for number, line in enumerate(text.splitlines(), 1):
        found = cells(line)
        if found is None:
            place, inside = None, False
        elif not inside:
            inside, heading = True, found[0].strip("`")
            place = heading if heading in places else None
            if place is None and found[1:2] == [SECOND_HEADING]:
                yield number, None, found
        elif place is not None and not re.fullmatch(r"[-:| ]+", line.strip()):
            yield number, place, found


def check_page(page, text, places, headers):
    found, missing = [], {(place, name) for place, names in places.items() for name in names}
    for number, place, row in rows(text, places):
        if place is None:
            found.append(finding("peers", page, number, f"{TABLE} has no place {row[0]}"))
            continue
        names, answer = CODE.findall(row[0]), " ".join(row[1:])
        if not names:
            found.append(finding("peers", page, number, f"names no call: {row[0]}"))
        for name in names:
            if name not in places[place]:
                found.append(finding("peers", page, number, f"{place} has no {name}"))
            elif (place, name) not in missing:
                found.append(finding("peers", page, number, f"{name} of {place} has two rows"))
            missing.discard((place, name))
        if not re.search(r"\w", answer):
            found.append(finding("peers", page, number, f"{row[0]}: say what is ours, or why not"))
        for ours in OURS.findall(answer):
            if not is_declared(headers, ours.split("::")[1:]):
                found.append(finding("peers", page, number, f"no public header has tutti{ours}"))
    found += [
        finding("peers", page, 1, f"no row for {name} of {place}") for place, name in sorted(missing)
    ]
    return found


def check(tree):
    if TABLE not in tree.files:
        return []
    codes = [tree.code(path) for path in tree.public_headers()]
    headers = [(declared_words(code), members(code)) for code in codes]
    found = []
    for page, peer in json.loads(tree.text(TABLE)).items():
        if page in tree.files:
            found += check_page(page, tree.text(page), peer["places"], headers)
        else:
            found.append(finding("peers", page, 1, f"there is no such page; {TABLE} names it"))
    return found
