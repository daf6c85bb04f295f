# python/attune/torch/_group.py — a process group of attune's own: by gloo on the host, by NCCL between devices
"""The exchanges of context_parallel, and how a failing rank notifies the others."""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import attune
from attune import _arguments, _core
from attune._errors import Error

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
