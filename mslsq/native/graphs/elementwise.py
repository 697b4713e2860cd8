"""Elementwise operations of PyTorch as expressions of C++, the operands as {0}, {1}, {2}."""

from typing import Any

import torch
from torch import fx

from mslsq.native.graphs.arrays import NoLoopError, arguments_of, literal, options_of
from mslsq.private import operator_name, overload_name

FUNCTIONS = ("sin", "cos", "tan", "asin", "acos", "atan", "exp", "log", "log1p", "expm1", "tanh")
UNARY = {
    "neg": "-{0}",
    "abs": "size_of({0})",
    "sqrt": "root({0})",
    "rsqrt": "1 / root({0})",
    "reciprocal": "1 / {0}",
    "square": "{0} * {0}",
    **{name: f"(real){name}({{0}})" for name in FUNCTIONS},
    "clone": "{0}",
    "_to_copy": "{0}",
    "lift_fresh_copy": "{0}",
    "bitwise_not": "!{0}",
    "logical_not": "!{0}",
    "isnan": "{0} != {0}",
}
BINARY = {
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "maximum": "largest({0}, {1})",
    "minimum": "least({0}, {1})",
    "atan2": "(real)atan2({0}, {1})",
    "remainder": "remainder_of({0}, {1})",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
POWERS = {2: "{0} * {0}", 3: "{0} * {0} * {0}", 0.5: "root({0})", -1: "1 / {0}", -0.5: "1 / root({0})"}
OF_BOOLEANS = ("bitwise_not", "logical_not")
COPIES = ("clone", "_to_copy", "lift_fresh_copy")
HARMLESS = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")
"""Options that the type of the result says."""


def expression(node: fx.Node, type_: str, dtype: torch.dtype) -> tuple[list[Any], str]:
    """Operands and text of an elementwise operation, whose result is of this type.

    Raises:
        NoLoopError: there is none.
    """
    name, text = operator_name(node.target), None
    arguments = arguments_of(node)
    options = options_of(node)
    alpha = options.pop("alpha", 1)
    for harmless in HARMLESS:
        options.pop(harmless, None)
    if name in UNARY and not options and len(arguments) == 1:
        text = UNARY[name]
        if name in OF_BOOLEANS and dtype != torch.bool:
            text = None
        elif name not in (*COPIES, "isnan", *OF_BOOLEANS):
            text = text.replace("{0}", f"({type_}){{0}}")
    elif name in BINARY and not options:
        text = BINARY[name]
        if name in ("mul", "div", "atan2", "remainder", "maximum", "minimum") or dtype != torch.bool:
            text = text.replace("{0}", f"({type_}){{0}}").replace("{1}", f"({type_}){{1}}")
        if name == "remainder" and not (type_ == "long" and _is_divisor(arguments[1])):
            text = None
        if name in ("maximum", "minimum") and type_ in ("bool", "int"):
            text = None
    elif name in ("add", "sub", "rsub") and not options:
        sign = "+" if name == "add" else "-"
        first, second = (1, 0) if name == "rsub" else (0, 1)
        scaled = "" if alpha == 1 else f"{literal(alpha)} * "
        text = f"({type_}){{{first}}} {sign} {scaled}({type_}){{{second}}}"
    elif name in COMPARISONS and not options:
        text = f"{{0}} {COMPARISONS[name]} {{1}}"
    elif name == "where" and len(arguments) == 3:
        text = f"{{0}} ? ({type_}){{1}} : ({type_}){{2}}"
    elif name == "masked_fill":
        text = f"{{1}} ? ({type_}){{2}} : {{0}}"
    elif name == "addcmul":
        text = f"{{0}} + {literal(options.pop('value', 1))} * {{1}} * {{2}}"
    elif name in ("clamp", "clamp_min", "clamp_max") and overload_name(node.target) != "Tensor":
        least = options.pop("min", arguments[1] if len(arguments) > 1 and name != "clamp_max" else None)
        most = options.pop("max", arguments[-1] if len(arguments) > 2 or name == "clamp_max" else None)
        arguments, text = arguments[:1], "{0}"
        for bound, sign in ((least, "<"), (most, ">")):
            if bound is not None:
                arguments.append(bound)
                text = f"({{0}} {sign} {{{len(arguments) - 1}}} ? ({type_}){{{len(arguments) - 1}}} : {text})"
    elif name == "pow" and overload_name(node.target) == "Tensor_Scalar":
        exponent = arguments.pop()
        text = POWERS.get(exponent, f"(real)pow({{0}}, {literal(exponent)})")
    elif name == "nan_to_num" and type_ == "real":
        info = torch.finfo(dtype)
        given = [*arguments[1:], *[None] * (4 - len(arguments))]
        given = [options.pop(key, x) for key, x in zip(("nan", "posinf", "neginf"), given, strict=True)]
        filled = [d if x is None else x for x, d in zip(given, (0.0, info.max, info.min), strict=True)]
        arguments, text = arguments[:1], f"number({{0}}, {', '.join(literal(x) for x in filled)})"
    if text is None:
        raise NoLoopError(f"{node.target}")
    return arguments, text


def _is_divisor(argument: Any) -> bool:
    """Is it a number that nothing fails to be divided by?"""
    return isinstance(argument, int) and argument != 0
