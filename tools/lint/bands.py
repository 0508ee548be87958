"""Bands: which figures of a command's output a page rests on, and between what they must lie.

A comment behind a ```console run bands block of one command (documents.py):

    <!-- bands
    C2 / C1: 1.9 .. 2.1, not 1 (if replicas took the mean)
    D3: nan, not 2.3
    -->

C2 is the third number of the second line of what the command prints, as the cell of a table; `nan` counts as
a number. `not` names the figure that a wrong answer would have: it must lie outside of the band.
"""

import ast
import math
import operator
import re

COMMENT = re.compile(r"\s*<!-- bands\n(.*?)-->", re.DOTALL)
LINE = re.compile(r"(?P<what>[^:]+): (?P<band>nan|\S+ \.\. \S+), not (?P<wrong>\S+)(?: \(.+\))?")
NUMBER = re.compile(r"(?<![\w.,])-?(?:nan\b|\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)")
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b if b else math.nan,
}


def numbers(line):
    return [float(word.replace(",", "").replace("-nan", "nan")) for word in NUMBER.findall(line)]


def value(what, output):
    """Of an expression of cells; ValueError for a cell that the output has not."""
    rows = [numbers(line) for line in output.strip().splitlines()]

    def of(node):
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return float(node.value)
        if isinstance(node, ast.Name) and re.fullmatch(r"[A-Z]\d+", node.id):
            column, row = ord(node.id[0]) - ord("A"), int(node.id[1:]) - 1
            if 0 <= row < len(rows) and column < len(rows[row]):
                return rows[row][column]
            raise ValueError(f"there is no {node.id}")
        raise ValueError(f"{ast.unparse(node)} is no cell, number, +, -, * or /")

    try:
        return of(ast.parse(what.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError(f"{what} is no expression of cells") from None


class Band:
    def __init__(self, text):
        match = LINE.fullmatch(text.strip())
        if not match:
            raise ValueError(f"`{text.strip()}` is no band; expected `A1: 0.5 .. 1, not 2 (why)`")
        self.text, self.what, band = text.strip(), match.group("what"), match.group("band")
        low, _, high = band.partition(" .. ")
        self.low, self.high = float(low), float(high or low)
        self.wrong = float(match.group("wrong"))
        if self.holds(self.wrong):
            raise ValueError(f"`{self.text}`: the wrong answer lies in the band")
        if self.low > self.high:
            raise ValueError(f"`{self.text}`: the band is empty")

    def holds(self, figure):
        if math.isnan(self.low):
            return math.isnan(figure)
        return self.low <= figure <= self.high


def behind(text, end):
    """The bands in the comment at `end` of a page's text; ValueError where there are none."""
    match = COMMENT.match(text, end)
    lines = [line for line in match.group(1).splitlines() if line.strip()] if match else []
    if not lines:
        raise ValueError("no bands stand behind it: <!-- bands ... -->")
    return [Band(line) for line in lines]


def left(bands, output):
    """Which bands an output leaves, in words."""
    found = []
    for band in bands:
        try:
            figure = value(band.what, output)
        except ValueError as why:
            found.append(f"`{band.text}`: {why}")
            continue
        if not band.holds(figure):
            found.append(f"`{band.text}`: it is {figure:g}")
    return found
