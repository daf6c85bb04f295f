# python/attune/torch/_dynamo.py — patches by which Dynamo can trace the values of a mod
"""Dynamo runs mods on the same values as Python does, with the exceptions that this module fixes."""

from __future__ import annotations

import operator
from typing import Any

from attune.torch._value import Value


def ask_values() -> bool:
    """Lets values answer for themselves where Dynamo does not ask them.

    An integer that changes between calls is symbolic while Dynamo traces. Dynamo assumes that only numbers compare with
    it, and replaces `value == integer` by a constant False. Torch 2.11 knows neither `~value` nor `value @ value`, and
    `value @ tensor` becomes tensor @ value, where other operators become reflected ones. Called during tracing, before the mods run.
    """
    from torch._dynamo.variables.builtin import BuiltinVariable

    if hasattr(BuiltinVariable, "asks_values"):
        return True
    BuiltinVariable.asks_values = True  # type: ignore[attr-defined]
    _let_values_compare(BuiltinVariable)
    _let_values_compute(BuiltinVariable, "invert")
    _let_values_compute(BuiltinVariable, "matmul")
    _let_values_multiply(BuiltinVariable)
    BuiltinVariable.call_function_handler_cache.clear()
    return True


def _is_value(variable: Any) -> bool:
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable
    return isinstance(variable, UserDefinedObjectVariable) and issubclass(variable.python_type(), Value)


def _let_values_compare(builtin: Any) -> None:
    answers = getattr(builtin, "_comparison_with_symnode", None)
    if answers is None:
        return

    def asking(self: Any, tx: Any, left: Any, right: Any) -> Any:
        for value, other, dunder in ((left, right, _OPERATORS), (right, left, _MIRRORED)):
            if _is_value(value):
                return value.call_method(tx, dunder[self.fn.__name__], [other], {})
        return answers(self, tx, left, right)

    builtin._comparison_with_symnode = asking
    builtin._binop_handlers.cache_clear()


def _let_values_compute(builtin: Any, name: str) -> None:
    answers = getattr(builtin, f"call_{name}", None)

    def asking(self: Any, tx: Any, first: Any, *others: Any) -> Any:
        if _is_value(first):
            return first.call_method(tx, f"__{name}__", list(others), {})
        return None if answers is None else answers(self, tx, first, *others)

    setattr(builtin, f"call_{name}", asking)


def _let_values_multiply(builtin: Any) -> None:
    """The product of a value and a tensor, which reaches Dynamo's handler of tensors first."""
    answers = builtin._handle_insert_op_in_graph

    def asking(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn is operator.matmul and _is_value(args[0]):
            return args[0].call_method(tx, "__matmul__", [args[1]], {})
        return answers(self, tx, args, kwargs)

    builtin._handle_insert_op_in_graph = asking


_OPERATORS = {name: f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_MIRRORED = {"lt": "__gt__", "le": "__ge__", "gt": "__lt__", "ge": "__le__", "eq": "__eq__", "ne": "__ne__"}
ask_values._dynamo_marked_constant = True  # type: ignore[attr-defined]  # it runs; its result is a constant
