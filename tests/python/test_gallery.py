# tests/python/test_gallery.py — every mod of the gallery: its Python and its text are the same expression
"""The mods of gallery/, as functions and as text: the same digest."""

import sys

import attune
import numpy as np
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools" / "site"))
from gallery import mods  # noqa: E402

TYPES = {"f32": np.float32, "i32": np.int32, "bool": np.bool_}
PARTS = ("score", "mask", "prob", "sink")


@pytest.mark.parametrize("mod", mods(), ids=lambda mod: mod.name)
def test_the_python_of_a_mod_is_its_text(mod):
    names = {c["name"]: np.zeros(c["shape"], TYPES[c["type"]]) for c in mod.question.get("captures", [])}
    for param in mod.question.get("params", []):
        name, _, value = param.partition("=")
        names[name] = attune.Param(float(value) if "." in value else int(value))
    made = {"attune": attune, **names}
    exec(mod.python, made)
    written = attune.Attention(**{p: mod.question[p] for p in PARTS if p in mod.question}, **names)
    functions = attune.Attention(**{p: made[p] for p in PARTS if p in made})
    assert functions.describe()["digest"] == written.describe()["digest"]
