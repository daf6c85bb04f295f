# tests/python/in_torch/test_gallery_torch.py — the torch code of each mod of the gallery computes what its text does
"""gallery/: score_mod and mask_mod in attune.torch, and the text in attune."""

import math
import sys

import attune
import pytest
import torch
from attune.torch import create_block_mask, flex_attention
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools" / "site"))
from gallery import mods  # noqa: E402

TYPES = {"f32": torch.float32, "i32": torch.int32, "bool": torch.bool}


def tensor(capture):
    count = math.prod(capture["shape"])
    if capture["type"] == "f32":
        return torch.randn(capture["shape"], generator=torch.Generator().manual_seed(count)) / 8
    # Ids, indices and flags: some equal, in no order.
    return (torch.arange(count) * 7919 % 5).reshape(capture["shape"]).to(TYPES[capture["type"]])


@pytest.mark.parametrize("mod", [mod for mod in mods() if mod.torch], ids=lambda mod: mod.name)
def test_the_torch_code_of_a_mod_is_its_text(mod):
    names = {c["name"]: tensor(c) for c in mod.question.get("captures", [])}
    for param in mod.question.get("params", []):
        name, _, value = param.partition("=")
        names[name] = float(value) if "." in value else int(value)
    made = {"torch": torch, **names}
    exec(mod.torch, made)
    of = mod.question
    length, keys, batch, heads = (of.get(name, usual) for name, usual in
                                  [("q_len", 256), ("kv_len", 256), ("batch", 1), ("heads", 8)])
    torch.manual_seed(0)
    q = torch.randn(batch, heads, length, 16)
    k, v = torch.randn(2, batch, heads, keys, 16)
    blocks = None
    if "mask_mod" in made:
        blocks = create_block_mask(made["mask_mod"], batch, heads, length, keys, device="cpu")
    texts = {part: of[part] for part in ("score", "mask") if part in of}
    wanted = attune.attention(q, k, v, **texts, **names)
    torch.testing.assert_close(flex_attention(q, k, v, made.get("score_mod"), blocks), wanted, equal_nan=True)


def test_most_mods_have_torch_code():
    assert sum(bool(mod.torch) for mod in mods()) > 60
