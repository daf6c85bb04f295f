# tools/checks/layers.py — refuses an #include that the arrows between rooms (top folders) or the floors (layers) of
# runtime do not allow, and a getenv outside options
import re
from pathlib import PurePosixPath

from tree import files, read, verdict

# What each room may include: other rooms (itself always), and the libraries named here besides std.
ROOMS = {
    "include": [], "ir": [], "compiler": ["ir"], "codegen": ["ir", "compiler"],
    "runtime": ["ir", "compiler", "codegen"], "playground": ["ir", "compiler", "codegen", "runtime"],
    "tools": ["ir", "compiler", "codegen", "runtime", "playground"],
    "c": ["ir", "compiler", "codegen", "runtime"],
    "python": [], "tests": ["ir", "compiler", "codegen", "runtime", "playground", "tools"], "examples": []}
POSIX = ["sys/", "dlfcn.h", "fcntl.h", "poll.h", "pthread.h", "sched.h", "signal.h", "spawn.h", "unistd.h"]
LIBRARIES = {
    "include": ["attune/", "stddef.h", "stdint.h"],
    "ir": ["attune/error.h", "fmt/", "pthread.h", "xxhash.h"],
    "compiler": ["attune/", "fmt/"],
    "codegen": ["attune/", "fmt/", "llvm/"],
    "runtime": ["attune/", "fmt/", "llvm/", "nlohmann/", "cpuid.h", "elf.h", "immintrin.h", "xxhash.h", "zstd.h",
                *POSIX],
    "playground": ["attune/", "fmt/", "nlohmann/"],
    "python": ["attune/c.h", "nanobind/", "structmember.h"],
    "c": ["attune/", "fmt/", "nlohmann/"],
    "tools": ["attune/", "fmt/", "CLI/", "nlohmann/", "fcntl.h", "histedit.h", "langinfo.h", "malloc.h", "unistd.h"],
    "tests": ["attune/", "fmt/", "nlohmann/", "catch2/", *POSIX],
    "examples": ["attune/", "dlfcn.h"]}
# Headers that only C files may also include.
C99 = {"math.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h"}
# Every user's file compiles the public headers. These of std cost more than all that attune declares.
HEAVY = {"algorithm", "chrono", "condition_variable", "filesystem", "fstream", "future", "iomanip", "ios", "iostream",
         "locale", "map", "mutex", "numeric", "random", "ranges", "regex", "set", "shared_mutex", "sstream", "thread",
         "unordered_map", "unordered_set"}
# The table of operations is data: Python's package lists it too.
TABLES = {"python": ["ir/ops.def"]}
# The floors of runtime: what of it the files of a folder may include, besides that folder's own. A folder that is not
# here is part of the one that it lies in. Below engines/cpu and engines/cuda only platform touches a device; plans of
# ranks do not.
SHARED = ["runtime/machine", "runtime/engines"]
PURE = [*SHARED, "runtime/engines/cover", "runtime/engines/oracle", "runtime/engines/picture"]
PLATFORM = ["runtime/platform", "runtime/platform/nvidia"]
ENGINES = [*PURE, *PLATFORM, "runtime/engines/cpu", "runtime/engines/cuda"]
RANKS = ["runtime/ranks", "runtime/ranks/plan", "runtime/ranks/schedule", "runtime/ranks/transport"]
FLOORS = {
    "runtime/machine": [],
    # What runs kernels knows nothing of calls; the emulated GPU stands in for NVIDIA's libraries.
    "runtime/platform/nvidia": ["runtime/machine", "runtime/platform"],
    "runtime/platform": ["runtime/machine", "runtime/platform/nvidia"],
    "runtime/platform/emulated": ["runtime/machine", *PLATFORM],
    "runtime/engines": ["runtime/machine"],
    "runtime/engines/cover": SHARED, "runtime/engines/oracle": SHARED,
    "runtime/engines/picture": [*SHARED, "runtime/engines/cover", "runtime/engines/oracle"],
    "runtime/engines/cpu": PURE, "runtime/engines/cuda": [*PURE, *PLATFORM],
    "runtime/ranks/plan": PURE,
    "runtime/ranks/transport": [*SHARED, *PLATFORM, "runtime/ranks/plan", "runtime/ranks"],
    "runtime/ranks/schedule": [*SHARED, *RANKS],
    "runtime/ranks": [*ENGINES, *RANKS],
    "runtime/attention": [*ENGINES, "runtime/platform/emulated", *RANKS]}
# Plans of ranks start no threads: whoever makes one hands it what does.
THREADS = {"runtime/machine/parallel.h", "runtime/machine/threads.h"}
# The lowest floor knows nothing of attention: of other rooms it may include these alone.
BELOW = {"runtime/machine": ["ir/", "codegen/isa.h"]}
# The library's one file that may read the environment. Tests read it too: how many cases, approve or not.
OPTIONS = "runtime/machine/options.cpp"


def floor_of(path):
    """The folder of FLOORS that a file of runtime lies in; runtime itself is none."""
    return next((folder.as_posix() for folder in path.parents if folder.as_posix() in FLOORS), "runtime")


def goes_up(path, name):
    """True if this file of runtime includes a file that its floor may not."""
    floor = floor_of(path)
    if not name.startswith("runtime/"):
        return floor in BELOW and not name.startswith(tuple(BELOW[floor]))
    if floor == "runtime/ranks/plan" and name in THREADS:
        return True
    return floor_of(PurePosixPath(name)) not in [floor, *FLOORS.get(floor, [])]


def complaints(root):
    out = []
    for path in files(root):
        room = path.parts[0]
        if room not in ROOMS or path.suffix not in {".h", ".cpp", ".c", ".def"}:
            continue
        for number, line in enumerate(read(root, path).splitlines(), 1):
            if re.search(r"\b(secure_)?getenv\s*\(", line) and path.as_posix() != OPTIONS and room != "tests":
                out.append(f"{path}:{number}: reads the environment; only runtime/machine/options.cpp may")
            found = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
            if not found:
                continue
            quote, name = found.groups()
            if quote == '"':
                fine = (name.split("/")[0] in [room, *ROOMS[room]] or
                        name in TABLES.get(room, [])) and room not in {"include", "examples"}
                # A program of several files, which a user copies: they lie beside each other.
                fine = fine or room == "examples" and "/" not in name and (root / path.parent / name).is_file()
                if fine and room == "runtime" and goes_up(path, name):
                    out.append(f"{path}:{number}: {floor_of(path)} may not include {quote}{name}{quote}")
            else:
                in_c = path.suffix == ".c" or path.parts[:2] == ("tests", "c")
                fine = (re.fullmatch(r"[a-z0-9_]+", name) or name.startswith(tuple(LIBRARIES[room])) or
                        in_c and name in C99) and not (room == "include" and name in HEAVY)
            if not fine:
                out.append(f"{path}:{number}: {room} may not include {quote}{name}{'>' if quote == '<' else quote}")
    return out


verdict(complaints, wrong={
    'ir/node.h:1: ir may not include "compiler/mod.h"': {"ir/node.h": '#include "compiler/mod.h"\n'},
    'compiler/mod.h:2: compiler may not include "runtime/machine/watch/log.h"': {"compiler/mod.h": '\n#include "runtime/machine/watch/log.h"\n'},
    'runtime/machine/watch/log.h:1: runtime may not include "tests/golden.h"': {"runtime/machine/watch/log.h": '# include "tests/golden.h"\n'},
    'python/core/core.cpp:1: python may not include "ir/node.h"': {
        "python/core/core.cpp": '#include "ir/node.h"\n'},
    'ir/node.h:1: ir may not include "node.h"': {"ir/node.h": '#include "node.h"\n'},
    "ir/node.h:1: ir may not include <attune/tensor.h>": {"ir/node.h": "#include <attune/tensor.h>\n"},
    "include/attune/expr.h:1: include may not include <fmt/": {"include/attune/expr.h": "#include <fmt/format.h>\n"},
    "include/attune/expr.h:1: include may not include <mutex>": {"include/attune/expr.h": "#include <mutex>\n"},
    "examples/a.cpp:1: examples may not include <stdio.h>": {"examples/a.cpp": "#include <stdio.h>\n"},
    "examples/a.cpp:1: examples may not include <ir/": {"examples/a.cpp": "#include <ir/node.h>\n"},
    'examples/a.cpp:1: examples may not include "ir/': {"examples/a.cpp": '#include "ir/node.h"\n'},
    'runtime/machine/tensor.cpp:1: runtime/machine may not include "runtime/platform/memory.h"': {
        "runtime/machine/tensor.cpp": '#include "runtime/platform/memory.h"\n'},
    'runtime/machine/cache/a.h:1: runtime/machine may not include "runtime/engines/call.h"': {
        "runtime/machine/cache/a.h": '#include "runtime/engines/call.h"\n'},
    'runtime/machine/watch/a.h:1: runtime/machine may not include "compiler/lower.h"': {
        "runtime/machine/watch/a.h": '#include "compiler/lower.h"\n'},
    'runtime/a.h:1: runtime may not include "runtime/machine/tensor.h"': {
        "runtime/a.h": '#include "runtime/machine/tensor.h"\n'},
    'runtime/engines/call.h:1: runtime/engines may not include "runtime/engines/oracle/oracle.h"': {
        "runtime/engines/call.h": '#include "runtime/engines/oracle/oracle.h"\n'},
    'runtime/engines/oracle/verify.cpp:1: runtime/engines/oracle may not include "runtime/platform/memory.h"': {
        "runtime/engines/oracle/verify.cpp": '#include "runtime/platform/memory.h"\n'},
    'runtime/engines/cpu/a.cpp:1: runtime/engines/cpu may not include "runtime/platform/nvidia/driver.h"': {
        "runtime/engines/cpu/a.cpp": '#include "runtime/platform/nvidia/driver.h"\n'},
    'runtime/engines/cuda/a.cpp:1: runtime/engines/cuda may not include "runtime/attention/bind.h"': {
        "runtime/engines/cuda/a.cpp": '#include "runtime/attention/bind.h"\n'},
    'runtime/engines/cuda/a.cpp:1: runtime/engines/cuda may not include "runtime/platform/emulated/grid.h"': {
        "runtime/engines/cuda/a.cpp": '#include "runtime/platform/emulated/grid.h"\n'},
    'runtime/platform/emulated/a.cpp:1: runtime/platform/emulated may not include "runtime/engines/call.h"': {
        "runtime/platform/emulated/a.cpp": '#include "runtime/engines/call.h"\n'},
    'runtime/platform/nvidia/a.cpp:1: runtime/platform/nvidia may not include "runtime/platform/emulated/driver.h"': {
        "runtime/platform/nvidia/a.cpp": '#include "runtime/platform/emulated/driver.h"\n'},
    'runtime/platform/a.h:1: runtime/platform may not include "runtime/engines/cuda/engine.h"': {
        "runtime/platform/a.h": '#include "runtime/engines/cuda/engine.h"\n'},
    'runtime/ranks/plan/a.cpp:1: runtime/ranks/plan may not include "runtime/engines/cpu/engine.h"': {
        "runtime/ranks/plan/a.cpp": '#include "runtime/engines/cpu/engine.h"\n'},
    'runtime/ranks/plan/a.cpp:2: runtime/ranks/plan may not include "runtime/machine/parallel.h"': {
        "runtime/ranks/plan/a.cpp": '\n#include "runtime/machine/parallel.h"\n'},
    'runtime/ranks/plan/a.h:1: runtime/ranks/plan may not include "runtime/ranks/ranks.h"': {
        "runtime/ranks/plan/a.h": '#include "runtime/ranks/ranks.h"\n'},
    'runtime/ranks/schedule/a.cpp:1: runtime/ranks/schedule may not include "runtime/platform/memory.h"': {
        "runtime/ranks/schedule/a.cpp": '#include "runtime/platform/memory.h"\n'},
    'runtime/ranks/host.cpp:1: runtime/ranks may not include "runtime/attention/bind.h"': {
        "runtime/ranks/host.cpp": '#include "runtime/attention/bind.h"\n'},
    "compiler/check.cpp:1: reads the environment": {"compiler/check.cpp": 'auto e = std::getenv("ATTUNE_LOG");\n'},
}, right={
    "include/attune/expr.h": "#include <memory>\n",
    "ir/node.h": '#include <cstdint>\n#include <mutex>\n#include <fmt/format.h>\n#include "ir/op.h"\n',
    "compiler/mod.h": '#include <attune/expr.h>\n#include "ir/node.h"\n',
    "python/core/library.cpp": '#include "ir/ops.def"\n#include <attune/c.h>\n',
    "examples/c/a.c": "#include <attune/c.h>\n#include <stdio.h>\n",
    "runtime/engines/cpu/a.cpp": '#include "runtime/engines/oracle/oracle.h"\n#include "runtime/machine/tensor.h"\n',
    "runtime/attention/offline/a.cpp": '#include "runtime/engines/cuda/engine.h"\n#include "compiler/lower.h"\n',
    "runtime/machine/options.h": '#include "codegen/isa.h"\n#include "ir/parse.h"\n',
    "runtime/machine/options.cpp": 'auto e = std::getenv("ATTUNE_LOG");\n',
    "examples/a.cpp": "#include <cstdio>\n#include <attune/attune.h>\n",
    "examples/b/a.cpp": "#include \"a.h\"\n", "examples/b/a.h": "#include <dlfcn.h>\n"})
