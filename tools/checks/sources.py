# tools/checks/sources.py — small rules of sources: kernels' names, inline assembly, switches over Op, names of tests; and
# the longest files
import re

from tree import files, is_code, read, verdict

# ---- kernels: refuse a GPU kernel's name outside its own files: the rest knows kernels by descriptors alone

ROOMS = {"include", "ir", "compiler", "codegen", "runtime", "tools", "examples"}
DESCRIPTORS, LIST = "codegen/kernels/", "codegen/choose/kernels.cpp"


def may_name(path, kernel):
    """A kernel's descriptor, its device files (in folders of its architecture, or parts of it), the list's row, builds
    and benchmarks."""
    architecture = kernel.rsplit("_", 1)[-1]
    own_device_file = (path.parts[:2] == ("codegen", "cuda") and
                       any(name.endswith("_" + architecture) for name in (path.parent.name, path.stem)))
    return (own_device_file or path.as_posix() in {f"{DESCRIPTORS}{kernel}.cpp", LIST}
            or path.name == "CMakeLists.txt" or path.as_posix().startswith("tools/bench/"))


def kernels(root):
    all_kernels = [p.stem for p in files(root) if p.as_posix().startswith(DESCRIPTORS) and p.suffix == ".cpp"]
    listed = [read(root, p) for p in files(root) if p.as_posix() == LIST]
    out = [f"{LIST}: no row for {kernel}" for kernel in all_kernels
           if len(re.findall(rf"\b{kernel}\b", listed[0] if listed else "")) != 1]
    for path in files(root):
        if path.parts[0] not in ROOMS or path.suffix == ".md":
            continue
        text = read(root, path)
        if path.as_posix().startswith(DESCRIPTORS):  # kernels of a family share a folder, and what describes them
            text = re.sub(r"\bcodegen/cuda/\w+/", "", text)
        # Longer names that end alike are others' names.
        out += [f"{path}:{number}: names the kernel {kernel}, whose descriptor says what is to be known of it"
                for kernel in all_kernels if kernel in text and not may_name(path, kernel)
                for number, line in enumerate(text.splitlines(), 1) if re.search(rf"(?<!\w){kernel}", line)]
    return out


DESCRIPTOR = {f"{DESCRIPTORS}forward_sm99.cpp": "forward_sm99\n"}
ROW = {LIST: "ROW(forward_sm99)\n"}
verdict(kernels, wrong={
    "codegen/choose/choose.cpp:2: names the kernel forward_sm99": {
        **DESCRIPTOR, **ROW, "codegen/choose/choose.cpp": '\nif (name == "forward_sm99") return;\n'},
    "codegen/cuda/forward_sm98/scores.cuh:1: names the kernel forward_sm99": {
        **DESCRIPTOR, **ROW, "codegen/cuda/forward_sm98/scores.cuh": "// like forward_sm99\n"},
    "codegen/choose/choose.h:1: names the kernel forward_sm99": {
        **DESCRIPTOR, **ROW, "codegen/choose/choose.h": '#include "codegen/cuda/forward_sm99/layout.cuh"\n'},
    "codegen/choose/kernels.cpp: no row for forward_sm99": {**DESCRIPTOR, LIST: "ROW(forward_sm98)\n"},
}, right={**DESCRIPTOR, **ROW, "codegen/cuda/forward_sm99/forward_sm99.cuh": "forward_sm99\n",
          "codegen/cuda/forward_sm99/scores.cuh": "// of forward_sm99.cuh\n",
          f"{DESCRIPTORS}forward_tile_sm99.h": '#include "codegen/cuda/forward_sm99/layout.cuh"\n',
          "codegen/cuda/parts/ring_sm99.cuh": "// of forward_sm99.cuh\n",
          "codegen/choose/choose.cpp": "end_forward_sm99\n", "tests/codegen/choose.test.cpp": "forward_sm99\n"})

# ---- ptx: refuses inline assembly in device files outside codegen/cuda/ptx/

ROOM, SEAM = ("codegen", "cuda"), ("codegen", "cuda", "ptx")
COMMENT_OR_STRING = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'


def ptx(root):
    out = []
    for path in files(root):
        if path.parts[:2] != ROOM or path.parts[:3] == SEAM or path.suffix not in {".h", ".cuh", ".cu"}:
            continue
        # Line by line, so that line numbers are right; comments do not count.
        text = re.sub(COMMENT_OR_STRING, lambda m: re.sub(r"[^\n]", " ", m[0]), read(root, path), flags=re.S)
        out += [f"{path}:{number}: asm belongs in codegen/cuda/ptx/, as a function that says what it reads and writes"
                for number, line in enumerate(text.splitlines(), 1) if re.search(r"\b(__)?asm(__)?\b", line)]
    return out


STATEMENT = 'asm volatile("exit;");\n'
verdict(ptx, wrong={
    "codegen/cuda/companions/a.cuh:2: asm belongs": {"codegen/cuda/companions/a.cuh": "// head\n" + STATEMENT},
    "codegen/cuda/parts/a.cuh:1: asm belongs": {"codegen/cuda/parts/a.cuh": "__asm__" + STATEMENT[3:]},
}, right={
    "codegen/cuda/ptx/threads.cuh": STATEMENT,
    "codegen/cuda/companions/a.cuh": "// what asm would do\n" + 'const char* x = "asm";\n',
    "runtime/engines/cpu/pool.cpp": STATEMENT})

# ---- switches: refuses `default:` where a switch must list every Op: a new op then shows as errors

EXHAUSTIVE = {"ir/eval.cpp", "ir/interval.cpp", "codegen/choose/bound.cpp", "compiler/derive.cpp"}


def switches(root):
    return [f"{path}:{number}: no default: here, so that the compiler names every switch a new op must enter"
            for path in files(root) if path.as_posix() in EXHAUSTIVE
            for number, line in enumerate(read(root, path).splitlines(), 1) if re.search(r"\bdefault\s*:", line)]


verdict(switches,
        wrong={"ir/eval.cpp:2: no default: here": {"ir/eval.cpp": "switch (op) {\n  default: return 0;\n}\n"}},
        right={"ir/eval.cpp": "Node() = default;\n", "tools/options/text.cpp": "default: break;\n"})

# ---- stems: refuses tests that nothing runs: files that are no stem in tests/CMakeLists.txt, and names that ctest cannot
# take

STEMS = "tests/CMakeLists.txt"
# ctest gets all names of an executable as one list of CMake's, which a `;` cuts and a bracket joins.
NAME = re.compile(r'^TEST_CASE\("([^"]*[][;][^"]*)"', re.M)


def misnamed(root):
    return [f"{path}:{text.count(chr(10), 0, name.start()) + 1}: ctest would not find a test of this name: write it "
            f"without `;`, `[` and `]`" for path in files(root)
            if path.as_posix().startswith("tests/") and path.suffix == ".cpp"
            for text in [read(root, path)] for name in NAME.finditer(text)]


def stems(root):
    listed = [read(root, path) for path in files(root) if path.as_posix() == STEMS]
    words = set(re.findall(r"[\w.-]+", listed[0] if listed else ""))
    return [f"{path}:1: no test is made of it: add `{path.name.removesuffix('.test.cpp')}` to the STEMS of {STEMS}"
            for path in files(root) if path.as_posix().startswith("tests/") and path.name.endswith(".test.cpp")
            and path.name.removesuffix(".test.cpp") not in words] + misnamed(root)


verdict(stems,
        wrong={"tests/gpu/heads.test.cpp:1: no test is made of it": {STEMS: "attune_test(gpu STEMS calls)\n",
                                                                     "tests/gpu/heads.test.cpp": "// heads\n"},
               "tests/ir/a.test.cpp:2: ctest would not find": {
                   STEMS: "STEMS a\n", "tests/ir/a.test.cpp": '// a\nTEST_CASE("one of [0, 1)", "[a]") {\n'}},
        right={STEMS: "attune_test(gpu\n  STEMS calls heads)\n",
               "tests/gpu/heads.test.cpp": '// heads\nTEST_CASE("heads, from 0", "[heads]") {\n'})

# ---- lines: reports the ten longest files and refuses none: the ceiling is a hint

CEILING = 400


def lines(root):
    counts = sorted(((len(read(root, p).splitlines()), p.as_posix()) for p in files(root) if is_code(p)), reverse=True)
    print(f"{sum(n for n, _ in counts)} lines in {len(counts)} files")
    for n, path in counts[:10]:
        print(f"{n:6}  {path}{'  (over ' + str(CEILING) + ')' if n > CEILING else ''}")
    return []


verdict(lines, wrong={}, right={"ir/a.cpp": "int a;\n"})
