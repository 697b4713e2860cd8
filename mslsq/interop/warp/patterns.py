"""Finds, in the source of a kernel, what Warp's adjoints are silently wrong for (measured with Warp 1.19).

- An array element that is written twice, or in terms of what it held (`y[i] = y[i] * 2`, `y[i] *= x`): the adjoint
  of the first write gets the whole cotangent. `y[i] += ...` is right.
- A component of a local vector, or of a function's argument, that already had a value (`v = wp.vec3(a, b, c); v.x =
  ...`, `v.x += ...`, `v[0] *= x`): its old value keeps the cotangent. A vector made empty (`wp.vec3()`) and filled once
  is right, and so is `v[0] += a`.
- A variable that a loop of unknown length changes in another way than by adding (`a = a * x`): the reverse loop sees
  its last value only.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mslsq.interop.warp.library import WarpError, library
from mslsq.interop.warp.signature import Signature

COMPONENTS = {"x": 0, "y": 1, "z": 2, "w": 3}
Branch = tuple[tuple[int, int], ...]
"""The `if`s around a statement: which, and which side of it."""


@dataclass(frozen=True)
class Finding:
    line: int
    what: str
    instead: str


def refuse_wrong_patterns(signature: Signature) -> None:
    """
    Raises:
        WarpError: the kernel, or a function that it calls, has something whose adjoint would be wrong.
    """
    for adj in _sources(signature.kernel):
        function = _function(adj)
        if function is None:
            continue
        for finding in Reading(function, _arrays(function), _most_unrolled(signature.kernel)).findings():
            text = _line(adj, finding.line)
            raise WarpError(
                f"{signature.name}: {finding.what} (line {finding.line} of {function.name}: {text!r}); Warp's adjoint "
                f"of that is silently wrong. Write instead: {finding.instead}. Or give adjoint=, a kernel of your own."
            )


def _sources(kernel: Any) -> Iterator[Any]:
    """The kernel and, once each, the functions of Warp that it calls."""
    warp = library()
    seen: set[int] = set()
    waiting = [(kernel.adj, kernel.func)]
    while waiting:
        adj, function = waiting.pop()
        if id(adj) in seen:
            continue
        seen.add(id(adj))
        yield adj
        known = {**getattr(function, "__globals__", {}), **_closure(function)}
        for node in ast.walk(adj.tree):
            if isinstance(node, ast.Call):
                called = _resolved(node.func, known)
                is_differentiated = getattr(called, "custom_grad_func", None) is None
                if isinstance(called, warp.Function) and getattr(called, "adj", None) is not None and is_differentiated:
                    waiting.append((called.adj, called.func))


def _closure(function: Any) -> dict[str, Any]:
    try:
        return dict(inspect.getclosurevars(function).nonlocals)
    except (TypeError, ValueError):
        return {}


def _resolved(node: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_resolved(node.value, known), node.attr, None)
    return None


def _function(adj: Any) -> ast.FunctionDef | None:
    return next((node for node in ast.walk(adj.tree) if isinstance(node, ast.FunctionDef)), None)


def _arrays(function: ast.FunctionDef) -> set[str]:
    """The arguments that are annotated as arrays."""
    return {one.arg for one in function.args.args if one.annotation and "array" in ast.unparse(one.annotation)}


def _most_unrolled(kernel: Any) -> int:
    return int(kernel.options.get("max_unroll", kernel.module.options.get("max_unroll", 16)))


def _line(adj: Any, number: int) -> str:
    lines = str(adj.source).splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


@dataclass
class Written:
    """The writes to one place so far."""

    branches: list[Branch] = field(default_factory=list)

    def again(self, branch: Branch) -> bool:
        """Is it written on a way on which it was written before? The write is remembered."""
        met = any(not _exclude(branch, other) for other in self.branches)
        self.branches.append(branch)
        return met


def _exclude(one: Branch, other: Branch) -> bool:
    """Do two statements stand on different sides of an `if`?"""
    sides = dict(one)
    return any(number in sides and sides[number] != side for number, side in other)


class Reading:
    """Goes through one function, statement by statement."""

    def __init__(self, function: ast.FunctionDef, arrays: set[str], most_unrolled: int) -> None:
        self._function, self._arrays, self._most_unrolled = function, arrays, most_unrolled
        self._places: dict[str, Written] = {}
        given = [one.arg for one in function.args.args if one.arg not in arrays]
        self._filled = {name: Written([()]) for name in given}
        """Arguments and local variables that hold something, other than an empty vector."""

    def findings(self) -> Iterator[Finding]:
        yield from self._block(self._function.body, (), ())

    def _block(self, body: list[ast.stmt], branch: Branch, loops: tuple[ast.For | ast.While, ...]) -> Iterator[Finding]:
        for statement in body:
            match statement:
                case ast.If():
                    yield from self._block(statement.body, (*branch, (id(statement), 0)), loops)
                    yield from self._block(statement.orelse, (*branch, (id(statement), 1)), loops)
                case ast.For() | ast.While():
                    if self._is_dynamic(statement):
                        yield from _carried(statement)
                    yield from self._block(statement.body, branch, (*loops, statement))
                case ast.Assign():
                    for target in statement.targets:
                        yield from self._assigned(target, statement.value, statement.lineno, branch, loops)
                case ast.AnnAssign() if statement.value is not None:
                    yield from self._assigned(statement.target, statement.value, statement.lineno, branch, loops)
                case ast.AugAssign():
                    yield from self._changed(statement)

    def _assigned(
        self, target: ast.expr, value: ast.expr, line: int, branch: Branch, loops: tuple[ast.For | ast.While, ...]
    ) -> Iterator[Finding]:
        if isinstance(target, ast.Name):
            if _is_empty_vector(value):
                self._filled.pop(target.id, None)
                self._places = {key: one for key, one in self._places.items() if not key.startswith(f"{target.id}[")}
            else:
                self._filled.setdefault(target.id, Written()).branches.append(branch)
            return
        base, place = _place(target)
        if base is None:
            return
        again = self._places.setdefault(place, Written()).again(branch) or _is_written_by_every_round(target, loops)
        if base in self._arrays:
            if any(isinstance(node, ast.Name) and node.id == base for node in ast.walk(value)):
                yield Finding(line, f"{base!r} is written in terms of what it holds", LOCAL)
            elif again:
                yield Finding(line, f"an element of {base!r} is written more than once", LOCAL)
        elif base in self._filled and not all(_exclude(branch, other) for other in self._filled[base].branches):
            yield Finding(line, f"a component of {base!r} is overwritten", CONSTRUCTOR)
        elif again:
            yield Finding(line, f"a component of {base!r} is written more than once", CONSTRUCTOR)

    def _changed(self, statement: ast.AugAssign) -> Iterator[Finding]:
        base, _ = _place(statement.target)
        adds = isinstance(statement.op, ast.Add | ast.Sub)
        if base in self._arrays:
            if not adds:
                yield Finding(statement.lineno, f"{base!r} is written in terms of what it holds", LOCAL)
        elif base is not None and not (adds and isinstance(statement.target, ast.Subscript)):
            yield Finding(statement.lineno, f"a component of {base!r} is changed in place", CONSTRUCTOR)

    def _is_dynamic(self, loop: ast.For | ast.While) -> bool:
        """Is its length unknown when Warp compiles, or too large to be unrolled?"""
        if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
            return True
        numbers = [one.value for one in loop.iter.args if isinstance(one, ast.Constant) and isinstance(one.value, int)]
        if len(numbers) != len(loop.iter.args):
            return not all(_is_static(one) for one in loop.iter.args)
        return len(range(*numbers)) > self._most_unrolled


LOCAL = "a local variable, and one assignment to the array at the end"
CONSTRUCTOR = "numbers in local variables, and the vector by its constructor, wp.vec3(a, b, c)"
SUM = "a sum (a += ...) of terms without it, a loop over a constant range, or a closed form"


def _is_static(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("static"))


def _place(target: ast.expr) -> tuple[str | None, str]:
    """The variable that an element or component belongs to, and which: v.x and v[0] are the same."""
    parts: list[str] = []
    while not isinstance(target, ast.Name):
        if isinstance(target, ast.Attribute):
            parts.append(str(COMPONENTS.get(target.attr, target.attr)))
            target = target.value
        elif isinstance(target, ast.Subscript):
            parts.append(ast.unparse(target.slice))
            target = target.value
        else:
            return None, ""
    return (target.id, f"{target.id}[{']['.join(reversed(parts))}]") if parts else (None, "")


def _is_empty_vector(value: ast.expr) -> bool:
    """`wp.vec3()`, or one of zeros."""
    if not isinstance(value, ast.Call):
        return False
    name = ast.unparse(value.func).rpartition(".")[2]
    of_kind = name.startswith(("vec", "mat", "quat", "spatial", "transform")) or name in ("zeros", "vector", "matrix")
    constants = [one.value for one in value.args if isinstance(one, ast.Constant)]
    return of_kind and len(constants) == len(value.args) and not any(constants)


def _is_written_by_every_round(target: ast.expr, loops: tuple[ast.For | ast.While, ...]) -> bool:
    """Does a loop write it again and again, since its index does not change in the loop?"""
    used = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    return any(not used & _assigned_in(loop) for loop in loops)


def _assigned_in(loop: ast.For | ast.While) -> set[str]:
    return {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _carried(loop: ast.For | ast.While) -> Iterator[Finding]:
    """Variables that a round of the loop takes over from the round before, and does more with than add to."""
    counters = (
        {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        if isinstance(loop, ast.For)
        else set()
    )
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            name, value, adds = node.target.id, node.value, isinstance(node.op, ast.Add | ast.Sub)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            adds, value = _added(name, node.value)
            if adds is None:
                continue
        else:
            continue
        if name not in counters and (not adds or _names(name, value)):
            yield Finding(node.lineno, f"a loop of unknown length changes {name!r} in terms of itself", SUM)


def _added(name: str, value: ast.expr) -> tuple[bool | None, ast.expr]:
    """Is it name + term, and the term; None where the variable does not occur."""
    if not _names(name, value):
        return None, value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        if isinstance(value.left, ast.Name) and value.left.id == name:
            return True, value.right
        if isinstance(value.op, ast.Add) and isinstance(value.right, ast.Name) and value.right.id == name:
            return True, value.left
    return False, value


def _names(name: str, value: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))
