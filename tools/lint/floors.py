"""The ladder of floors: who may include whom, and where LibTorch begins.

A module includes what stands on lower floors, and on its own floor what stands before it in its row.
"""

import re

from common import finding

# floor -> rows of modules, lowest first; rows of one floor do not know each other.
FLOORS = [
    [["base", "net"]],
    [["optim"], ["mesh"], ["comm", "cluster"]],
    [
        ["device", "data", "store", "checkpoint", "ps", "coordinator", "observe"],
        ["hlo"],
        ["onnx"],
        ["pjrt"],
        ["pt2"],
    ],
    [["queues", "sync"]],
    [["strategy"]],
    [["nn", "exported", "parallel"]],
    [["train"]],
    [["models"], ["plan"]],
    [["cli"]],
]
# module -> its rooms, lowest first: a room includes what stands before it. No file of the module
# stands outside of them; "." is the module's own folder.
ROOMS = {
    "comm": [
        "engine",
        "schedule",
        "flight",
        "solo",
        "shm",
        "hier",
        "tcp",
        "mpi",
        "nccl",
        "group",
        "compression",
    ],
    "cluster": ["spec", "rendezvous", "join", "launch"],
    "ps": ["wire", "spec", "values", "partition", "view", "client", "snapshot", "server"],
    "data": [".", "transforms", "sources", "loader"],
    "pjrt": [".", "c_api"],
    "queues": [".", "step_graph"],
    "sync": [".", "shared", "replicated", "sharded", "served", "on_devices", "compiled"],
    "strategy": [
        "choice",
        "membership",
        "run",
        ".",
        "input",
        "values",
        "modules",
        "mesh",
        "optimizer",
    ],
    "parallel": ["tensor", "stages", "model"],
    "train": [
        "losses",
        "lowered",
        "metrics",
        "report",
        "callbacks",
        "watch",
        "model",
        "checkpointing",
        "fit",
    ],
    "cli": [".", "run", "data", "train", "bench", "show", "plan"],
}
# What the core does without, in tutti/extras, lowest first -> the module of which it is a part, whose
# includes it may have. Nothing outside includes it: what is called is declared in that module, and a
# stand-in there, absent/NAME_absent.cpp, is compiled in its place (TUTTI_WITH_EXTRAS=OFF).
EXTRAS = {
    "nccl_hier": "comm",
    "coders": "comm",
    "mds": "data",
    "replay": "plan",
    "plan_commands": "cli",
}
ROOMS["extras"] = list(EXTRAS)
FIRST_TORCH_FLOOR = 3
# A file that sees torch costs about 8 s of compiling on one core, precompiled header included, or 1 to
# 2 s where it is compiled in one piece with its module, and a clean build of all may take 11 minutes on
# two cores: a higher number is decided with that in view. The programs of users that we ship (examples,
# the stranger of the install test) are not counted.
MAX_TORCH_SOURCES = 427
USERS_PROGRAM = re.compile(r"examples/|tests/(jobs/install|data/house)/")

PLACE = {
    module: (floor, row, step)
    for floor, rows in enumerate(FLOORS)
    for row, modules in enumerate(rows)
    for step, module in enumerate(modules)
}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
GROUP = re.compile(r"tutti/[a-z_]+\.h")
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")


def includes(tree, path):
    """(line, name) of each include."""
    text = tree.text(path)
    return [(text.count("\n", 0, m.start(2)) + 1, m.group(2)) for m in INCLUDE.finditer(text)]


def may_include(user, used):
    (floor, row, step), (low, low_row, low_step) = PLACE[user], PLACE[used]
    return low < floor or (low == floor and low_row == row and low_step <= step)


def module_of(path):
    match = re.match(r"tutti/([^/]+)/", path)
    return match.group(1) if match else None


def owner_of(path):
    """The module of which a file is a part: of an extra's, that of EXTRAS; None: of none."""
    module = module_of(path)
    return EXTRAS.get(room_name(path)) if module == "extras" else module


def room_name(path):
    """The room of its module in which a file stands; ".": in none."""
    folder = path.split("/")[2] if path.count("/") > 2 else "."
    return folder if folder in ROOMS.get(module_of(path), []) else "."


def room_of(path):
    """(module, number of its room); None for a module without rooms. -1: outside of them."""
    module = module_of(path)
    if module not in ROOMS:
        return None
    rooms = ROOMS[module]
    name = room_name(path)
    return module, rooms.index(name) if name in rooms else -1


def check_rooms(tree):
    found = []
    for path in tree.matching(r"tutti/.*\.(h|cpp)"):
        own = room_of(path)
        if own is None:
            continue
        module, room = own
        names = ROOMS[module]
        if room < 0:
            found.append(finding("rooms", path, 1, f"{module} has rooms: {' '.join(names)}"))
            continue
        for line, name in includes(tree, path):
            used = room_of(name)
            if used and used[0] == module and used[1] > room:
                words = f"{names[room]} may not include {names[used[1]]}: it stands above"
                found.append(finding("rooms", path, line, words))
    return found


def check_ladder(tree):
    found = []
    for path in tree.matching(r"tutti/.*\.(h|cpp)"):
        module = module_of(path)
        if module is None:  # groups of headers for users: tutti/train.h and its like
            continue
        is_extra = module == "extras"
        module = owner_of(path)
        if is_extra and module is None:  # check_rooms says so
            continue
        if module not in PLACE:
            found.append(
                finding(
                    "floors", path, 1, f"module {module} stands on no floor (tools/lint/floors.py)"
                )
            )
            continue
        for line, name in includes(tree, path):
            used = module_of(name)
            if TORCH.match(name) and PLACE[module][0] < FIRST_TORCH_FLOOR:
                found.append(
                    finding(
                        "floors",
                        path,
                        line,
                        f"{module} stands below LibTorch and includes <{name}>",
                    )
                )
            elif GROUP.fullmatch(name):
                found.append(
                    finding(
                        "floors", path, line, "the library does not include its groups of headers for users"
                    )
                )
            elif used == "extras" and not is_extra:
                found.append(
                    finding("extras", path, line, "the core does without extras: no include of them")
                )
            elif used and used in PLACE and not may_include(module, used):
                found.append(
                    finding(
                        "floors",
                        path,
                        line,
                        f"{module} may not include {used}: it stands above or beside",
                    )
                )
    return found


def torch_sources(tree):
    """The .cpp files that see a torch header, directly or through headers of ours."""
    known = set(tree.cpp())
    sees = {}

    def visit(path):
        if path not in sees:
            sees[path] = False  # cycles end here
            sees[path] = any(
                TORCH.match(name) or (name in known and visit(name))
                for _, name in includes(tree, path)
            )
        return sees[path]

    return [
        path
        for path in sorted(known)
        if path.endswith(".cpp") and not USERS_PROGRAM.match(path) and visit(path)
    ]


def check_torch_count(tree):
    sources = torch_sources(tree)
    if len(sources) <= MAX_TORCH_SOURCES:
        return []
    return [
        finding(
            "torch-count",
            "tutti",
            1,
            f"{len(sources)} source files see a torch header, "
            f"at most {MAX_TORCH_SOURCES}: " + " ".join(sources),
        )
    ]


def check_whole_torch(tree):
    """<torch/torch.h>, half of what a user's source takes to compile, is in tutti/tutti.h alone."""
    return [
        finding("whole-torch", path, line, f"<{name}>: include the torch headers that it needs")
        for path in tree.matching(r"tutti/.*\.(h|cpp)")
        if path != "tutti/tutti.h"
        for line, name in includes(tree, path)
        if name == "torch/torch.h"
    ]


# At the begin of a line, so of a namespace; a method's definition has its class before it.
HIDDEN = re.compile(r"^namespace \{.*?^\}  // namespace$", re.MULTILINE | re.DOTALL)
FUNCTION = re.compile(r"^[\w\[][\w:<>&*,\[\] ]*?[ &*](\w+)\(", re.MULTILINE)


def defined_in(tree, paths):
    """Functions of namespaces, without methods and what is the file's own."""
    texts = (HIDDEN.sub("", tree.text(path)) for path in paths)
    return {name for text in texts for name in FUNCTION.findall(text)}


def check_stand_ins(tree):
    """The stand-in of an extra defines what the core's headers declare and the extra defines."""
    found = []
    declared = {
        name
        for path in tree.matching(r"tutti/(?!extras/).*\.h")
        for name in FUNCTION.findall(tree.text(path))
    }
    for extra in EXTRAS:
        absent = list(tree.matching(rf"tutti/.*/absent/{extra}_absent\.cpp"))
        called = defined_in(tree, tree.matching(rf"tutti/extras/{extra}/.*\.cpp")) & declared
        instead = defined_in(tree, absent)
        for name in sorted(called ^ instead):
            where = f"tutti/extras/{extra}" if name in called else absent[0]
            words = f"{name}() is defined in one of extras/{extra} and its stand-in, not in both"
            found.append(finding("stand-in", where, 1, words))
    return found


ONLY_DETAIL = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)


def check_private(tree):
    """What is not for users stands in detail/, and python/ goes by what is for them."""
    public = set(tree.public_headers())
    found = [
        finding("private", path, 1, "all of it is tutti::detail: put it into a folder detail/")
        for path in sorted(public)
        if (names := set(ONLY_DETAIL.findall(tree.text(path))))
        and all(name.endswith("::detail") for name in names)
    ]
    for path in tree.matching(r"python/src/.*\.(h|cpp)"):
        for line, name in includes(tree, path):
            if name.startswith("tutti/") and name not in public:
                found.append(finding("private", path, line, f"{name} is not for users"))
    return found


def check(tree):
    return (
        check_ladder(tree)
        + check_rooms(tree)
        + check_stand_ins(tree)
        + check_private(tree)
        + check_whole_torch(tree)
        + check_torch_count(tree)
    )
