# python/attune/_arrays.py — arrays of any library, through their own attributes: kinds, shapes, new arrays
"""Arrays of any library. Nothing is imported: the library of an array that is passed is already loaded."""

from __future__ import annotations

import sys
from typing import Any

from attune import _core
from attune._errors import Error, said
from attune._place import here

_FLOATS = ("float16", "float32", "float64", "bfloat16", "half", "double", "float", "float8_e4m3fn")
_known: dict[type, bool] = {}


def is_array(thing: object) -> bool:
    """True if a kernel can read the elements."""
    kind = type(thing)
    known = _known.get(kind)
    if known is None:
        numpy = sys.modules.get("numpy")
        scalar = numpy is not None and issubclass(kind, numpy.generic)
        known = not scalar and not issubclass(kind, type) and any(
            hasattr(kind, protocol) for protocol in ("__dlpack__", "__array_interface__", "__cuda_array_interface__"))
        _known[kind] = known
    return known


def type_name(array: Any) -> str:
    """The element type: `float32`, `bfloat16`, `bool`."""
    return str(getattr(array.dtype, "name", None) or array.dtype).rpartition(".")[2]


def seen_as(array: Any, name: str) -> tuple[str, int]:
    """The array's kind in expressions ('f', 'i' or 'b'), and its rank."""
    rank = len(array.shape)
    kind = getattr(array.dtype, "kind", None)
    if kind not in ("f", "i", "u", "b"):
        called = type_name(array)
        kind = "f" if called in _FLOATS else "b" if called == "bool" else ""
        kind = "i" if called.startswith(("int", "uint")) else kind
    if not kind:
        raise Error.at(here(), "capture-type", f"capture `{name}` holds {type_name(array)}",
                       "expressions read floats, integers and bools", f"convert it, e.g. {name}.astype('float32')")
    return ("i" if kind == "u" else kind), rank


def rank_of(name: str, array: Any) -> int:
    """How many dimensions an array has that a mod captures."""
    if not hasattr(array, "shape"):
        raise Error.at(here(), "capture-type", f"`{name}` is {said(array)}", "the mod reads its elements in the kernel",
                       "pass an array: numpy.array(x) makes one of a list")
    return len(array.shape)


def _namespace(array: Any) -> Any:
    own = getattr(array, "__array_namespace__", None)
    return own() if own is not None else sys.modules[type(array).__module__.partition(".")[0]]


def empty(like: Any, shape: tuple[int, ...], f32: bool = False) -> Any:
    """A new array of the kind, type and device of `like`; of type f32 if that is asked for."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(like, numpy.ndarray):
        return numpy.empty(shape, numpy.float32 if f32 else like.dtype)
    root = type(like).__module__.partition(".")[0]
    if root == "torch":
        return like.new_empty(shape, **({"dtype": sys.modules["torch"].float32} if f32 else {}), requires_grad=False)
    if root == "cupy":
        with like.device:
            return sys.modules["cupy"].empty(shape, "float32" if f32 else like.dtype)
    library = _namespace(like)
    if not hasattr(library, "from_dlpack"):
        raise Error.at(here(), "no-output", f"attune cannot make {type(like).__name__}s",
                       f"{library.__name__} has no from_dlpack", "pass out=, an array to write into")
    return _core.empty(like, shape, f32)


def finished(array: Any, like: Any) -> Any:
    """Converts an array of `empty` to the kind of `like`: some libraries only import memory that is already written."""
    if not isinstance(array, _core.Memory):
        return array
    return _namespace(like).from_dlpack(array)


def like(array: Any, shape: tuple[int, ...]) -> Any:
    """A new array like this one, of this shape: in the same order of dimensions where the shape is the same."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray) and array.shape == shape:
        return numpy.empty_like(array, subok=False)
    return empty(array, shape)


def result(q: Any, shape: tuple[int, ...]) -> Any:
    """A new array like q, of this shape; bf16 if q is e4m3, because results are never e4m3."""
    if type_name(q) == "float8_e4m3fn":
        torch, numpy, names = (sys.modules.get(name) for name in ("torch", "numpy", "ml_dtypes"))
        if torch is not None and isinstance(q, torch.Tensor):
            return q.new_empty(shape, dtype=torch.bfloat16, requires_grad=False)
        if numpy is not None and isinstance(q, numpy.ndarray) and names is not None:
            return numpy.empty(shape, names.bfloat16)
    return like(q, shape)
