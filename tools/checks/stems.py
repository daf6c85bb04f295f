# tools/checks/stems.py — refuses tests that no executable contains: each *.test.cpp is a stem in tests/CMakeLists.txt
import re

from tree import files, read
from verdict import verdict

LIST = "tests/CMakeLists.txt"


def complaints(root):
    listed = [read(root, path) for path in files(root) if path.as_posix() == LIST]
    words = set(re.findall(r"[\w.-]+", listed[0] if listed else ""))
    return [f"{path}:1: no test is made of it: add `{path.name.removesuffix('.test.cpp')}` to the STEMS of {LIST}"
            for path in files(root) if path.as_posix().startswith("tests/") and path.name.endswith(".test.cpp")
            and path.name.removesuffix(".test.cpp") not in words]


verdict(complaints,
        wrong={"tests/gpu/heads.test.cpp:1: no test is made of it": {LIST: "attune_test(gpu STEMS calls)\n",
                                                                     "tests/gpu/heads.test.cpp": "// heads\n"}},
        right={LIST: "attune_test(gpu\n  STEMS calls heads)\n", "tests/gpu/heads.test.cpp": "// heads\n"})
