# tools/checks/kernels.py — refuse a GPU kernel's name outside its own files: the rest knows kernels by descriptors
# alone
import re

from tree import files, read
from verdict import verdict

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


def complaints(root):
    kernels = [p.stem for p in files(root) if p.as_posix().startswith(DESCRIPTORS) and p.suffix == ".cpp"]
    listed = [read(root, p) for p in files(root) if p.as_posix() == LIST]
    out = [f"{LIST}: no row for {kernel}" for kernel in kernels
           if len(re.findall(rf"\b{kernel}\b", listed[0] if listed else "")) != 1]
    for path in files(root):
        if path.parts[0] not in ROOMS or path.suffix == ".md":
            continue
        text = read(root, path)
        if path.as_posix().startswith(DESCRIPTORS):  # kernels of a family share a folder, and what describes them
            text = re.sub(r"\bcodegen/cuda/\w+/", "", text)
        # Longer names that end alike are others' names.
        out += [f"{path}:{number}: names the kernel {kernel}, whose descriptor says what is to be known of it"
                for kernel in kernels if kernel in text and not may_name(path, kernel)
                for number, line in enumerate(text.splitlines(), 1) if re.search(rf"(?<!\w){kernel}", line)]
    return out


DESCRIPTOR = {f"{DESCRIPTORS}forward_sm99.cpp": "forward_sm99\n"}
ROW = {LIST: "ROW(forward_sm99)\n"}
verdict(complaints, wrong={
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
