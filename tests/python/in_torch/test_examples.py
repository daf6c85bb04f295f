# tests/python/in_torch/test_examples.py — the programs of python/examples for torch: their processes end, and print ok
"""Each program is a process of its own, which nothing but itself ends: a library may stop one when Python exits."""

import os
import socket
import subprocess
import sys

import pytest
from conftest import ROOT

EXAMPLES, SECONDS = ROOT / "python/examples", 200
ALONE = ("block_masks", "score_mods", "sdpa", "varlen")


def ended(name, *environments):
    """What each of the program's processes prints, with these variables."""
    processes = [subprocess.Popen([sys.executable, EXAMPLES / f"{name}.py"], env={**os.environ, **more}, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) for more in environments]
    try:
        told = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), told
    return [out for out, _ in told]


@pytest.mark.parametrize("name", ALONE)
def test_a_program_ends_by_itself(name):
    (said,) = ended(name, {})
    assert said.splitlines()[-1].startswith("ok: ")


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_end_by_themselves(count):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    first, *others = ended("context_parallel", *({**group, "RANK": str(rank)} for rank in range(count)))
    assert first == f"ok: {count} ranks learn what one learns\n" and others == [""] * (count - 1)


def test_the_page_lists_every_program():
    page = (ROOT / "docs/torch.md").read_text(encoding="utf-8")
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"first"}  # which needs no torch
    assert programs == {*ALONE, "context_parallel", "ranks"}
    assert all(f"(../python/examples/{name}.py)" in page for name in programs)
