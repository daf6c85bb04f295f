# python/attune/_errors.py — Error, a mistake of the caller, and Bug, a mistake of attune, as in C++; words of messages
from __future__ import annotations

from attune._place import Place, Spot


def a_(word: str) -> str:
    return f"{'an' if word[:1] in 'AEIOUaeiou' else 'a'} {word}"


def said(thing: object) -> str:
    if isinstance(thing, int) and thing.bit_length() > 128:
        return f"an int of {thing.bit_length()} bits"
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return repr(thing)
    return a_(type(thing).__name__)


def dimensions(rank: int) -> str:
    return f"{rank} dimension{'' if rank == 1 else 's'}"


_MARGIN = " " * 7
_CODE_ENDS = 93  # the column where [code] ends, when the problem leaves room for it
_WIDEST = 100  # columns of the user's line; the rest is cut


def _marked(text: str, begin: int, end: int) -> str:
    """The line that holds `begin`, with carets under [begin, end); a long line is cut to the part around them."""
    start = text.rfind("\n", 0, begin) + 1
    stop = text.find("\n", begin) if "\n" in text[begin:] else len(text)
    line = "".join(c if c.isprintable() else " " for c in text[start:stop])
    begin, end = begin - start, min(end, stop + 1) - start
    cut = max(0, min(begin - _WIDEST // 2, len(line) - _WIDEST))
    if cut:
        line = "…" + line[cut + 1:]
    if len(line) > _WIDEST:
        line = line[: _WIDEST - 1] + "…"
    carets = f"\n{_MARGIN}{' ' * (begin - cut)}{'^' * max(1, min(end - cut, _WIDEST) - (begin - cut))}"
    return _MARGIN + line + (carets if begin < end else "")


def _section(title: str, text: str) -> str:
    if not text:
        return ""
    first, *more = text.split("\n")
    return f"\n  {title}  {first}" + "".join(f"\n{_MARGIN}{line}" for line in more)


class Error(Exception):
    """A mistake the caller can fix.

    `code` is stable: an anchor of docs/errors.md. `problem` says what is wrong, `why` shows the facts that collide,
    `fix` what to do. `file` and `line` are the caller's own; `text[begin:end]` is the wrong part of that line, or of
    an expression.

    >>> import attune
    >>> try:
    ...     attune.Attention(mask="kv <= window")
    ... except attune.Error as error:
    ...     print(error.code)
    unknown-name
    """

    def __init__(self, code: str, problem: str, why: str, fix: str, *, file: str = "", line: int = 0, text: str = "",
                 begin: int = 0, end: int = 0) -> None:
        super().__init__(code, problem, why, fix)
        self.code, self.problem, self.why, self.fix = code, problem, why, fix
        self.file, self.line, self.text, self.begin, self.end = file, line, text, begin, end

    @classmethod
    def at(cls, place: Place | Spot | None, code: str, problem: str, why: str, fix: str) -> Error:
        """An Error that points into the user's source."""
        spot = place.spot() if isinstance(place, Place) else place
        return cls(code, problem, why, fix, **spot._asdict()) if spot else cls(code, problem, why, fix)

    def moved(self, place: Place | Spot | None) -> Error:
        """The same Error, pointing elsewhere."""
        return Error.at(place, self.code, self.problem, self.why, self.fix) if place else self

    def __str__(self) -> str:
        first = f"attune: {self.problem}"
        gap = max(2, _CODE_ENDS - len(first) - len(self.code) - 2)
        where = f"{self.file}:{self.line}" if self.line else self.file
        page = f"{first}{' ' * gap}[{self.code}]"
        if self.text:
            marked = _marked(self.text, self.begin, self.end)
            page += f"\n   at  {where}\n{marked}" if where else f"\n   at  {marked[len(_MARGIN):]}"
        elif where:
            page += f"\n   at  {where}"
        return page + _section("why", self.why) + _section("fix", self.fix)

    def __reduce__(self) -> tuple[object, ...]:
        where = (self.file, self.line, self.text, self.begin, self.end)
        return _remake, (self.code, self.problem, self.why, self.fix, where)


def _remake(code: str, problem: str, why: str, fix: str, where: tuple[str, int, str, int, int]) -> Error:
    return Error.at(Spot(*where), code, problem, why, fix)


class Bug(Exception):
    """A mistake of attune's. Please report it with its text."""


def bad_character(text: str) -> Error:
    """The Error of a text that the C ABI cannot take: one with a 0, or with half of a surrogate pair (not UTF-8)."""
    at = next(i for i, c in enumerate(text) if c == "\0" or "\ud800" <= c <= "\udfff")
    return Error("bad-character", f"unexpected character U+{ord(text[at]):04X}", "", "leave it out", text=text,
                 begin=at, end=at + 1)


def raised(bug: bool, line: int, begin: int, end: int, texts: dict[str, str]) -> Exception:
    """An error of the C ABI as an exception. `begin` and `end` count bytes."""
    if bug:
        return Bug(texts["message"])
    encoded = texts["text"].encode()
    past = 1 if end > len(encoded) else 0  # something is missing at the end
    first, last = (len(encoded[:at].decode(errors="replace")) for at in (begin, end))
    return Error(texts["code"], texts["problem"], texts["why"], texts["fix"], file=texts["name"], line=line,
                 text=texts["text"], begin=first, end=last + past)
