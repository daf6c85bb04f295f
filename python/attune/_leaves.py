# python/attune/_leaves.py — what expressions read: Param, Capture, and the coordinates At and SinkAt
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn

from attune._arrays import is_array, seen_as
from attune._errors import Error, a_, dimensions, said
from attune._place import Place, here
from attune._values import Bool, Float, Int, Operators, Value, as_value, is_float


class Param(Operators):
    """A number that may change between calls without a new kernel. A float is a Float in the kernel, an int an Int.

    >>> import attune
    >>> width = attune.Param(256)
    >>> attune.text(lambda at: at.q - at.kv < width)
    'q - kv < width'
    >>> width.value = 512
    """

    __slots__ = ("_kind", "_value", "name")

    def __init__(self, value: float, name: str = "") -> None:
        place = here()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Error.at(place, "param-type", f"a parameter cannot be {said(value)}", "it is an int or a float",
                           "pass 0 or 1 for a condition, and compare: param != 0")
        self._kind, self.name = ("i" if isinstance(value, int) else "f"), name
        self._value: float = 0
        self.value = value

    @property
    def value(self) -> float:
        """The number that the next call passes."""
        return self._value

    @value.setter
    def value(self, value: float) -> None:
        if self._kind == "i" and not (isinstance(value, int) and -2**31 <= value < 2**31):
            raise Error.at(here(), "param-type", f"an Int parameter cannot become {said(value)}",
                           "an Int holds -2147483648 to 2147483647", "make it a Float from the start: Param(1.0)")
        if self._kind == "f" and not is_float(value):
            raise Error.at(here(), "param-type", f"a Float parameter cannot become {said(value)}",
                           "the largest Float is 3.4028235e38", "pass math.inf for infinity, or a smaller number")
        self._value = value

    @property
    def kind(self) -> str:
        """'f' for a Float, 'i' for an Int."""
        return self._kind

    @property
    def word(self) -> str:
        """Float or Int."""
        return "Int" if self._kind == "i" else "Float"

    def _node(self, place: Place | None) -> Value:
        return (Int if self._kind == "i" else Float)("param", name=self, place=place)

    def __repr__(self) -> str:
        return f"attune.Param({self.value!r}{f', {self.name!r}' if self.name else ''})"


class Capture(Operators):
    """A captured tensor inside an expression: one index for each dimension, `()` for none.

    An index outside of the tensor is clamped into it. Functions see every array that they name as one of these; make
    one yourself for an array that is an attribute: `slope = attune.Capture(self.slope, "slope")`.
    """

    __slots__ = ("_array", "_kind", "_name", "_rank")

    def __init__(self, array: object, name: str = "") -> None:
        if not is_array(array):
            raise Error.at(here(), "capture-type", f"a capture cannot be {said(array)}",
                           "a captured tensor is an array", "pass an array, e.g. numpy.array(x)")
        self._kind, self._rank = seen_as(array, name or "tensor")
        self._array, self._name = array, name

    def __getitem__(self, index: object) -> Any:
        place = here()
        indices = index if isinstance(index, tuple) else (index,)
        called = f"capture `{self._name}`" if self._name else "a captured tensor"
        nodes = []
        for i in indices:
            if isinstance(i, slice) or i is None or i is Ellipsis:
                raise Error.at(place, "wrong-rank", f"{called} is sliced", "a read gives one element",
                               "give one index for each dimension: t[i], t[i, j], …")
            node = as_value(i, place)
            if not isinstance(node, Int):
                raise Error.at(place, "wrong-type", f"{called} is indexed by {a_(node.word)}", "an index is an Int",
                               "convert it with attune.i32(x)")
            nodes.append(node)
        if len(nodes) != self._rank:
            count = f"{len(nodes)} {'index' if len(nodes) == 1 else 'indices'}"
            raise Error.at(place, "wrong-rank", f"{called} is read with {count}",
                           f"it has {dimensions(self._rank)}",
                           "read a single number as t[()]" if self._rank == 0 else
                           "give one index for each dimension: t[i], t[i, j], …")
        return {"f": Float, "i": Int, "b": Bool}[self._kind]("read", tuple(nodes), self, place)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape, as Python numbers."""
        return tuple(self._array.shape)  # type: ignore[attr-defined]

    @property
    def ndim(self) -> int:
        """How many dimensions the tensor has."""
        return self._rank

    def __len__(self) -> int:
        return self.shape[0]

    def _node(self, place: Place | None) -> NoReturn:
        index = ", ".join(("at.q", "at.kv", "at.head", "at.batch")[: self._rank]) or "()"
        name = self._name or "tensor"
        raise Error.at(place, "missing-index", f"capture `{name}` is used without an index",
                       f"it has {dimensions(self._rank)}", f"read an element, e.g. {name}[{index}]")

    # Without an index it stands for nothing.
    def __bool__(self) -> bool: self._node(here())
    def __int__(self) -> int: self._node(here())
    def __float__(self) -> float: self._node(here())
    def __index__(self) -> int: self._node(here())
    def __iter__(self) -> Iterator[NoReturn]: self._node(here())
    def __call__(self, *args: object) -> NoReturn: self._node(here())

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Error.at(here(), "unknown-member", f"`{name}` of a captured tensor is not known inside an expression",
                       "inside an expression a tensor has elements, `shape` and `ndim`",
                       f"compute it before: x = {self._name or 'tensor'}.{name}…")


class SinkAt:
    """Where a sink sits: one per batch entry and head."""

    __slots__ = ("batch", "head")
    _members: ClassVar[dict[str, str]] = {"batch": "b", "head": "h"}

    def __init__(self) -> None:
        for member, name in self._members.items():
            object.__setattr__(self, member, Int("input", name=name))

    batch: Int
    head: Int

    def __setattr__(self, name: str, value: object) -> None:
        raise Error.at(here(), "unknown-member", f"`at.{name}` is assigned", "coordinates are read-only",
                       "use a variable of your own")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        other = {"b": "batch", "h": "head", "k": "kv", "q_idx": "q", "kv_idx": "kv", "query": "q", "key": "kv"}.get(
            name)
        why = "a sink knows its batch and head, not q and kv" if type(self) is SinkAt else "there are " + ", ".join(
            f"at.{m}" for m in self._members)
        raise Error.at(here(), "unknown-member", f"there is no `at.{name}`", why,
                       f"write at.{other}" if other in self._members else "take one of these")


class At(SinkAt):
    """Where a score sits. Positions are logical: within the sequence of a packed batch."""

    __slots__ = ("kv", "kv_len", "q", "q_len")
    _members: ClassVar[dict[str, str]] = {"batch": "b", "head": "h", "q": "q", "kv": "kv",
                                          "q_len": "q_len", "kv_len": "kv_len"}

    q: Int
    kv: Int
    q_len: Int
    kv_len: Int
