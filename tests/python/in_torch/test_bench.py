# tests/python/in_torch/test_bench.py — python -m attune.bench --flex times a mod next to torch's FlexAttention
"""The command as a user types it, on the CPU."""

import json
import subprocess
import sys

import pytest

FILE = """
slope = torch.linspace(0.1, 0.4, 4, device=device)


def score_mod(score, b, h, q_idx, kv_idx):
    return score + slope[h] * (kv_idx - q_idx)


def mask_mod(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx
"""


def bench(*arguments):
    return subprocess.run([sys.executable, "-m", "attune.bench", *map(str, arguments)], capture_output=True, text=True)


def test_a_mod_in_a_file_is_timed_and_compared(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    call = ["--flex", tmp_path / "mine.py", "--shape", "1,4,160,16", "--kv-heads", "2", "--device", "cpu", "--eager",
            "--seconds", "0.01"]
    said = bench(*call)
    assert said.returncode == 0, said.stderr
    assert "B=1 H=4/2 S=160 D=16, torch.float32, CPU" in said.stdout
    assert "times as fast; results differ by at most" in said.stdout
    found = json.loads(bench(*call, "--json").stdout)
    assert found["attune"]["ms"] > 0 and found["FlexAttention"]["ms"] > 0
    assert found["largest_difference"] < 1e-5


@pytest.mark.parametrize("text, more, why", [("x = 1\n", [], "defines neither score_mod nor mask_mod"),
                                             (FILE, ["--backward"], "no backward on the CPU")])
def test_what_cannot_be_compared_is_refused(tmp_path, text, more, why):
    (tmp_path / "mine.py").write_text(text)
    said = bench("--flex", tmp_path / "mine.py", "--shape", "1,4,8,8", "--device", "cpu", "--eager", *more)
    assert said.returncode == 1
    assert why in said.stderr
