# tests/python/test_pictures.py — pictures of Python are those of the command line, and notebooks show them
"""Pictures."""

import os
import subprocess
import xml.etree.ElementTree
from pathlib import Path

import attune
import numpy as np
import pytest
from conftest import refused


def test_a_picture_is_an_svg(tmp_path):
    picture = attune.show(mask="kv <= q", score=lambda s, at: s - 0.1 * abs(at.q - at.kv), q_len=64, tile=(16, 8))
    root = xml.etree.ElementTree.fromstring(picture.svg)
    captions = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"tiles", "score where q . k = 0", "probability where q . k = 0"} <= set(captions)
    assert picture._repr_svg_() == picture._repr_html_() == picture.svg
    attune.show(mask="kv <= q", q_len=64, save=tmp_path / "causal.svg")
    assert (tmp_path / "causal.svg").read_text(encoding="utf-8").startswith("<svg")


def test_scores_of_q_and_k(qkv):
    slope = np.array([0.5, -0.5, 0.25, 1.0], np.float32)
    attention = attune.Attention(lambda s, at: s + slope[at.head] * at.kv, "kv <= q + 3")
    one, other = (attune.show(attention, q=qkv[0], k=qkv[1], head=h) for h in (0, 3))
    assert "score<" in one.svg and one.svg != other.svg
    assert refused(attune.show, attention, q=qkv[0], k=qkv[1], head=9).code == "picture-qk"


def test_tiles_are_those_of_the_mask():
    attention = attune.Attention(mask=lambda at: (at.kv <= at.q) & (at.q - at.kv < 40))
    tiles, rows, columns = attention._core.tiles(
        {"q_len": 96, "kv_len": 80, "tile_q": 16, "tile_kv": 16}, (), ())
    i, j = np.ogrid[:96, :80]
    kept = ((j <= i) & (i - j < 40)).reshape(6, 16, 5, 16)
    want = kept.any((1, 3)).astype(np.uint8) + kept.all((1, 3))
    assert (rows, columns) == (6, 5) and np.array_equal(np.frombuffer(tiles, np.uint8).reshape(6, 5), want)


def test_a_cover_shows_its_tiles(qkv):
    cover = attune.Attention(mask="kv <= q").cover(*qkv)
    assert cover._repr_svg_().startswith("<svg") and "kv &lt;= q" in cover._repr_html_()


def test_the_command_line_draws_the_same():
    program = Path(os.environ.get("ATTUNE_TEST_CLI") or Path(attune.__file__).parents[2] / "tools/attune")
    if not program.exists():
        pytest.skip(f"no {program}")
    said = subprocess.run([program, "plot", "--score", "s + 0.1f * f32(kv - q)", "--mask", "kv <= q && q - kv < 40",
                           "--q-len", "96", "--panels", "tiles,score,prob"], capture_output=True, text=True, check=True)
    picture = attune.show(score=lambda s, at: s + 0.1 * (at.kv - at.q), mask=attune.mods.sliding_window(40), q_len=96,
                          panels=("tiles", "score", "prob"))
    assert said.stdout == picture.svg


def test_sizes_that_no_picture_has():
    for keywords in ({"q_len": 0}, {"tile": (0, 4)}, {"head": -1}, {"kv_len": 1 << 30, "score": "s + 1.0f"}):
        assert refused(attune.show, mask="kv <= q", **keywords).code in ("bad-argument", "bad-size")
