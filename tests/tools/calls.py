# tests/tools/calls.py — the command line as tests call it: in a folder of their own, with .npy files made here
import ast
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from turn import in_turn  # noqa: E402

ATTUNE = os.path.abspath(sys.argv.pop(1))
ENGINE = sys.argv.pop(1) == "ON"  # was it built with the CPU engine?
# Set in sanitized builds: they do less of what costs most and is the same code each time.
SANITIZED = "ATTUNE_TEST_SANITIZED" in os.environ
CODES = {"f4": "f", "f8": "d", "f2": "e", "i4": "i", "i8": "q", "b1": "?", "u1": "B"}


def write_npy(path, shape, values, kind="f4", fortran=False):
    text = f"{{'descr': '{'|' if kind in ('b1', 'u1') else '<'}{kind}', 'fortran_order': {fortran}, " \
           f"'shape': ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''}), }}"
    text += " " * (64 - (10 + len(text) + 1) % 64) + "\n"
    data = struct.pack(f"<{len(values)}{CODES[kind]}", *values)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data)


def read_npy(path):
    raw = path.read_bytes()
    assert raw[:8] == b"\x93NUMPY\x01\x00", path
    (length,) = struct.unpack("<H", raw[8:10])
    head = ast.literal_eval(raw[10:10 + length].decode().strip())
    assert head["descr"] == "<f4" and not head["fortran_order"], head
    data = raw[10 + length:]
    return head["shape"], list(struct.unpack(f"<{len(data) // 4}f", data))


class Calls(unittest.TestCase):
    turns = 1  # in how many turns all of them run

    def setUp(self):
        # Most of what they call is code that tests in C++ call too: a sanitized build runs a sixth of them in a turn.
        each = unittest.TestLoader().getTestCaseNames(type(self))
        if not in_turn(each.index(self.id().split(".")[-1]), 6 if SANITIZED else self.turns):
            self.skipTest("it is in another turn")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)
        self.out = self.at / "results" / "deep"
        self.random = random.Random(1)

    def numbers(self, name, shape, **how):
        values = [self.random.uniform(-1, 1) for _ in range(math.prod(shape))]
        write_npy(self.at / f"{name}.npy", shape, values, **how)
        return values

    def qkv(self, b=1, hq=2, hkv=1, sq=3, skv=4, d=2, dv=3, **how):
        return (self.numbers("q", [b, hq, sq, d], **how), self.numbers("k", [b, hkv, skv, d], **how),
                self.numbers("v", [b, hkv, skv, dv], **how))

    def attune(self, *arguments, given=None, **environment):
        return subprocess.run([ATTUNE, *map(str, arguments)], cwd=self.at, capture_output=True, text=True, timeout=200,
                              input=given, encoding="utf-8", env={**os.environ, "LC_ALL": "C.UTF-8", **environment})
