# tests/python/in_torch/test_ranks_peers.py — tools/bench/ranks_peers.py on the host: every row, over two processes
"""The script that compares context parallelism, with small sizes and without torch's, which takes minutes to compile."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

SCRIPT = ROOT / "tools/bench/ranks_peers.py"


def run(out, *options):
    command = [sys.executable, SCRIPT, "--small", "--skip-torch", "--ranks", "2", "--seconds", "0.001", "--rounds", "2",
               "--out", out, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_rows_are_right_and_complete(tmp_path):
    made = run(tmp_path / "out.jsonl")
    assert made.returncode == 0, made.stderr
    first, *rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert first["run"]["machine"] == "no GPU"
    assert len(rows) == len({row["title"] for row in rows}) == 11
    for row in rows:
        ours = row["attune"]
        assert not row["failed"] and row["work"] > 0
        assert row["direction"] == "step" or ours["per_entry"] < 1e-4
        assert ours["percent"] == pytest.approx(50 * ours["one"]["median"] / ours["ranks"]["median"])
        assert len(ours["ranks"]["rounds"]) == 2 and all(len(times) == 2 for times in ours["ranks"]["rounds"])
    assert [line.split(" | ")[0] for line in made.stdout.splitlines()[2:]] == [f"| {row['title']}" for row in rows]


def test_a_row_that_fails_does_not_end_the_run(tmp_path):
    made = run(tmp_path / "out.jsonl", "--rows", "16k", "packed", "--travel", "heads")  # 8 heads share one of keys
    assert made.returncode == 1
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()][1:]
    assert ["attune" in row["failed"] for row in rows] == [True, False, True]


def test_unknown_rows_are_refused(tmp_path):
    made = run(tmp_path / "out.jsonl", "--rows", "casual")
    assert made.returncode == 2 and "no case has these words" in made.stderr
