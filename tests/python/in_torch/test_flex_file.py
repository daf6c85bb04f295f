# tests/python/in_torch/test_flex_file.py — what ./dev flex does with a file: what is swapped, counted and left out
"""A file such as torch's own, in small."""

import subprocess
import sys
from pathlib import Path

FILE = '''
import functools
import unittest

import torch
from torch._inductor.test_case import TestCase
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

theirs = flex_attention
on_gpus = unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")


def inputs():
    return [torch.randn(1, 2, 32, 16, device="cuda", requires_grad=True) for _ in range(3)]


class TestSmall(TestCase):
    def ours(self, called):
        import attune

        facts = []
        with attune.watch(facts.append):
            called()
        return sum(fact["fact"] == "called" for fact in facts)

    @on_gpus
    def test_compiled(self):
        mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 32, 32)
        partial = functools.partial(flex_attention, block_mask=mask)
        q, k, v = inputs()
        golden = partial(q, k, v)
        self.assertEqual(self.ours(lambda: partial(q, k, v)), 0)
        out = torch.compile(partial, mode="max-autotune")(q, k, v)
        torch.testing.assert_close(out, golden, atol=1e-5, rtol=1e-5)
        grads = [torch.autograd.grad(x.sum(), (q, k, v)) for x in (out, golden)]
        torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-5)

    def test_within_functions_and_modules(self):
        @torch.compile
        def plain(q, k, v):
            return flex_attention(q, k, v)

        @torch.compile(fullgraph=True)
        def imported(q, k, v):
            return torch.nn.attention.flex_attention.flex_attention(q, k, v)

        class Layer(torch.nn.Module):
            def forward(self, q, k, v):
                return flex_attention(q, k, v)

        layer = Layer().cuda()
        layer.compile(dynamic=True)
        for function in (plain, imported, layer):
            self.assertEqual(self.ours(lambda: function(*inputs())), 1)
        self.assertIs(flex_attention, theirs)

    def test_wrong(self):
        self.assertEqual(1, 2)

    @unittest.skip("not today")
    def test_skipped(self):
        raise AssertionError

    def test_epilogue_fused(self):
        raise AssertionError
'''


def run(tmp_path, *patterns):
    path = tmp_path / "test_small.py"
    path.write_text(FILE, encoding="utf-8")
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("flex_file.py")), str(path), *patterns],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_the_table_counts_and_names(tmp_path):
    status, told = run(tmp_path)
    table = told.partition("test_small.py on cpu, torch ")[2]
    assert status == 1 and "     2  passed\n" in table and "     1  failed\n" in table, told
    assert "     1  left out by the file: not today\n" in table
    assert "     1  left out: the text of torch's graphs and of its Triton kernels\n" in table
    assert table.endswith("failed  TestSmall.test_wrong\n")


def test_tests_are_chosen_by_name(tmp_path):
    status, told = run(tmp_path, "test_comp")
    assert status == 0 and "     1  passed\n" in told and "failed" not in told


def test_shares_are_every_test_once(tmp_path):
    shares = [run(tmp_path, "--share", f"{i}/2")[1] for i in (0, 1)]
    assert all("passed  TestSmall" in told for told in shares)
    assert sum(told.count("passed  TestSmall") for told in shares) == 2
