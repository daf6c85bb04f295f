# tools/checks/stems.py — refuses tests that nothing runs: files that are no stem in tests/CMakeLists.txt, and names that
# ctest cannot take
import re

from tree import files, read
from verdict import verdict

LIST = "tests/CMakeLists.txt"
# ctest gets all names of an executable as one list of CMake's, which a `;` cuts and a bracket joins.
NAME = re.compile(r'^TEST_CASE\("([^"]*[][;][^"]*)"', re.M)


def complaints(root):
    return untested(root) + misnamed(root)


def misnamed(root):
    return [f"{path}:{text.count(chr(10), 0, name.start()) + 1}: ctest would not find a test of this name: write it "
            f"without `;`, `[` and `]`" for path in files(root)
            if path.as_posix().startswith("tests/") and path.suffix == ".cpp"
            for text in [read(root, path)] for name in NAME.finditer(text)]


def untested(root):
    listed = [read(root, path) for path in files(root) if path.as_posix() == LIST]
    words = set(re.findall(r"[\w.-]+", listed[0] if listed else ""))
    return [f"{path}:1: no test is made of it: add `{path.name.removesuffix('.test.cpp')}` to the STEMS of {LIST}"
            for path in files(root) if path.as_posix().startswith("tests/") and path.name.endswith(".test.cpp")
            and path.name.removesuffix(".test.cpp") not in words]


verdict(complaints,
        wrong={"tests/gpu/heads.test.cpp:1: no test is made of it": {LIST: "attune_test(gpu STEMS calls)\n",
                                                                     "tests/gpu/heads.test.cpp": "// heads\n"},
               "tests/ir/a.test.cpp:2: ctest would not find": {
                   LIST: "STEMS a\n", "tests/ir/a.test.cpp": '// a\nTEST_CASE("one of [0, 1)", "[a]") {\n'}},
        right={LIST: "attune_test(gpu\n  STEMS calls heads)\n",
               "tests/gpu/heads.test.cpp": '// heads\nTEST_CASE("heads, from 0", "[heads]") {\n'})
