# python/attune/_ranks.py — Transport and Sharding: one attention on many ranks, each of which holds some positions
"""Ranks: how they exchange bytes, who holds which positions, and what travels. docs/ranks.md describes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attune import _arguments, _core
from attune._errors import Error
from attune._mod import Mod
from attune._place import line

Parts = list[tuple[int, memoryview]] | list[tuple[int, int, int]]
_ASSIGNMENTS = {"best": 0, "contiguous": 1, "zigzag": 2, "greedy": 3}
_TRAVELS = {"best": 0, "gather": 1, "ring": 2, "heads": 3, "decode": 4}


def chosen(assignment: str, travel: str) -> dict[str, int]:
    """The numbers that the core has for both names."""
    for name, given, known in (("assignment", assignment, _ASSIGNMENTS), ("travel", travel, _TRAVELS)):
        if type(given) is not str or given not in known:
            raise _arguments.bad(name, given, "one of " + ", ".join(known), "pass one of these")
    return {"assignment": _ASSIGNMENTS[assignment], "travel": _TRAVELS[travel]}


class Transport:
    """How this rank exchanges bytes with the others.

    `exchange(send, receive, stream)` gets lists of (peer, memoryview). It sends what the first show to their peers, and
    fills those of the second with what their peers sent; parts keep their order between two ranks, and the other rank
    names the same sizes. It returns once all have arrived; every rank calls it in the same order. None: for planning.
    `sum(values, stream)` adds up a memoryview of floats over all ranks, in place; without it, it is made of exchanges.
    `stop()` is called by a rank that fails, so that the others do not wait for it. An exception of theirs ends the call
    that they are called by. Views show nothing after the function has returned.

    `stream` is 0 where memory is the host's. Else it is a CUstream, parts are (peer, address, bytes) of the device that
    is current, and what `sum` gets is (address, count, bytes of each): the function puts its work on the stream, and
    does not wait for it.
    """

    def __init__(self, rank: int, count: int, exchange: Callable[[Parts, Parts, int], object] | None = None, *,
                 sum: Callable[[Any, int], object] | None = None,
                 stop: Callable[[], object] | None = None) -> None:
        self.rank, self.count = _arguments.whole("rank", rank), _arguments.whole("count", count)
        function = _arguments.function
        self._core = _core.Transport(self.rank, self.count, function("exchange", exchange, "two lists of parts"),
                                     function("sum", sum, "a memoryview of floats"), function("stop", stop, "nothing"))

    def __repr__(self) -> str:
        return f"<attune.Transport: rank {self.rank} of {self.count}>"


def nccl_id() -> bytes:
    """What one rank makes and hands to all others, by your own means, before all call `nccl`."""
    return _placed(_core.nccl_id)


def nccl(id: bytes | int, rank: int | None = None, count: int | None = None, *, device: int = 0,
         seconds: float = 60) -> Transport:
    """This rank's exchanges by NCCL, which is opened by name: the one that the process has loaded, as torch does, else
    `libnccl.so.2`.

    `id` is that of `nccl_id`, and all ranks call this at once; or it is the address of your own communicator, an
    ncclComm_t that knows its rank and count and stays while the transport is used. `device` is the number of this rank's
    device. A rank that fails or does not come within `seconds` is the Error `ranks-timeout` on the others.
    """
    whole, limit = _arguments.whole, _arguments.real("seconds", seconds) or 0.0
    if type(id) is int:
        given = None, whole("id", id, 1, 2**64 - 1), (0, 0, whole("device", device)), limit
        if rank is not None or count is not None:
            raise _arguments.bad("rank", rank, "nothing: a communicator knows its rank and its count", "leave them out")
    elif isinstance(id, bytes) and len(id) == 128:
        given = id, 0, (whole("rank", rank), whole("count", count), whole("device", device)), limit
    else:
        raise _arguments.bad("id", id, "the 128 bytes of attune.nccl_id(), or the address of an ncclComm_t", "pass one")
    made = Transport.__new__(Transport)
    made._core = _placed(lambda: _core.nccl(*given))
    made.rank, made.count = made._core.rank, made._core.count
    return made


class Sharding:
    """Who holds which positions of a sequence that is too long for one rank, and what must travel for a mask.

    Made once for many calls, alike on every rank, and passed to calls as `sharding`. `attentions` are those of the calls,
    of which the masks count; what masks capture is read here. q, k and v are those of the whole call: of them, shapes
    and types alone count, so that `numpy.broadcast_to(numpy.float32(0), shape)` does. `assignment` is "best", "contiguous",
    "zigzag" or "greedy"; `travel` "best", "gather", "ring", "heads" or "decode". What is 0 is chosen, or the default.

    >>> import attune, numpy
    >>> q = numpy.broadcast_to(numpy.float32(0), (1, 8, 3000, 64))
    >>> causal, alone = attune.Attention(mask="kv <= q"), attune.Transport(0, 2)
    >>> sharding = attune.Sharding(causal, q, q, q, alone, assignment="zigzag")
    >>> sharding.of(0)
    [(0, 768), (2304, 3000)]
    """

    def __init__(self, attentions: Mod | Sequence[Mod], q: Any, k: Any, v: Any, transport: Transport, *,
                 assignment: str = "best", travel: str = "best", groups: int = 0, block: int = 0, per_node: int = 0,
                 own_gb_s: float = 0, node_gb_s: float = 0, tflops: float = 0, memory_gb_s: float = 0,
                 latency_us: float = 0, cu_seqlens: Any = None, cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None,
                 q_offset: int = 0, kv_offset: int = 0) -> None:
        choice = chosen(assignment, travel)
        if not isinstance(transport, Transport):
            raise _arguments.bad("transport", transport, "an attune.Transport", "make one of your process group")
        if cu_seqlens is not None:
            cu_seqlens_q = cu_seqlens_kv = cu_seqlens
        whole = _arguments.whole
        rates = {"own_gb_s": own_gb_s, "node_gb_s": node_gb_s, "tflops": tflops, "memory_gb_s": memory_gb_s,
                 "latency_us": latency_us}
        how = {**choice, "groups": whole("groups", groups), "block": whole("block", block),
               "per_node": whole("per_node", per_node),
               **{name: _arguments.real(name, x) for name, x in rates.items()}}
        self._places = {"q_offset": whole("q_offset", q_offset), "kv_offset": whole("kv_offset", kv_offset),
                        "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv}
        self._make(transport, attentions, (q, k, v), how, None)

    def also(self, attentions: Mod | Sequence[Mod], q: Any, k: Any, v: Any) -> Sharding:
        """The same assignment for calls of other masks: as long, but with heads and types of their own."""
        made = Sharding.__new__(Sharding)
        made._places = self._places
        made._make(self.transport, attentions, (q, k, v), None, self._core)
        return made

    def _make(self, transport: Transport, attentions: Mod | Sequence[Mod], tensors: tuple[Any, ...],
              how: dict[str, Any] | None, before: _core.Sharding | None) -> None:
        several = [attentions] if isinstance(attentions, Mod) else list(attentions)
        for one in several:
            if not isinstance(one, Mod):
                raise _arguments.bad("attentions", one, "an attune.Attention, or several", "pass those of the calls")
        self.transport = transport
        call = {**dict(zip("qkv", tensors)), **self._places}
        layers = [(one._core, call, *one._slots({})) for one in several]
        self._core = _placed(lambda: _core.sharding(transport._core if before is None else None, layers, how, before))

    def of(self, rank: int | None = None) -> list[tuple[int, int]]:
        """The queries that a rank holds, this one by default, as ranges [begin, end) in the order of its tensors."""
        return self._core.of(self._rank(rank), False)

    def keys_of(self, rank: int | None = None) -> list[tuple[int, int]]:
        """The same of its keys."""
        return self._core.of(self._rank(rank), True)

    def positions(self, rank: int | None = None) -> memoryview:
        """at.q of each of its queries, as i32: for rotary embeddings."""
        return self._core.positions(self._rank(rank))

    def received(self, rank: int | None = None, layer: int = 0) -> int:
        """Bytes that a forward of attentions[layer] brings to a rank."""
        return self._core.received(self._rank(rank), _arguments.whole("layer", layer))

    def explain(self) -> str:
        """Every assignment and schedule with its predicted time, and which was chosen."""
        return self._core.explain()

    def _rank(self, rank: int | None) -> int:
        return self.transport.rank if rank is None else _arguments.whole("rank", rank)

    def __repr__(self) -> str:
        return f"<attune.Sharding of {self.transport.count} ranks>"


def _placed(make: Callable[[], Any]) -> Any:
    """The result of `make`; its Error gets the line of the call."""
    try:
        return make()
    except Error as error:
        raise error if error.file or error.text else error.moved(line()) from None
