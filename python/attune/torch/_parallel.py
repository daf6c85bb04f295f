# python/attune/torch/_parallel.py — context_parallel: attention over the ranks of a process group of attune's own
from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

import attune
from attune import _arguments, _core
from attune._errors import Error
from attune._kept import Kept
from attune._ranks import chosen
from attune.torch import _attend
from attune.torch._flex import mask_of
from attune.torch._mod import Spelled, spelled_of
from attune.torch._value import refuse

if TYPE_CHECKING:
    import torch.distributed as dist


Parts = list[tuple[int, memoryview]]


class Group:
    """A process group with the ranks of another group, whose exchanges are separate from the other's.

    Each exchange on the host, and each call on devices, whose bytes travel by NCCL, begins with a word from every rank:
    go on or stop. The other ranks therefore hear of a failing rank at their next exchange, without waiting for the time
    limit.
    """

    def __init__(self, group: dist.ProcessGroup, seconds: float) -> None:
        import torch.distributed as dist

        self._dist, self._given = dist, group
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        self.seconds = seconds
        # Words and plans travel on the host, whichever backend moves the tensors of the given group.
        backend = "gloo" if "nccl" in dist.get_backend_config() else None
        self._group = dist.new_group(dist.get_process_group_ranks(group), timedelta(seconds=seconds), backend,
                                     use_local_synchronization=True, group_desc="attune")
        self._backends = dict(one.split(":") for one in dist.get_backend_config(group).split(","))
        self._over: tuple[str, str, str, str] | None = None  # not an Error, whose traceback would keep objects alive
        self._reported: Any = None
        self._between_devices: attune.Transport | None = None

    @property
    def kinds(self) -> list[str]:
        """Where the tensors of the group given may be: "cpu", "cuda" or both."""
        found = [kind for kind, mark in (("cpu", "gloo"), ("cuda", "nccl")) if self._backends.get(kind) == mark]
        return found or ["cpu"]

    def transport(self, kind: str) -> _core.Transport:
        """The functions that the core calls for tensors on this kind of device."""
        if kind != "cuda":
            return _core.Transport(self.rank, self.count, self._exchange, None, None)
        if self.count == 1:
            return _core.Transport(0, 1, None, None, None)
        if self._between_devices is None:
            word = _bytes_of(_ID)
            if self.rank == 0:
                word = torch.frombuffer(bytearray(attune.nccl_id()), dtype=torch.uint8)
            self._meet()
            with self._until():
                self._dist.broadcast(word, group=self._group, group_src=0)
            self._between_devices = attune.nccl(bytes(word.tolist()), self.rank, self.count,
                                                device=torch.cuda.current_device(), seconds=self.seconds)
        return self._between_devices._core

    def begin(self, kind: str) -> None:
        """Exchanges words before a call or a plan, because exchanges between devices cannot hear of a failure."""
        if kind == "cuda" and self.count > 1:
            self._meet()

    def _exchange(self, send: Parts, receive: Parts, stream: int) -> None:
        sent, received = ([[_bytes(part) for peer, part in parts if peer == rank and len(part)]
                           for rank in range(self.count)] for parts in (send, receive))
        outgoing = torch.cat([t for one in sent for t in one] or [_bytes_of(0)])
        sizes = [[sum(map(len, one)) for one in way] for way in (sent, received)]
        incoming = _bytes_of(sum(sizes[1]))
        self._meet()
        with self._until():
            self._dist.all_to_all_single(incoming, outgoing, sizes[1], sizes[0], group=self._group)
        at = 0
        for t in [t for one in received for t in one]:
            t.copy_(incoming[at:at + len(t)])
            at += len(t)

    def gather(self, own: Tensor, counts: list[int]) -> list[Tensor]:
        """Every rank's tensor; each is contiguous and has its own number of rows."""
        group = self._group
        if own.is_cuda:
            if self._backends.get("cuda") != "nccl":
                return [part.to(own.device) for part in self.gather(own.cpu(), counts)]
            group = self._given
        padded = own.new_zeros((max(counts), *own.shape[1:]))
        padded[:len(own)] = own
        parts = [torch.empty_like(padded) for _ in counts]
        self._meet()
        with self._until():
            self._dist.all_gather([_raw(part) for part in parts], _raw(padded), group=group)
        return [part[:count] for part, count in zip(parts, counts)]

    def _meet(self) -> None:
        """Raises an Error on every rank if one of them has failed."""
        if self._over is not None:
            raise Error(*self._over)
        word = torch.zeros(1, dtype=torch.int64, device="cpu")
        with self._until():
            self._dist.all_reduce(word, self._dist.ReduceOp.MAX, group=self._group)
        if word.item():
            raise self._end(f"rank {word.item() - 1} has failed", "it reported its failure to the others")

    def give_up(self) -> None:
        """Reports this rank's failure: the others hear of it when they would wait for this rank."""
        if self._over is not None:
            return
        self._end(f"rank {self.rank} has failed before", "it reported its failure to the others")
        atexit.register(self._let_hear)
        try:
            word = torch.tensor([self.rank + 1], device="cpu")
            self._reported = word, self._dist.all_reduce(word, self._dist.ReduceOp.MAX, group=self._group,
                                                         async_op=True)
        except (RuntimeError, ValueError):  # the others are gone
            pass

    def _let_hear(self) -> None:
        """At the end of the process: waits briefly for the other ranks. An exchange that ends during Python's shutdown
        would crash the process."""
        until = time.monotonic() + min(self.seconds, _LAST_WORDS)
        while self._reported and not self._reported[1].is_completed() and time.monotonic() < until:
            time.sleep(0.01)

    def close(self) -> None:
        """At the end of the process: ends gloo's threads. One that drops an exchange's tensors while Python shuts down
        would crash the process."""
        own: Any = self._group
        self._group = self._given = None  # type: ignore[assignment]
        try:
            self._dist.destroy_process_group(own)
        except (AssertionError, ValueError):  # the program has destroyed all groups
            pass

    def _end(self, problem: str, why: str) -> Error:
        """Raises the Error that all exchanges raise from now on."""
        self._over = ("ranks-timeout", problem, why,
                      "check its exception; then enter context_parallel again on all ranks")
        for key in [key for key, group in _groups.items() if group is self]:
            del _groups[key]
        return Error(*self._over)

    @contextmanager
    def _until(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._end(f"rank {self.rank} timed out waiting for the others",
                            f"{str(error).splitlines()[0]}; ranks wait for {self.seconds:g} seconds") from error


_LAST_WORDS = 5.0  # seconds
_ID = 128  # bytes of an id of NCCL
_groups: dict[tuple[str, float], Group] = {}


@atexit.register
def _close_groups() -> None:
    while _groups:
        _groups.popitem()[1].close()


def group_of(group: Any, seconds: float) -> Group:
    """attune's group for this group, made on all its ranks at the first request."""
    if not hasattr(group, "group_name"):
        raise _arguments.bad("mesh", group, "a DeviceMesh of one dimension, or a process group",
                             "write init_device_mesh(\"cpu\", (ranks,)), or dist.group.WORLD")
    key = (f"{group.group_name} {id(group)}", seconds)
    if key not in _groups:
        _groups[key] = Group(group, seconds)
    return _groups[key]


def _bytes(part: memoryview) -> Tensor:
    return torch.frombuffer(part, dtype=torch.uint8)


def _bytes_of(size: int) -> Tensor:
    """Memory of the host, whatever torch's default device is."""
    return torch.empty(size, dtype=torch.uint8, device="cpu")


def _raw(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


Ranges = list[tuple[int, int]]


def context_parallel(mesh: Any, block_mask: Any = None, *, lengths: tuple[int, int] | None = None,
                     assignment: str = "best", travel: str = "best", heads: tuple[int, int] | None = None,
                     sum_captured: bool = True, seconds: float = 60) -> ContextParallel:
    """Within it, flex_attention takes this rank's rows of q, k and v, and attends to those of all ranks.

    `mesh` is a DeviceMesh of one dimension, or a process group. Which rows a rank holds follows from `block_mask`, one
    or several, so that all have as much work and little travels; without one, rows are sharded evenly for a causal mask.
    `shard` takes this rank's rows of a whole tensor, `gather` brings a whole tensor together, and `positions` are what
    rotary embeddings need. Masks and mods are those of the whole sequence; `lengths` (of queries, of keys) are those of
    block_mask, or else of what is sharded first. `heads` (of queries, of keys) tells what times are predicted for.

    Gradients of tensors that mods capture are summed over all ranks, unless `sum_captured` is False. Every rank makes
    the same calls in the same order. Where one fails, or does not come within `seconds`, the others raise an Error.

    On GPUs each process has one, set by torch.cuda.set_device; keys travel by NCCL.

    >>> import torch
    >>> import torch.distributed as dist
    >>> from attune.torch import context_parallel, create_block_mask, flex_attention
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> causal = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 64, 64)
    >>> x = torch.randn(1, 2, 64, 16)
    >>> with context_parallel(dist.group.WORLD, causal) as ranks:
    ...     q = ranks.shard(x)
    ...     out = ranks.gather(flex_attention(q, q, q, block_mask=causal))
    >>> torch.equal(out, flex_attention(x, x, x, block_mask=causal))
    True
    >>> dist.destroy_process_group()
    """
    return ContextParallel(mesh, block_mask, lengths, assignment, travel, heads, sum_captured, seconds)


class ContextParallel:
    """What context_parallel gives."""

    def __init__(self, mesh: Any, block_mask: Any, lengths: tuple[int, int] | None, assignment: str, travel: str,
                 heads: tuple[int, int] | None, sum_captured: bool, seconds: float) -> None:
        how = chosen(assignment, travel)
        limit = _arguments.real("seconds", seconds)
        if limit is None or not limit > 0:
            raise _arguments.bad("seconds", seconds, "how long ranks wait for each other", "pass a number above 0")
        several = isinstance(block_mask, Iterable) and not hasattr(block_mask, "mask_mod")
        self._masks = list(block_mask) if several else [] if block_mask is None else [block_mask]
        found = {tuple(mask.shape[-2:]) for mask in self._masks}
        if lengths is not None:
            found.add((_arguments.whole("lengths[0]", lengths[0], 1), _arguments.whole("lengths[1]", lengths[1], 1)))
        if len(found) > 1:
            refuse("block-mask", "masks of several lengths share one sharding",
                   "they are for " + " and ".join(f"{q} x {kv}" for q, kv in sorted(found)),
                   "make a context_parallel for each")
        self._lengths: tuple[int, int] | None = found.pop() if found else None
        self._how = chosen("zigzag", travel) if assignment == "best" and not self._masks else how
        self._heads, self.sum_captured = heads, sum_captured
        self._group = group_of(mesh.get_group() if hasattr(mesh, "get_group") else mesh, limit)
        self._kinds = [mesh.device_type] if hasattr(mesh, "device_type") else self._group.kinds
        self.rank, self.count = self._group.rank, self._group.count
        self._sharded: dict[str, _core.Sharding] = {}  # by the kind of device: the same assignment, by other transports
        self._plans: Kept[object, tuple[_core.Sharding, object]] = Kept(64)
        self._outside: list[Any] = []

    # ---- the context

    def __enter__(self) -> ContextParallel:
        self._outside.append(_attend.sharing)
        _attend.sharing = self
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        _attend.sharing = self._outside.pop()
        if kind is not None:
            self._group.give_up()

    # ---- rows

    def shard(self, *tensors: Tensor, dim: int = -2, keys: bool = False) -> Any:
        """This rank's rows of whole tensors: one, or a tuple of them. `keys`: as keys are sharded, where that differs.

        Gradients flow back to the rows that were taken.
        """
        if self._lengths is None and tensors:
            self._lengths = tensors[0].shape[dim], tensors[0].shape[dim]
        rows, length = self._of(self.rank, keys, *tensors), self.whole((0, 0))[keys]
        for t in tensors:
            if t.shape[dim] != length:
                refuse("sharding-shape", f"a tensor of {t.shape[dim]} rows is sharded",
                       f"{'keys' if keys else 'queries'} have {length} positions", "pass whole tensors, and their dim")
        made = [torch.cat([t.narrow(dim, begin, end - begin) for begin, end in rows] or [t.narrow(dim, 0, 0)], dim)
                for t in tensors]
        return made[0] if len(made) == 1 else tuple(made)

    @torch.no_grad()
    def gather(self, *tensors: Tensor, dim: int = -2, keys: bool = False) -> Any:
        """Whole tensors, on every rank, of the rows that each rank holds; without gradients."""
        ranges = [self._of(rank, keys) for rank in range(self.count)]
        counts = [sum(end - begin for begin, end in one) for one in ranges]
        made = []
        for t in tensors:
            if t.shape[dim] != counts[self.rank]:
                refuse("sharding-shape", f"a tensor of {t.shape[dim]} rows is gathered",
                       f"this rank holds {counts[self.rank]}", "pass this rank's rows, and their dim")
            own = t.detach().movedim(dim, 0).contiguous()
            whole = own.new_empty((sum(counts), *own.shape[1:]))
            with self._or_give_up():
                parts = self._group.gather(own, counts)
            for part, held in zip(parts, ranges):
                at = 0
                for begin, end in held:
                    whole[begin:end] = part[at:at + end - begin]
                    at += end - begin
            made.append(whole.movedim(0, dim))
        return made[0] if len(made) == 1 else tuple(made)

    def positions(self, *, device: Any = None) -> Tensor:
        """The positions of this rank's queries, for rotary embeddings."""
        return torch.cat([torch.arange(begin, end, device=device) for begin, end in self._of(self.rank, False)] or
                         [torch.arange(0, device=device)])

    def explain(self) -> str:
        """Every assignment and schedule with its predicted time, and which was chosen."""
        return self._any().explain()

    # ---- plans

    def whole(self, local: tuple[int, int]) -> tuple[int, int]:
        """The lengths of the whole call, from the lengths of this rank's tensors."""
        if self._lengths is None:
            refuse("sharding-shape", "the length of the whole sequence is not known",
                   f"this rank's rows are {local[0]} queries and {local[1]} keys",
                   "write context_parallel(mesh, lengths=(queries, keys)), or make q by its shard")
        return self._lengths

    def _of(self, rank: int, keys: bool, *tensors: Tensor) -> Ranges:
        return self._any(*tensors).of(rank, keys)

    def _any(self, *tensors: Tensor) -> _core.Sharding:
        """The assignment, the same on every device. Made at the first request, for the group's tensors or these."""
        for known in self._sharded.values():
            return known
        first = tensors[0].device.type if tensors and len(self._kinds) > 1 else self._kinds[-1]
        return self._sharding(first)

    def _sharding(self, kind: str) -> _core.Sharding:
        """Which rank holds which rows. Heads and type only guide the choice, and may differ from a call's."""
        if kind not in self._sharded:
            device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
            layers = []
            for mask in self._masks or [None]:
                batch, found = (1, 1) if mask is None else mask.shape[:2]
                kept = None if mask is None else mask_of(mask, tuple(mask.shape[-2:]), (batch, found))
                spelled = spelled_of(None, kept, device)
                heads = self._heads or ((64, 8) if found == 1 else (found, found))
                q, k = (torch.empty((), dtype=torch.bfloat16, device="cpu").expand(batch, h, n, 128)
                        for h, n in zip(heads, self.whole((0, 0))))
                layers.append(_layer(spelled, spelled.handle(None, False), q, k, k))
            with self._or_give_up():
                transport = self._group.transport(kind)
                self._group.begin(kind)
                self._sharded[kind] = _core.sharding(transport, layers, self._how, None)
        return self._sharded[kind]

    def _plan(self, spelled: Spelled, handle: _core.Attention, q: Tensor, k: Tensor, v: Tensor) -> _core.Sharding:
        """The assignment, with the exchanges for this mask."""
        sharded, lengths = self._sharding(q.device.type), self.whole((q.shape[-2], k.shape[-2]))
        # Only masks, and scores of -inf, depend on contents; other captured contents do not matter.
        read = spelled.texts.mask + (spelled.texts.score if "inf" in spelled.texts.score else "")
        seen = tuple([(id(t), t._version) for name, t in zip(spelled.names, spelled.captures) if f"{name}[" in read])
        key = (handle, spelled.ints, seen, q.device.type, q.dtype, q.shape[:-2], q.shape[-1], k.shape[:-2], v.shape[-1])
        known = self._plans.get(key)
        if known is None:
            whole = [torch.empty((), dtype=t.dtype, device="cpu").expand(*t.shape[:-2], n, t.shape[-1])
                     for t, n in zip((q, k, v), (*lengths, lengths[1]))]
            self._group.begin(q.device.type)
            made = _core.sharding(None, [_layer(spelled, handle, *whole)], None, sharded)
            known = self._plans.put(key, (made, spelled.captures))  # tensors that are kept keep their id
        return known[0]

    # ---- calls

    def attend(self, spelled: Spelled, q: Tensor, k: Tensor, v: Tensor, scale: float | None, with_lse: bool,
               with_max: bool, packed: _attend.Packed | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The attention of this rank's rows."""
        if not _attend.is_eager():
            refuse("sharding-call", "an attention over ranks is inside of torch.compile, a transform or a mode",
                   "its exchanges cannot be part of a graph", "leave it out of the graph: torch.compiler.disable")
        captures = tuple(spelled.captures)
        if packed is not None or q.dim() != 4 or not _core.plain(q, k, v, *captures):
            refuse("sharding-call", "calls over ranks take plain tensors [batch, heads, positions, width]",
                   f"q is {type(q).__name__} {list(q.shape)}", "call flex_attention with this rank's rows")
        call = spelled.call(scale, q.dtype is torch.float64)
        with self._or_give_up():
            try:
                sharding = self._plan(spelled, spelled.handle(scale, q.dtype is torch.float64), q, k, v)
            except Error as error:
                raise spelled.placed(error) from None
        shared = _Shared(self, call, q.device.type)
        more = {"sharding": sharding, "sum_captured": self.sum_captured}
        recorded = _attend.is_recorded(q, k, v, captures)
        made = _attend.computed(spelled, shared.attend, q, k, v, captures, with_lse or recorded, with_max, False, more)
        if not recorded:
            return made
        return _attend.recorded_of((spelled, shared, more), made, q, k, v, captures, with_lse)

    @contextmanager
    def _or_give_up(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._group.give_up()
            raise


class _Shared(NamedTuple):
    """A TorchCall that computes a rank's part of a call, and of its gradients."""

    parallel: ContextParallel
    call: _core.TorchCall
    kind: str

    def attend(self, *given: Any) -> Any:
        return self._among_ranks(self.call.attend, given)

    def gradients(self, *given: Any) -> Any:
        return self._among_ranks(self.call.gradients, given)

    def _among_ranks(self, method: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        with self.parallel._or_give_up():
            self.parallel._group.begin(self.kind)
            return method(*given)


def _layer(spelled: Spelled, handle: _core.Attention, q: Tensor, k: Tensor, v: Tensor) -> Any:
    """A call from which a Sharding is made: captured tensors are read on the host, now and never again."""
    captures = tuple([t.detach().cpu() for t in spelled.captures])
    return handle, {"q": q, "k": k, "v": v}, captures, tuple([float(n) for n in spelled.ints])
