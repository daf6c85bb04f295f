# python/attune/torch/_graph.py — plays cuDNN's graph for a score_mod of TransformerEngine: its pointwise operations
"""`graph` and its tensors, as a score_mod that was written for cudnn.pygraph sees them.

The operations are torch's functions. So the same graph computes on values of the kernel, which write text, and on
tensors of sampled scores, with which a score_mod_bprop is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from attune._errors import Error, said
from attune._place import Place, here
from attune.torch._value import TIGHT, Value, as_kind, literal, refuse, scalar

Shape = tuple[int, ...]
Callback = Callable[..., Any]
_AXES = ("batch", "head", "query", "key")
_TORCHS = {"f": torch.float64, "i": torch.int64, "b": torch.bool}
_KINDS = {"FLOAT": "f", "HALF": "f", "BFLOAT16": "f", "INT32": "i", "INT64": "i", "BOOLEAN": "b",
          "FLOAT32": "f", "FLOAT16": "f", "BOOL": "b"}  # cuDNN's names and torch's


def _kind_of(data_type: Any) -> str:
    """What a value of a data type is inside the kernel: 'f', 'i' or 'b'; "" for a type that is not set."""
    name = str(getattr(data_type, "name", data_type)).rpartition(".")[2].upper()
    if data_type is None or name == "NOT_SET":
        return ""
    if name not in _KINDS:
        refuse("wrong-type", f"a value of the kernel cannot become {name}",
               "it is a Float, an Int of 32 bits or a Bool", "write FLOAT, INT32 or BOOLEAN")
    return _KINDS[name]


class GraphTensor:
    """Plays a tensor of cuDNN's graph."""

    def __init__(self, value: Any, dim: Shape, name: str = "") -> None:
        self.value, self._dim, self._name = value, dim, name
        self._data_type: Any = None

    def set_data_type(self, data_type: Any) -> GraphTensor:
        """Converts it. Floats stay f32, whichever float type is named."""
        kind = _kind_of(data_type)
        if kind:
            self.value, self._data_type = _as(self.value, kind), data_type
        return self

    def get_data_type(self) -> Any:
        return self._data_type

    def get_dim(self) -> list[int]:
        return list(self._dim)

    def set_name(self, name: str) -> GraphTensor:
        self._name = name
        return self

    def get_name(self) -> str:
        return self._name

    def _says_nothing_new(self, *_: Any, **__: Any) -> GraphTensor:
        """Tells cuDNN what attune derives."""
        return self

    set_dim = set_stride = set_uid = set_is_virtual = set_is_pass_by_value = set_output = _says_nothing_new


def _kind(value: Any) -> str:
    if isinstance(value, Value):
        return value.kind
    return "f" if value.is_floating_point() else "b" if value.dtype == torch.bool else "i"


def _as(value: Any, kind: str) -> Any:
    if isinstance(value, Value):
        return as_kind(value, kind)
    return value if _kind(value) == kind else value.to(_TORCHS[kind])


# ---- the operations

# Each gets Floats alone ("f"), Bools alone ("b"), or numbers of one type: Floats if one of them is, else Ints ("n").


class _Operation(NamedTuple):
    inputs: tuple[str, ...]  # cuDNN's names of its tensors
    takes: str
    function: Callable[..., Any]
    options: tuple[str, ...] = ()  # cuDNN's names of its numbers


def _relu(x: Any, negative_slope: float = 0.0, lower_clip: float = 0.0, upper_clip: float = math.inf) -> Any:
    _check_clip(negative_slope, lower_clip)
    out = torch.where(x > lower_clip, x, x * negative_slope if negative_slope else lower_clip)
    return torch.where(x < upper_clip, out, upper_clip) if upper_clip < math.inf else out


def _relu_backward(loss: Any, x: Any, negative_slope: float = 0.0, lower_clip: float = 0.0,
                   upper_clip: float = math.inf) -> Any:
    _check_clip(negative_slope, lower_clip)
    out = torch.where(x > lower_clip, loss, loss * negative_slope if negative_slope else 0.0)
    return torch.where(x < upper_clip, out, 0.0) if upper_clip < math.inf else out


def _check_clip(negative_slope: float, lower_clip: float) -> None:
    if negative_slope and lower_clip:
        refuse("bad-argument", "relu has both a negative_slope and a lower_clip",
               "cuDNN does not say what they mean together", "write binary_select")


def _swish(x: Any, swish_beta: float = 1.0) -> Any:
    return x * torch.sigmoid(x * swish_beta)


def _swish_backward(loss: Any, x: Any, swish_beta: float = 1.0) -> Any:
    part = torch.sigmoid(x * swish_beta)
    return loss * (part + x * swish_beta * part * (1.0 - part))


def _sigmoid_backward(loss: Any, x: Any) -> Any:
    part = torch.sigmoid(x)
    return loss * (part * (1.0 - part))


def _tanh_backward(loss: Any, x: Any) -> Any:
    part = torch.tanh(x)
    return loss * (1.0 - part * part)


def _gelu_backward(loss: Any, x: Any) -> Any:
    density = torch.exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return loss * (0.5 * (1.0 + torch.erf(x * math.sqrt(0.5))) + x * density)


def _gelu_approx_tanh_backward(loss: Any, x: Any) -> Any:
    slope = math.sqrt(2.0 / math.pi)
    part = torch.tanh((x + x * x * x * 0.044715) * slope)
    return loss * (0.5 * (1.0 + part) + x * (1.0 - part * part) * (1.0 + x * x * (3.0 * 0.044715)) * (0.5 * slope))


_CLIPS = ("negative_slope", "lower_clip", "upper_clip")
_OPERATIONS = {
    **{name: _Operation(("input",), "f", getattr(torch, name))
       for name in ("cos", "erf", "exp", "log", "reciprocal", "rsqrt", "sigmoid", "sin", "sqrt", "tan", "tanh")},
    **{name: _Operation(("input",), "n", getattr(torch, name)) for name in ("abs", "ceil", "floor", "neg")},
    **{name: _Operation(("a", "b"), "n", getattr(torch, name)) for name in ("add", "mul", "sub")},
    **{f"cmp_{name}": _Operation(("input", "comparison"), "n", getattr(torch, function)) for name, function in
       (("eq", "eq"), ("neq", "ne"), ("gt", "gt"), ("ge", "ge"), ("lt", "lt"), ("le", "le"))},
    "div": _Operation(("a", "b"), "f", torch.div),
    "add_square": _Operation(("a", "b"), "n", lambda a, b: a + b * b),
    "bias": _Operation(("input", "bias"), "n", torch.add), "scale": _Operation(("input", "scale"), "n", torch.mul),
    "max": _Operation(("input0", "input1"), "n", torch.maximum),
    "min": _Operation(("input0", "input1"), "n", torch.minimum),
    "mod": _Operation(("input0", "input1"), "n", torch.fmod), "pow": _Operation(("input0", "input1"), "f", torch.pow),
    "logical_not": _Operation(("input",), "b", torch.logical_not),
    "logical_and": _Operation(("a", "b"), "b", torch.logical_and),
    "logical_or": _Operation(("a", "b"), "b", torch.logical_or),
    "elu": _Operation(("input",), "f", F.elu), "gelu": _Operation(("input",), "f", F.gelu),
    "gelu_approx_tanh": _Operation(("input",), "f", partial(F.gelu, approximate="tanh")),
    "softplus": _Operation(("input",), "f", F.softplus), "swish": _Operation(("input",), "f", _swish, ("swish_beta",)),
    "relu": _Operation(("input",), "f", _relu, _CLIPS),
    "leaky_relu": _Operation(("input",), "f", _relu, _CLIPS[:1]),
    "relu_backward": _Operation(("loss", "input"), "f", _relu_backward, _CLIPS),
    "leaky_relu_backward": _Operation(("loss", "input"), "f", _relu_backward, _CLIPS[:1]),
    "swish_backward": _Operation(("loss", "input"), "f", _swish_backward, ("swish_beta",)),
    "sigmoid_backward": _Operation(("loss", "input"), "f", _sigmoid_backward),
    "tanh_backward": _Operation(("loss", "input"), "f", _tanh_backward),
    "elu_backward": _Operation(("loss", "input"), "f", lambda loss, x: torch.where(x > 0.0, loss, loss * torch.exp(x))),
    "softplus_backward": _Operation(("loss", "input"), "f", lambda loss, x: loss * torch.sigmoid(x)),
    "gelu_backward": _Operation(("loss", "input"), "f", _gelu_backward),
    "gelu_approx_tanh_backward": _Operation(("loss", "input"), "f", _gelu_approx_tanh_backward),
}
NAMES = (*_OPERATIONS, "binary_select", "gen_index", "identity", "tensor_scalar")


class Graph:
    """Plays cuDNN's graph. `at` are the batch entry, the head, the query and the key; `shape` is that of the scores, -1
    where sequences have lengths of their own."""

    def __init__(self, at: tuple[Any, ...], shape: Shape) -> None:
        self._at, self._shape = at, shape

    def tensor_scalar(self, value: Any, scalar_type: Any = None, name: str = "") -> GraphTensor:
        if not isinstance(value, (bool, int, float)):
            refuse("wrong-type", f"tensor_scalar is given {said(value)}", "it takes a number of Python",
                   "pass tensors in score_mod_tensors")
        return GraphTensor(self._number(value), (1, 1, 1, 1), name).set_data_type(scalar_type)

    def gen_index(self, input: Any, axis: int, compute_data_type: Any = None, name: str = "") -> GraphTensor:
        """The position along an axis."""
        given = self._given("gen_index", "input", input)
        if axis not in (0, 1, 2, 3):
            refuse("bad-argument", f"gen_index is asked for axis {said(axis)}",
                   "scores have four: 0 is the batch, 1 the head, 2 the query, 3 the key", "pass one of these")
        _kind_of(compute_data_type)
        alone = given._dim[axis] == 1 and self._shape[axis] != 1
        return GraphTensor(self._number(0) if alone else self._at[axis], given._dim, name)

    def identity(self, input: Any, compute_data_type: Any = None, name: str = "") -> GraphTensor:
        """The same."""
        given = self._given("identity", "input", input)
        _kind_of(compute_data_type)
        return GraphTensor(given.value, given._dim, name)

    def binary_select(self, input0: Any, input1: Any, mask: Any, compute_data_type: Any = None,
                      name: str = "") -> GraphTensor:
        """input0 where the mask holds, else input1."""
        pair = (("input0", input0), ("input1", input1))
        a, b = (self._given("binary_select", word, given) for word, given in pair)
        keep = self._given("binary_select", "mask", mask)
        _kind_of(compute_data_type)
        made = torch.where(_as(keep.value, "b"), *_alike("n", (a, b)))
        return GraphTensor(made, _broadcast(a, b, keep), name)

    def tensor(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a score_mod has no tensors but those that it is given."""
        refuse("not-captured", "a score_mod makes a tensor of the graph", "nothing would fill it",
               "pass it in score_mod_tensors, or a number by tensor_scalar")

    tensor_like = tensor

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        refuse("unknown-function", f"cuDNN's `{name}` is not known inside the kernel",
               "attune has the graph's pointwise operations", "write it with those that docs/torch.md lists")

    def _number(self, number: bool | int | float) -> Any:
        kind = "b" if isinstance(number, bool) else "i" if isinstance(number, int) else "f"
        first = self._at[0]
        if isinstance(first, Value):
            return literal(first.trace, kind, number)
        return torch.tensor(number, dtype=_TORCHS[kind])

    def _given(self, operation: str, name: str, given: Any) -> GraphTensor:
        if isinstance(given, GraphTensor):
            return given
        fix = ("pass it in score_mod_tensors, and write tensors[name]" if isinstance(given, Tensor) else
               "write graph.tensor_scalar(number, type)")
        refuse("wrong-type", f"`{name}` of {operation} is {said(given)}", "the graph computes with its own tensors",
               fix)


def _alike(takes: str, tensors: tuple[GraphTensor, ...]) -> list[Any]:
    if takes == "n":
        takes = "f" if any([_kind(t.value) == "f" for t in tensors]) else "i"
    return [_as(t.value, takes) for t in tensors]


def _broadcast(*tensors: GraphTensor) -> Shape:
    return tuple([next((n for n in extents if n != 1), 1) for extents in zip(*[t._dim for t in tensors])])


def _method(name: str, operation: _Operation) -> Callable[..., GraphTensor]:
    known = (*operation.inputs, *operation.options, "compute_data_type", "name")

    def method(self: Graph, *args: Any, **named: Any) -> GraphTensor:
        if len(args) > len(known) or any([word not in known[len(args):] for word in named]):
            word = next((w for w in named if w not in known[len(args):]), "")
            refuse("bad-argument", f"{name} is given `{word}`" if word else f"{name} is given {len(args)} arguments",
                   f"it takes {', '.join(known)}", "call it as cuDNN's")
        given = {**dict(zip(known, args)), **named}
        tensors = tuple([self._given(name, word, given.get(word)) for word in operation.inputs])
        options = {word: given[word] for word in operation.options if given.get(word) is not None}
        for word, option in options.items():
            if not isinstance(option, (int, float)):
                refuse("bad-argument", f"`{word}` of {name} is {said(option)}", "it is a number of Python",
                       "pass a number")
        _kind_of(given.get("compute_data_type"))
        made = operation.function(*_alike(operation.takes, tensors), **options)
        return GraphTensor(made, _broadcast(*tensors), given.get("name") or "")

    method.__name__, method.__doc__ = name, f"cuDNN's {name}."
    return method


for _name, _operation in _OPERATIONS.items():
    setattr(Graph, _name, _method(_name, _operation))


# ---- callbacks


def check_tensors_of(name: str, tensors: dict[str, Tensor], shape: Shape) -> None:
    """Refuses tensors that do not broadcast to the scores."""
    for key, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            refuse("tensor-array", f"`{name}[{key!r}]` is {said(tensor)}", "it is a tensor of torch",
                   "write torch.full((1, 1, 1, 1), number) for a number")
        if tensor.numel() == 1 and tensor.dim() <= 4:
            continue
        if tensor.dim() != 4 or any([n not in (1, most) for n, most in zip(tensor.shape, shape)]):
            whole = ", ".join([str(n) if n >= 0 else "1" for n in shape])
            refuse("tensor-shape", f"`{name}[{key!r}]` is {list(tensor.shape)}",
                   f"it must broadcast to the scores [{whole}]: batch, heads, queries, keys", "reshape it")


def result(word: str, made: Any) -> Any:
    """What a callback returns, as a Float."""
    if not isinstance(made, GraphTensor):
        refuse("wrong-result", f"the {word} returns {said(made)}", "it must return a tensor of the graph",
               "return what the last operation gives")
    return _as(made.value, "f")


def score_of(score_mod: Callback, tensors: dict[str, Tensor | float], shape: Shape) -> Callable[..., Any]:
    """A score_mod of cuDNN's graph as one of attune.torch. A number stands for a tensor that holds it."""
    def score(s: Value, *at: Value) -> Value:
        graph = Graph(at, shape)
        read = {name: GraphTensor(*_read(t, at), name) for name, t in tensors.items()}
        return result("score_mod", score_mod(graph, GraphTensor(s, shape), read))

    return score


def _read(tensor: Tensor | float, at: tuple[Value, ...]) -> tuple[Value, Shape]:
    trace = at[0].trace
    if not isinstance(tensor, Tensor):
        return literal(trace, "f", tensor), (1, 1, 1, 1)
    with torch._C.DisableTorchFunction():  # reading is no computation with tensors, after which a text would not hold
        whole = trace.value(tensor)
    extents = (1,) * (4 - tensor.dim()) + tuple(tensor.shape)
    own = [("0", TIGHT) if n == 1 else i.at(()) for n, i in zip(extents, at)]
    return scalar(trace, whole.kind, whole.at(tuple(own[4 - tensor.dim():]))), extents


# ---- the check of a score_mod_bprop

_SAMPLED = (2, 4, 12, 12)  # positions along each axis: a few thousand scores


def check_backward(score_mod: Callback, score_mod_bprop: Callback, tensors: dict[str, Tensor],
                   bprop_tensors: dict[str, Tensor], shape: Shape) -> None:
    """Compares a score_mod_bprop with the score_mod's derivative: in f64, on random scores at sampled positions."""
    where = [torch.linspace(0, n - 1, min(n, most)).long() if n > 0 else torch.arange(most if n < 0 else 0)
             for n, most in zip(shape, _SAMPLED)]
    extents = tuple([len(one) for one in where])
    if 0 in extents:
        return
    at = tuple([one.reshape([-1 if n == axis else 1 for n in range(4)]) for axis, one in enumerate(where)])
    random = torch.Generator().manual_seed(0)
    scores, grad = (3.0 * torch.randn(extents, dtype=torch.float64, generator=random) for _ in range(2))
    with torch.enable_grad():
        scores.requires_grad_()
        graph = Graph(at, extents)
        out = result("score_mod", score_mod(graph, GraphTensor(scores, extents), _sampled(tensors, where)))
        out = out.expand(extents)
        true = torch.autograd.grad(out, scores, grad, allow_unused=True)[0] if out.requires_grad else None
        made = score_mod_bprop(graph, GraphTensor(grad, extents), _sampled(bprop_tensors, where))
        told = result("score_mod_bprop", made).detach().expand(extents)
    true = torch.zeros_like(grad) if true is None else true
    scores = scores.detach()
    wrong = (~torch.isclose(told, true, rtol=1e-4, atol=1e-5, equal_nan=True)).nonzero()
    if not len(wrong):
        return
    one = tuple(wrong[0].tolist())
    place = ", ".join([f"{axis} {int(where[n][i])}" for n, (axis, i) in enumerate(zip(_AXES, one))])
    code = getattr(getattr(score_mod_bprop, "__func__", score_mod_bprop), "__code__", None)
    raise Error.at(Place(code, 0) if type(code) is type(_kind_of.__code__) else here(), "wrong-derivative",
                   f"the score_mod_bprop gives {float(told[one]):.6g} where the score_mod's derivative gives "
                   f"{float(true[one]):.6g}",
                   f"at {place}, where the score is {float(scores[one]):.6g} and dP {float(grad[one]):.6g}; "
                   f"{len(wrong)} of {grad.numel()} sampled scores differ",
                   "correct it, or leave it out: attune derives the score_mod itself")


def _sampled(tensors: dict[str, Tensor], where: list[Tensor]) -> dict[str, GraphTensor]:
    """The tensors at the sampled positions, in f64, on the host."""
    made = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        tensor = tensor.reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape))
        for axis, positions in enumerate(where):
            if tensor.shape[axis] != 1:
                tensor = tensor.index_select(axis, positions.to(tensor.device))
        tensor = tensor.cpu()
        made[name] = GraphTensor(_as(tensor, _kind(tensor)).to(_TORCHS[_kind(tensor)]), tuple(tensor.shape), name)
    return made
