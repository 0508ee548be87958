"""One word, one thing: short names that several modules would like, and who has them.

A type, or a file, whose whole name is one of these words stands in a module that owns it; another module
finds a word that says more (`model_layout`, `ReplicaMeeting`).
"""

import re

from common import finding
from floors import owner_of

# word -> module: what it is there
OWNERS = {
    "agreement": {"parallel": "ranks that cut alike", "strategy": "options", "train": "callbacks"},
    "entry": {
        "comm": "an operation in an engine's queue",
        "data": "a named thing of a table in memory",
        "device": "a device's config",
        "observe": "an event of a trace",
        "ps": "a row in its index",
        "cli": "a row of a measured table",
        "strategy": "a tensor of a whole model",
    },
    "lane": {"sync": "what one replica has in an updater", "strategy": "the same in an Optimizer"},
    "layout": {"comm": "shared memory of a hier group", "ps": "slabs"},
    "piece": {"ps": "of a variable, on a server", "sync": "of a parameter, on a rank"},
    "plan": {
        "cli": "the command, and what a training will do",
        "cluster": "how ranks connect",
        "comm": "messages of an operation of MPI",
        "mesh": "ranks, microbatches, chunks",
        "parallel": "roles of layers",
    },
    "schedule": {"comm": "of a collective", "mesh": "of a pipeline"},
    "slots": {"data": "of batches", "sync": "of parameters"},
    "state": {"checkpoint": "what is kept", "comm": "of a record or link", "optim": "a rule's"},
    "step": {
        "base": "of a reduction shape",
        "cli": "the bench",
        "comm": "of a schedule",
        "coordinator": "that a worker is sent",
        "net": "of a handshake",
        "train": "of a fit",
    },
}
TYPE = re.compile(r"^ *(?:struct|class|enum class) (\w+)(?: final)?(?: : [^;{]*)? \{", re.MULTILINE)


def words_in(tree, path):
    """(line, word) of the file's own name and of each type that it defines."""
    yield 1, re.sub(r"\.\w+$", "", path.rsplit("/", 1)[-1])
    text = tree.text(path)
    for match in TYPE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group(1).lower()


def check(tree):
    found = []
    for path in tree.matching(r"tutti/.+/.*\.(h|cpp)"):
        for line, word in words_in(tree, path):
            owners = OWNERS.get(word)
            if owners and owner_of(path) not in owners:
                has = ", ".join(f"{module} ({meaning})" for module, meaning in owners.items())
                found.append(finding("word", path, line, f"{word} is a word of {has}: say more"))
    return found
