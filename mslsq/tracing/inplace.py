"""The advice a residual written in place gets: its own lines, and next to each the out-of-place form."""

import ast
import linecache
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from mslsq.private import DISPATCHING_FILES, DispatchMode, writes
from mslsq.tracing.reading.origins import PACKAGES

LIBRARIES = (f"{Path(str(torch.__file__)).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}")


class InPlaceResidualWarning(UserWarning):
    """A residual writes into tensors. Its answers are right here; out-of-place code is shorter and works everywhere."""


@dataclass(frozen=True)
class SourceLine:
    """A place in the user's code: a file and a line number, from 1."""

    file: str
    line: int

    @property
    def text(self) -> str:
        """The line as it is written, without indentation; empty where the source is not at hand."""
        return linecache.getline(self.file, self.line).strip()

    def statement(self) -> ast.stmt | None:
        """The smallest statement that covers the line."""
        try:
            tree = ast.parse("".join(linecache.getlines(self.file)))
        except SyntaxError:
            return None
        covering = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt) and node.lineno <= self.line <= (node.end_lineno or node.lineno)
        ]
        return min(covering, key=lambda node: (node.end_lineno or node.lineno) - node.lineno, default=None)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def is_users(file: str) -> bool:
    """Does code of this file belong to the user, rather than to PyTorch, to mslsq or to generated code?"""
    return not file.startswith((*LIBRARIES, "<eval_with_key>", "<frozen", "<@"))


def is_installed(file: str) -> bool:
    """Does code of this file belong to an installed package, which the user will not rewrite?"""
    return any(folder in file for folder in PACKAGES)


class MutationRecorder(DispatchMode):
    """Records the user's lines that write into a tensor, while a residual runs eagerly on one example."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[SourceLine, None] = {}
        self.mutates = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if writes(func):
            self.mutates = True
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename.endswith(DISPATCHING_FILES):
                frame = frame.f_back
            # Writes inside torch's own modules (running statistics) are not the user's to change, nor a package's.
            if frame is not None and is_users(file := frame.f_code.co_filename) and not is_installed(file):
                self.lines[SourceLine(frame.f_code.co_filename, frame.f_lineno)] = None
        return func(*args, **(kwargs or {}))


def out_of_place(statement: ast.stmt | None) -> str | None:
    """The idiomatic form of one statement that writes in place, or None where it does not look like one."""
    if isinstance(statement, ast.Assign):
        targets = [node for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Subscript)]
        targets = [node for node in targets if isinstance(node.ctx, ast.Store)]
        if targets:
            kind = "cat" if any(isinstance(node, ast.Slice) for node in ast.walk(targets[0].slice)) else "stack"
            value = statement.value
            parts = ast.unparse(value)[1:-1] if isinstance(value, ast.Tuple) else ast.unparse(value)
            return (
                f"make a list of the parts and join it once: {ast.unparse(targets[0].value)} = "
                f"torch.{kind}([{parts}, ...], dim=-1); for sums of products over all pairs, torch.einsum"
            )
    if isinstance(statement, ast.AugAssign):
        target, value = ast.unparse(statement.target), ast.unparse(statement.value)
        operator = ast.unparse(ast.BinOp(ast.Name("a"), statement.op, ast.Name("b")))[2:-2]
        if isinstance(statement.target, ast.Subscript):
            instead = "torch.einsum, torch.stack(parts).sum(0) or index_add"
            return f"add up out of place: {instead}, instead of {target} {operator}= {value}"
        return f"{target} = {target} {operator} {value}"
    for node in ast.walk(statement) if statement is not None else ():
        if not isinstance(node, ast.Call):
            continue
        if any(keyword.arg == "out" for keyword in node.keywords):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "out"]
            return f"assign the result instead of out=: {ast.unparse(node)}"
        if isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_") and not node.func.attr.endswith("__"):
            return instead_of_method(node, node.func)
    return None


def instead_of_method(call: ast.Call, method: ast.Attribute) -> str:
    """`x.add_(y)` has a twin `x.add(y)`; `copy_`, `fill_` and `zero_` have none."""
    name, target = method.attr, ast.unparse(method.value)
    arguments = ", ".join(ast.unparse(argument) for argument in [*call.args, *(k.value for k in call.keywords)])
    if "diagonal" in target:
        return f"torch.diag({arguments or '...'}) or torch.diag_embed makes a matrix of its diagonal"
    if name == "copy_":
        return f"use the value itself ({arguments}), or torch.cat / torch.stack of it with the other parts"
    if name in ("fill_", "zero_"):
        return f"torch.full_like({target}, {arguments or '0.0'}), or torch.where(where, {arguments or '0.0'}, {target})"
    method = ast.Attribute(method.value, name[:-1])
    return f"{target} = {ast.unparse(ast.Call(method, call.args, call.keywords))}"


def inplace_advice(lines: tuple[SourceLine, ...], name: str) -> str:
    """The text of the one warning for a residual that writes in place, or "" where no line of the user's does.

    `lines` are the lines seen writing (`Captured.in_place`), `name` the cost's. Each line is shown as `file:line`, its
    source, and after an arrow the form with `torch.cat`, `torch.stack`, `torch.einsum` or `torch.where`.
    """
    shown = []
    for line in lines:
        statement = line.statement()
        advice = out_of_place(statement)
        if advice is not None:
            shown.append(f"  {line}\n    {line.text}\n    -> {advice}")
        elif statement is None:  # no source to read: code from a string, a notebook that is gone
            shown.append(f"  {line}\n    -> torch.cat, torch.stack or torch.where of the parts")
    if not shown:
        return ""
    return (
        f"The residual of cost '{name}' writes into tensors in place. It was rewritten out of place, so values and "
        "Jacobians are right; written as below it is shorter and works under torch.func.vmap by itself.\n"
        + "\n".join(shown)
    )
