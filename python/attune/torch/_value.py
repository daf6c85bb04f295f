# python/attune/torch/_value.py — the values that a score_mod sees instead of tensors; they write text of the language
"""Values that exist only inside the kernel, and behave like torch's tensors while a score_mod or a mask_mod runs.

Torch dispatches its functions to them (`__torch_function__`). Each function immediately writes a piece of text. The
same code runs eagerly and inlined by Dynamo, so it uses nothing that Dynamo cannot trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from attune._errors import Error, a_
from attune._place import Place, here, not_the_user
from attune._text import COMPARISONS, OPS, PREFIX
from attune._trace import free_name

Piece: TypeAlias = "tuple[str, int]"  # text, and how tightly it binds
Index: TypeAlias = "tuple[Piece, ...]"

not_the_user(torch.__file__)

TIGHT = PREFIX + 2  # the binding of a piece that never needs brackets
_LONGEST = 100  # characters of a piece; longer ones get a name, so that text grows with the number of operations
MOST_TERMS = 1024  # of a sum
_LARGEST = 3.4028235677973366e38  # beyond it a Float is infinite
_OF_OTHERS = ("seed", "s_aux")  # names reserved for prob mods and sinks
_DTYPES = {"f": torch.float32, "i": torch.int32, "b": torch.bool}


def refuse(code: str, problem: str, why: str, fix: str) -> NoReturn:
    """Raises an Error at the user's own line. Dynamo traces only plain exceptions, and shows the line itself."""
    if torch.compiler.is_compiling():
        raise TypeError(f"attune: {problem} [{code}]; why: {why}; fix: {fix}")
    raise Error.at(here(), code, problem, why, fix)


def refuse_random(what: str, where: Place | None = None) -> NoReturn:
    """Refuses a random number in a mod, at the user's line or at `where`."""
    problem, why, fix = (
        f"a mod draws random numbers: {what}", "a mod runs once for all pairs, which would all get the same number",
        "for dropout write scaled_dot_product_attention(q, k, v, dropout_p=p), or random(seed) in a mod of "
        "attune.Attention; else fill a tensor before and read it: noise[q_idx, kv_idx]")
    if where is None:
        refuse("random-number", problem, why, fix)
    raise Error.at(where, "random-number", problem, why, fix)


def around(piece: Piece, bind: int) -> str:
    """The piece's text, in brackets if its surroundings bind more tightly (`bind`)."""
    return f"({piece[0]})" if piece[1] < bind else piece[0]


def spelled(number: Any) -> Piece:
    if isinstance(number, bool):
        return ("true" if number else "false"), TIGHT
    if isinstance(number, int):
        if not -2**31 <= number < 2**31:
            refuse("bad-number", f"the literal {number} does not fit an Int",
                   "an Int holds -2147483648 to 2147483647", "use a float, or a number in range")
        return f"{number}", (TIGHT if number >= 0 else PREFIX)
    number = float(number)  # Dynamo turns a symbolic number into a guarded constant here
    if number != number:
        return "nan", TIGHT
    if number >= _LARGEST:
        return "inf", TIGHT
    if number <= -_LARGEST:
        return "-inf", PREFIX
    return f"{number!r}f", (TIGHT if number >= 0 else PREFIX)


class Symbolic(int):
    """An integer of a graph that later calls may have another of: an expression of sizes. It becomes an argument of the
    kernel where that can be. Where the kernel needs a constant, as a divisor is, the graph is for its number in this
    call: another number compiles another graph. Arithmetic of Python is refused."""

    expression: Any

    @staticmethod
    def of(expression: Any, natural: bool) -> Symbolic:
        """Stands for the expression; natural: it is never negative."""
        made = Symbolic(_LONG if natural else -_LONG)
        made.expression = expression
        return made

    def _number(self) -> int:
        import sympy
        context: Any = torch._guards.TracingContext.get()
        shapes = context.fake_mode.shape_env
        number = int(shapes.size_hint(self.expression))
        shapes.evaluate_expr(sympy.Eq(self.expression, number))  # a guard
        return number

    def __float__(self) -> float: return float(self._number())
    def __str__(self) -> str: return str(self._number())
    def __format__(self, how: str) -> str: return format(self._number(), how)

    def _fixed(self, *_: Any) -> NoReturn:
        refuse("python-number", f"Python asks for the number of {self.expression}", "it is different in the next call",
               "compile with dynamic=False")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = __mod__ = _fixed
    __rmod__ = __truediv__ = __rtruediv__ = __neg__ = _fixed
    __int__ = __index__ = _number
    __repr__ = __str__


_LONG = 1 << 30  # longer than any size that a mod compares with


class Trace:
    """Collects, while a mod runs, the tensors and integers that it reads, and the named parts of its text."""

    def __init__(self, device: torch.device, names: dict[int, str]) -> None:
        self.device = device
        self.names = names  # of tensors that the user's functions refer to, by id
        self.captures: list[Tensor] = []
        self.called: list[str] = []  # the captures' names
        self.ints: list[int] = []  # parameters: n0, n1, …
        self.symbolic = torch.compiler.is_compiling()  # true if any integer may be different in the next call
        self.lasting = True  # true if running the functions again on the same tensors would write the same text
        self.typed = False  # true if torch's types decide the result: mods that write the same text may differ in torch
        self.constants: list[tuple[Tensor, float]] = []  # tensors of one known number, made while tracing
        self.written: list[tuple[str, Place | None]] = []  # which line wrote which piece
        self._lets: list[tuple[str, str]] = []  # names and texts of the current scope
        self._count = 0

    def capture(self, tensor: Tensor) -> str:
        if not torch.compiler.is_compiling() and tensor.is_neg():  # its memory has the opposite sign
            tensor = tensor.resolve_neg()
            self.lasting = False
        for known, name in zip(self.captures, self.called):
            if known is tensor:
                return name
        name = f"t{len(self.captures)}"
        if self.names and id(tensor) in self.names:
            taken = {*self.called, *_OF_OTHERS}
            name = free_name(self.names[id(tensor)], taken)
            if name[1:].isdigit():  # n0, x1 and i1 are ours
                name = free_name(f"{name[0]}_{name[1:]}", taken)
        self.captures.append(tensor)
        self.called.append(name)
        return name

    def param(self, number: int) -> Value:
        """An integer as an argument of the kernel, so that a new integer needs no new kernel."""
        self.ints.append(number)
        name = f"n{len(self.ints) - 1}"
        return scalar(self, "i", (name, TIGHT), natural=bool(number >= 0))

    def make(self, op: str, *pieces: Piece) -> Piece:
        bind = OPS[op][0]
        if len(pieces) == 1 and not op.isalnum():
            return self.named(op + around(pieces[0], PREFIX + 1), PREFIX)
        if bind == 0:
            return self.named(f"{op}({', '.join([p[0] for p in pieces])})", TIGHT)
        left = bind + 1 if bind in COMPARISONS else bind
        return self.named(f"{around(pieces[0], left)} {op} {around(pieces[1], bind + 1)}", bind)

    def named(self, text: str, bind: int) -> Piece:
        """The piece, or a name for it if it is long."""
        if not torch.compiler.is_compiling():
            self.written.append((text, here()))
        if len(text) <= _LONGEST:
            return text, bind
        name = self._fresh("x")
        self._lets.append((name, text))
        return name, TIGHT

    def sum(self, count: int, body: Callable[[Piece], Piece]) -> Piece:
        """body(0) + … + body(count - 1)."""
        if count > MOST_TERMS:
            refuse("bad-sum", f"a sum over {count} terms", f"a sum has at most {MOST_TERMS} terms",
                   "sum fewer terms, or sum the tensor before")
        outer, self._lets = self._lets, []
        variable = self._fresh("i")
        term = body((variable, TIGHT))[0]
        text = _with_lets(self._lets, term)
        self._lets = outer
        return self.named(f"sum({variable}, {count}, {text})", TIGHT)

    def whole(self, value: Value) -> str:
        """The text of a mod's result; the next mod begins anew."""
        text = _with_lets(self._lets, value.at(())[0])
        self._lets = []
        return text

    def _fresh(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def value(self, thing: Any) -> Value:
        """A value, or a number or a captured tensor as one."""
        if isinstance(thing, Value):
            return thing
        if isinstance(thing, Tensor):
            return self._read(thing)
        if isinstance(thing, bool):
            return literal(self, "b", True if thing else False)  # no longer symbolic to Dynamo
        if isinstance(thing, (int, torch.SymInt)):
            return literal(self, "i", thing)
        if isinstance(thing, (float, torch.SymFloat)):
            self.typed = True
            return literal(self, "f", thing)
        array = hasattr(thing, "__array_interface__")
        refuse("wrong-type", f"{a_(type(thing).__name__)} is used where a number is needed",
               "expressions combine values of the kernel, tensors and numbers",
               "make it a tensor before: torch.as_tensor(x)" if array else "pass a number")

    def _read(self, tensor: Tensor) -> Value:
        for known, number in self.constants:
            if known is tensor:
                return self.value(number)
        kind = "f" if tensor.is_floating_point() else "b" if tensor.dtype == torch.bool else "i"
        if tensor.is_complex() or tensor.dim() > 4:
            holds = f"holds {tensor.dtype}" if tensor.is_complex() else f"has {tensor.dim()} dimensions"
            refuse("capture-type", f"a captured tensor {holds}",
                   "expressions read floats, integers and bools in at most four dimensions",
                   "convert or reshape it before")
        name = self.capture(tensor)
        return Value(self, kind, tuple(tensor.shape),
                     lambda index: (f"{name}[{', '.join([p[0] for p in index])}]", TIGHT))


def _with_lets(lets: list[tuple[str, str]], text: str) -> str:
    """The text, preceded by the lets that it needs."""
    if lets and lets[-1][0] == text:
        *lets, (_, text) = lets
    for name, part in reversed(lets):
        if text.endswith(name) or any([f"{name}{after}" in text for after in " ),];"]):
            text = f"let {name} = {part}; {text}"
    return text


class Value:
    """A number, a condition, or an array of them. `at(index)` is the piece of one element.

    Its operators and methods are those of torch that attune knows: attune/torch/_functions.py gives them.
    """

    def __init__(self, trace: Trace, kind: str, shape: tuple[Any, ...], at: Callable[[Index], Piece],
                 natural: bool = False, number: Any = None) -> None:
        self.trace, self.kind, self.shape, self.at = trace, kind, shape, at
        self.natural = natural  # true if it is never negative
        self.number = number  # of a literal

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it computes in: f32, i32 or bool."""
        return _DTYPES[self.kind]

    @property
    def device(self) -> torch.device:
        """The device of q."""
        return self.trace.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def requires_grad(self) -> bool:
        """False: attune computes the gradients."""
        return False

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one extent of it."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def __repr__(self) -> str:
        word = {"f": "Float", "i": "Int", "b": "Bool"}[self.kind]
        return f"<{word} of shape {list(self.shape)}>" if self.shape else f"<{word} {self.at(())[0]}>"

    def __len__(self) -> int:
        if not self.shape:
            _no_number("len(x)", "it is one number for each pair of positions")
        return self.shape[0]

    def __bool__(self) -> bool:
        refuse("python-condition", "a value of the kernel has no truth value in Python",
               "`if`, `and`, `or`, `not`, `min`, `max` and chains of comparisons ask for one; inside the kernel it "
               "differs for each pair of positions",
               "write torch.where(condition, a, b) to choose, (a) & (b), (a) | (b), ~a to join")

    def __int__(self) -> int: _no_number("int(x)", "write x.to(torch.int)")
    def __float__(self) -> float: _no_number("float(x)", "use torch's functions, e.g. torch.exp(x) for math.exp(x)")
    def item(self) -> NoReturn: _no_number("x.item()", "leave it out: numbers and values mix")
    def tolist(self) -> NoReturn: _no_number("x.tolist()", "leave it out: numbers and values mix")
    def __index__(self) -> int: _no_number("an index of a list, or a range", "index a tensor: torch.tensor(list)[i]")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:  # NumPy converts an unknown index to an array
        refuse("not-captured", "an array of NumPy is read at a value of the kernel", "mods read torch's tensors",
               "make it a tensor before: torch.as_tensor(x)")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        if name.endswith("_"):
            refuse("unknown-member", f"a value of the kernel has no `{name}`",
                   "values do not change: a method that writes in place would",
                   f"write x = x.{name[:-1]}(…)")
        refuse("unknown-member", f"a value of the kernel has no `{name}`",
               "it is one number for each pair of positions", "docs/torch.md lists the methods")


def _no_number(asked: str, fix: str) -> NoReturn:
    refuse("python-number", f"Python asks a value of the kernel for its number: {asked}",
           "it is a different number for each pair of positions, known only inside the kernel", fix)


def scalar(trace: Trace, kind: str, piece: Piece, natural: bool = False) -> Value:
    return Value(trace, kind, (), lambda _: piece, natural)


def literal(trace: Trace, kind: str, number: Any) -> Value:
    """A Python number, written as text when it is read; a number that becomes a parameter is never written."""
    return Value(trace, kind, (), lambda _: spelled(number), False, number)


def each(trace: Trace, kind: str, build: Callable[..., Piece], *values: Value, natural: bool = False) -> Value:
    """build(piece, …) for each element of values whose shapes broadcast."""
    shape: tuple[Any, ...] = ()
    for value in values:
        shape = _broadcast(shape, value.shape)

    def at(index: Index) -> Piece:
        return build(*[v.at(_under(v.shape, index)) for v in values])

    if shape == ():
        return scalar(trace, kind, at(()), natural)
    return Value(trace, kind, shape, at, natural)


def _broadcast(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    if a == b or not b:
        return a
    if not a:
        return b
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    for x, y in zip(a, b):
        if x != y and x != 1 and y != 1:
            refuse("wrong-rank", f"rows of shapes {list(a)} and {list(b)} do not broadcast",
                   "shapes broadcast as torch's do", "index them to one shape")
    return tuple([y if x == 1 else x for x, y in zip(a, b)])


def _under(shape: tuple[Any, ...], index: Index) -> Index:
    """The index of an element of a broadcast value."""
    if not shape:
        return ()
    own = index[len(index) - len(shape):]
    return tuple([("0", TIGHT) if n == 1 else i for n, i in zip(shape, own)])


def as_kind(value: Value, kind: str) -> Value:
    """The value as a Float 'f', an Int 'i' or a Bool 'b'."""
    trace = value.trace
    if value.kind == kind:
        return value
    if kind == "f":
        trace.typed = True
    if value.number is not None and kind == "f" and value.kind == "i" and value.number not in (0, 1, -1) and (
            trace.symbolic or isinstance(value.number, Symbolic)):
        value = trace.param(value.number)  # it may be a length: symbolic to Dynamo, different in the next call
    if value.number is not None:
        if kind == "f":
            return literal(trace, "f", float(value.number))
        return literal(trace, kind, int(value.number) if kind == "i" else bool(value.number))
    if kind == "b":
        zero = "0.0f" if value.kind == "f" else "0"
        return each(trace, "b", lambda p: trace.make("!=", p, (zero, TIGHT)), value)
    return each(trace, kind, lambda p: trace.make("f32" if kind == "f" else "i32", p), value,
                natural=value.kind == "b" or (value.natural and kind == "i"))


def is_natural(value: Value) -> bool:
    """True if it is known not to be negative."""
    return value.natural if value.number is None else bool(value.number >= 0)
