# tests/python/in_torch/flex_file.py — torch's own tests of flex_attention, on attune
"""Runs test_flex_attention.py or test_flex_decoding.py of torch's sources, which are not in its package.

What the file compiles is attune's function, or with --compiled torch's own, after activate(compile=True). What it
compares with, eager torch in the same type and in f64, stays torch's. Its tests are written for GPUs, and ask less of a CPU: on the CPU they are told that it is a GPU, so that
gradients are compared as well. What is left out has a reason below. Prints a table; exits with 1 where a test fails.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import re
import signal
import sys
import types
import unittest
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import attune.torch
import torch
import torch.nn.attention.flex_attention as flex
import torch.testing._internal.common_device_type as device_types
from torch.nn.attention.experimental._paged_attention import PagedAttention

_LONGEST = 300  # seconds of one test
# The file's text, as it is read here; also, where attune's function is swapped in; and, also, on the CPU.
REWRITTEN = (
    # How often Dynamo compiled: versions of torch count differently, and attune's own tests count that.
    (r'self\.assertEqual\(torch\._dynamo\.utils\.counters\["(frames|aot_autograd)"\]\["ok"\], \d\)', "pass"),
)
REWRITTEN_TO_SWAP = ((r"\btorch\.compile\b", "compile_with_attune"),)
REWRITTEN_FOR_CPU = (
    (r'(\bself\.device) == "cpu"', r'\1 == "nowhere"'),
    (r'"cuda"', '"cpu"'),
    (r"\.cuda\(\)", ".cpu()"),
    # Where a test does not name a type: eager torch is very slow in f16 on CPUs.
    (r"dtype: torch\.dtype = torch\.float16", "dtype: torch.dtype = torch.float32"),
)

# Why a test says nothing about attune, and which ones these are.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "torch's BlockMask and PagedAttention alone, without an attention": (
        "*.test_block_mask_attributes*", "*.test_block_size*", "*.test_getitem*", "*.test_block_mask_device_change*",
        "*.test_compiling_create_block_mask*", "*.test_block_mask_viz*", "*.test_from_kv_blocks*", "*.test_init_mis*",
        "*.test_no_q_info_compile_False*", "*.test_make_block_mask*", "*.test_page_allocation*", "*.test_allocate*",
        "*.test_convert_*", "*.test_update*", "*.test_mask_mod_combiners*"),
    "the words and types of torch's own errors": (
        "*.test_block_mask_vs_sequence_lengths*", "*.test_mixed_dtypes_fails*", "*.test_*_error_message*",
        "*.test_qkv_and_block_mask_on_the_same_device*", "*.test_invalid_block_size*"),
    "the text of torch's graphs and of its Triton kernels": (
        "*.test_epilogue_fused*", "*.test_logsumexp_only_return*", "*.test_kernel_options_argument_is_respected*",
        "*.test_fw_bw_graph_correctness*", "*.test_symbol_closure_in_score_mod*"),
    "an error of torch, where attune computes": ("*.test_symmetric_bias*", "*.test_cant_lower_error_message*"),
    "two GPUs": ("*.test_device_cuda_1*",),
    # Eager torch gathers gate[h] for each pair and sums its gradient in 16 bits, in the reference of f64 too.
    "a reference of torch that is wrong": ("*.test_head_specific_gate*dtype:bfloat16*", "*.test_head_specific_gate*dtype:float16*"),
}
# The same, where torch's own function is compiled.
LEFT_OUT_COMPILED = {"an error of torch, where attune computes": ("*.test_no_q_info_compile_True*",)}


class Swapped:
    """Where the file's names stand for attune's function while what it compiled runs."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module, self.theirs = module, flex.flex_attention

    @contextmanager
    def names(self):
        places = [(vars(self.module), name) for name, held in vars(self.module).items() if held is self.theirs]
        places.append((vars(flex), "flex_attention"))
        for scope, name in places:
            scope[name] = attune.torch.flex_attention
        try:
            yield
        finally:
            for scope, name in places:
                scope[name] = self.theirs

    def of(self, function):
        if function is self.theirs:
            return attune.torch.flex_attention
        if isinstance(function, functools.partial):
            return functools.partial(self.of(function.func), *function.args, **function.keywords)
        return function

    def compile(self, function=None, **options):
        """In place of torch.compile."""
        if function is None:
            return functools.partial(self.compile, **options)

        @functools.wraps(function if callable(getattr(function, "__name__", None)) else self.compile)
        def run(*args, **kwargs):
            with self.names():
                return self.of(function)(*args, **kwargs)
        return run


def opened() -> None:
    """The decorators with which the file leaves tests out on CPUs, and torch's own refusal of gradients there."""
    always = lambda *_, **__: lambda function: function
    unittest.skipUnless = unittest.skipIf = always
    device_types.skipCPUIf = always
    device_types.flex_attention_supported_platform = always()
    flex._validate_device = lambda *_: None
    for function in (flex.create_block_mask, flex.create_mask, PagedAttention.__init__):
        code, given = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(given):code.co_argcount]
        function.__defaults__ = tuple("cpu" if name == "device" else held for name, held in zip(names, given))


def positions_for_all_entries() -> None:
    assign = PagedAttention.assign

    def at_each_entry(self, entries, positions, *tensors):  # older files give one row of positions for all entries
        return assign(self, entries, positions.expand(len(entries), -1), *tensors)

    PagedAttention.assign = at_each_entry


def loaded(path: Path, on_cpu: bool, compiled: bool) -> types.ModuleType:
    text = path.read_text(encoding="utf-8")
    for pattern, new in REWRITTEN + (() if compiled else REWRITTEN_TO_SWAP) + (REWRITTEN_FOR_CPU if on_cpu else ()):
        text = re.sub(pattern, new, text)
    # Eager torch takes minutes for 2048 queries and as many keys on a CPU. The windows of decoding are 1000 keys long.
    length = 1024 if "decoding" in path.name else 256
    if on_cpu:
        text = re.sub(r"^S = 2048$", f"S = {length}", text, flags=re.M)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    if compiled:
        attune.torch.activate(compile=True)
    else:
        module.compile_with_attune = Swapped(module).compile
        torch.nn.Module.compile = lambda self, **_: setattr(
            self, "_compiled_call_impl", module.compile_with_attune(self._call_impl))
    exec(compile(text, str(path), "exec"), vars(module))
    return module


def why_left_out(name: str, compiled: bool) -> str | None:
    all_reasons = [*LEFT_OUT.items(), *(LEFT_OUT_COMPILED.items() if compiled else ())]
    return next((why for why, patterns in all_reasons if any(fnmatch.fnmatch(name, p) for p in patterns)), None)


def tests_of(module: types.ModuleType, patterns: list[str]):
    for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
        for test in suite:
            name = ".".join(test.id().split(".")[-2:])
            if not patterns or any(fnmatch.fnmatch(name, f"*{p}*") for p in patterns):
                yield name, test


def out_of_time(*_):
    raise TimeoutError(f"it took more than {_LONGEST} s")


def share(text: str) -> tuple[int, int]:
    which, of = text.split("/")
    return int(which), int(of)


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="./dev flex", description="torch's own tests of flex_attention, on attune")
    p.add_argument("file", type=Path, help="test_flex_attention.py or test_flex_decoding.py of torch's sources")
    p.add_argument("patterns", nargs="*", metavar="PATTERN", help="tests whose names have one of these; all if left out")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where they run; cpu if left out")
    p.add_argument("--compiled", action="store_true",
                   help="compile torch's function, which attune.torch.activate(compile=True) lowers; swap none")
    p.add_argument("--share", type=share, default=(0, 1), metavar="I/N",
                   help="one of N shares of the tests, the first one is 0: for machines with many cores")
    return p.parse_args()


def main() -> int:
    o = options()
    warnings.simplefilter("ignore")
    if o.device == "cpu":
        opened()
    positions_for_all_entries()
    module = loaded(o.file.resolve(), o.device == "cpu", o.compiled)
    signal.signal(signal.SIGALRM, out_of_time)
    counts, failed = Counter(), []
    which, of = o.share
    for name, test in list(tests_of(module, o.patterns))[which::of]:
        why = why_left_out(name, o.compiled)
        if why is not None:
            counts[f"left out: {why}"] += 1
            continue
        result = unittest.TestResult()
        signal.alarm(_LONGEST)
        test(result)
        signal.alarm(0)
        torch._dynamo.reset()
        if o.device == "cuda":
            torch.cuda.empty_cache()  # several of these may share a GPU
        bad = [*result.errors, *result.failures]
        if bad and "TimeoutError: it took" in bad[0][1]:
            counts[f"stopped after {_LONGEST} s"] += 1
            print(f"stopped  {name}", flush=True)
        elif bad:
            counts["failed"] += 1
            failed.append(name)
            print(f"failed  {name}\n{bad[0][1]}", flush=True)
        elif result.skipped:
            counts[f"left out by the file: {result.skipped[0][1]}"] += 1
        else:
            counts["passed"] += 1
            print(f"passed  {name}", flush=True)
    print(f"\n{o.file.name} on {o.device}, torch {torch.__version__}")
    for what, count in sorted(counts.items(), key=lambda item: (item[0].startswith("left"), item[0])):
        print(f"{count:6}  {what}")
    for name in failed:
        print(f"failed  {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
