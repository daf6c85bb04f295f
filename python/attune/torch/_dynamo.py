# python/attune/torch/_dynamo.py — a patch by which Dynamo can trace the values of a mod
"""Dynamo runs mods on the same values as Python does, with one exception that this module fixes."""

from __future__ import annotations

from typing import Any

from attune.torch._value import Value


def compare_integers() -> bool:
    """Lets values be compared with integers that change between calls.

    Such an integer is symbolic while Dynamo traces. Dynamo assumes that only numbers compare with it, and replaces
    `value == integer` by a constant False instead of asking the value's own operator. Called during tracing, before
    the mods run; does nothing if Dynamo asks the operator.
    """
    from torch._dynamo.variables.builtin import BuiltinVariable
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    answers = getattr(BuiltinVariable, "_comparison_with_symnode", None)
    if answers is None or hasattr(answers, "asks_values"):
        return True

    def asking(self: Any, tx: Any, left: Any, right: Any) -> Any:
        for value, other, dunder in ((left, right, _OPERATORS), (right, left, _MIRRORED)):
            if isinstance(value, UserDefinedObjectVariable) and issubclass(value.python_type(), Value):
                return value.call_method(tx, dunder[self.fn.__name__], [other], {})
        return answers(self, tx, left, right)

    asking.asks_values = True  # type: ignore[attr-defined]
    BuiltinVariable._comparison_with_symnode = asking  # type: ignore[method-assign]
    BuiltinVariable._binop_handlers.cache_clear()
    return True


_OPERATORS = {name: f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_MIRRORED = {"lt": "__gt__", "le": "__ge__", "gt": "__lt__", "ge": "__le__", "eq": "__eq__", "ne": "__ne__"}
compare_integers._dynamo_marked_constant = True  # type: ignore[attr-defined]  # it runs; its result is a constant
