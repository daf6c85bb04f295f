# python/attune/torch/_engine.py — which engine of attune computes torch's calls
"""`with attune.torch.engine("oracle"):`, instead of torch.nn.attention.sdpa_kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from attune import _core
from attune._mod import NAMES, exactness, is_target, number_of
from attune.torch._value import refuse

way = (0, 0)  # the target and the exactness of calls made now, as attune/c.h has them


def engine(name: str = "auto", *, exact: bool | None = None) -> AbstractContextManager[None]:
    """Within it, calls of this process take this engine, and so do their gradients.

    "auto" is the one that reads the memory of q: "cpu" or "cuda". "oracle" is exact and slow, on the CPU alone.
    "emulated:sm_80" and "emulated:sm_90a" run the kernels of a GPU on the CPU, to find mistakes. `exact` chooses among
    GPU kernels: True takes those that compute in f32 throughout, False never does, None goes by the type.

    >>> import torch
    >>> from attune.torch import engine, flex_attention
    >>> q = torch.randn(1, 2, 8, 4)
    >>> with engine("oracle"):
    ...     true = flex_attention(q, q, q)
    >>> torch.allclose(flex_attention(q, q, q), true, atol=1e-5)
    True
    """
    if not is_target(name):
        refuse("unknown-target", f"there is no engine {name!r}", f"there are {NAMES}", "take one of these")
    return _within((number_of(name), exactness(exact)))


@contextmanager
def _within(chosen: tuple[int, int]) -> Iterator[None]:
    before = way
    _choose(chosen)
    try:
        yield
    finally:
        _choose(before)


def _choose(chosen: tuple[int, int]) -> None:
    global way
    way = chosen
    _core.choose_engine(*way)
