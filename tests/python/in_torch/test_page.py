# tests/python/in_torch/test_page.py — the code of docs/torch.md and of docstrings runs and prints what it says
"""The page and the docstrings of attune.torch."""

import doctest
import importlib

import attune.torch
import pytest
import torch
import torch.distributed as dist
from goldens import run_page


def test_the_page():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    tensors = {name: torch.randn(1, 4, 64, 16, requires_grad=True) for name in "qkv"}
    config = transformers.LlamaConfig(vocab_size=9, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                      num_attention_heads=2)
    names = {**tensors, "torch": torch, "slope": torch.ones(4, requires_grad=True), "config": config,
             "AutoModelForCausalLM": transformers.AutoModelForCausalLM}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    names["mesh"] = dist.device_mesh.init_device_mesh("cpu", (1,))
    try:
        assert run_page("docs/torch.md", names) == 16
    finally:
        importlib.import_module("attune.diffusers").disable()
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["attune.torch", *(f"attune.torch.{m}" for m in (
    "_activate", "_engine", "_flex", "_paged", "_sdpa", "_transformer_engine", "_varlen"))])
def test_docstrings(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed


def test_everything_public_is_told_of():
    for name in attune.torch.__all__:
        assert (getattr(attune.torch, name).__doc__ or "").strip(), name
