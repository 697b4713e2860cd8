"""Block-sparse normal equations within loops: the compiled kernels, called as PyTorch's operators call them.

A step of a graph of 60 poses is four such calls between loops: through PyTorch they take three times as long as
the work.
"""

import operator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, fx

from mslsq.kernels import Kernel, KernelsMissingError
from mslsq.linear import block_products, normal_products
from mslsq.linear.operator_plan import OperatorPlan
from mslsq.linear.sparse import multifrontal
from mslsq.linear.sparse.elimination import Elimination
from mslsq.native.graphs.arrays import LARGEST, Array, NoLoopError, arguments_of, contiguous, entry

if TYPE_CHECKING:
    from mslsq.native.graphs.writer import Writer

Plan = TypeVar("Plan", bound=OperatorPlan)


def factor(writer: "Writer", node: fx.Node) -> tuple[Array, ...]:
    """`multifrontal.factor`, in the calling thread alone."""
    plan = _plan(node, Elimination)
    values = _contiguous(writer, _operand(writer, node, 0))
    batch, numbers = values.shape
    if batch * plan.factor_size > min(multifrontal.WORTH_THREADS, LARGEST):
        raise NoLoopError(f"{node.target}: its size")
    shift = arguments_of(node)[1]
    is_shifted = 0 not in shift.meta["tensor_meta"].shape
    shifts = _contiguous(writer, _operand(writer, node, 1)) if is_shifted else values
    factors = writer.fresh((batch, plan.factor_size), values.dtype)
    definite = writer.fresh((batch,), torch.bool)
    _zero(writer, definite)
    arrays = values, numbers, shifts, shifts.shape[1] if is_shifted else 0, factors, plan.factor_size, definite
    _call(writer, multifrontal.KERNELS.factor, values.dtype, (*arrays, 0, batch, *multifrontal.fronts_of(plan)))
    writer.append(
        f"for (long b = 0; b < {batch}; b++) if (!{entry(definite, 'b')}) "
        f"for (long i = 0; i < {plan.factor_size}; i++) {entry(factors, f'b * {plan.factor_size} + i')} = 0;"
    )
    return factors, definite


def solve(writer: "Writer", out: Array, node: fx.Node) -> None:
    """`multifrontal.solve`."""
    _solve(writer, out, node, half=False)


def solve_lower(writer: "Writer", out: Array, node: fx.Node) -> None:
    """`multifrontal.solve_lower`."""
    _solve(writer, out, node, half=True)


def _solve(writer: "Writer", out: Array, node: fx.Node, half: bool) -> None:
    plan = _plan(node, Elimination)
    factors, usable, right = (_contiguous(writer, _operand(writer, node, number)) for number in range(3))
    solved = out if _is_contiguous(out) else writer.fresh(out.shape, out.dtype)
    if factors.shape[0] * plan.factor_size > multifrontal.WORTH_THREADS:
        raise NoLoopError(f"{node.target}: its size")
    arrays = factors, plan.factor_size, usable, right, solved, 0, right.shape[0], *right.shape[1:]
    _call(writer, multifrontal.KERNELS.solve, factors.dtype, (*arrays, *multifrontal.rows_of(plan), int(half)))
    if solved is not out:
        writer.copy(solved, out)


def normal_equations(writer: "Writer", node: fx.Node) -> tuple[Array, ...]:
    """`normal_products.normal_equations`."""
    plan = _plan(node, normal_products.NormalPlan)
    jacobian, residual = _operand(writer, node, 0), _operand(writer, node, 1)
    sizes = plan.num_columns, plan.num_values
    gradient, values = (writer.fresh((jacobian.shape[0], size), jacobian.dtype) for size in sizes)
    _add_normal_equations(writer, gradient, values, jacobian, residual, plan)
    return gradient, values


def normal_matrix(writer: "Writer", out: Array, node: fx.Node) -> None:
    """`normal_products.normal_matrix`."""
    plan, jacobian = _plan(node, normal_products.NormalPlan), _operand(writer, node, 0)
    values = out if _is_contiguous(out) else writer.fresh(out.shape, out.dtype)
    _add_normal_equations(writer, None, values, jacobian, None, plan)
    if values is not out:
        writer.copy(values, out)


def normal_gradient(writer: "Writer", out: Array, node: fx.Node) -> None:
    """`normal_products.normal_gradient`."""
    plan = _plan(node, normal_products.NormalPlan)
    gradient = out if _is_contiguous(out) else writer.fresh(out.shape, out.dtype)
    _add_normal_equations(writer, gradient, None, _operand(writer, node, 0), _operand(writer, node, 1), plan)
    if gradient is not out:
        writer.copy(gradient, out)


def product(writer: "Writer", out: Array, node: fx.Node) -> None:
    """`block_products.product`."""
    plan = _plan(node, block_products.BlockProduct)
    if plan.entries:
        raise NoLoopError(f"{node.target}: without kernels")
    values, x = (_contiguous(writer, _operand(writer, node, number)) for number in range(2))
    found = out if _is_contiguous(out) else writer.fresh(out.shape, out.dtype)
    _zero(writer, found)
    kernel, sizes = block_products.kernel_of(plan)
    repeat = max(x.shape[0] // max(values.shape[0], 1), 1)
    tables = [part for table in plan.tables for part in (len(table), table)]
    arrays = x.shape[0], repeat, x.shape[1], *sizes, values, values.shape[1], x, found, *tables
    _call(writer, kernel, values.dtype, arrays)
    if found is not out:
        writer.copy(found, out)


def _add_normal_equations(
    writer: "Writer",
    gradient: Array | None,
    values: Array | None,
    jacobian: Array,
    residual: Array | None,
    plan: normal_products.NormalPlan,
) -> None:
    for array in (gradient, values):
        if array is not None:
            _zero(writer, array)
    lanes = jacobian.shape[0], jacobian.shape[1], jacobian.shape[3]
    residual = residual or Array(
        jacobian.base, jacobian.offset, lanes, jacobian.strides[:2] + jacobian.strides[3:], jacobian.dtype
    )
    given = jacobian, *jacobian.strides, residual, *residual.strides, *jacobian.shape[1:]
    found = [(array or jacobian, 0 if array is None else array.shape[1]) for array in (values, gradient)]
    _call(
        writer,
        normal_products.KERNEL,
        jacobian.dtype,
        (jacobian.shape[0], *given, *found[0], *found[1], *plan.arrays),
    )


def _plan(node: fx.Node, kind: type[Plan]) -> Plan:
    """What an operator is told of the structure: its last two arguments."""
    *_, tensors, numbers = arguments_of(node)
    module = node.graph.owning_module
    if not all(isinstance(x, fx.Node) and x.op == "get_attr" for x in tensors):
        raise NoLoopError(f"{node.target}: a plan that is no constant")
    return kind.unpacked([operator.attrgetter(str(x.target))(module) for x in tensors], list(numbers))


def _operand(writer: "Writer", node: fx.Node, number: int) -> Array:
    array = writer.operand(arguments_of(node)[number])
    assert isinstance(array, Array)
    return array


def _is_contiguous(array: Array) -> bool:
    steps = zip(array.shape, array.strides, contiguous(array.shape), strict=True)
    return all(size == 1 or step == own for size, step, own in steps)


def _contiguous(writer: "Writer", array: Array) -> Array:
    return array if _is_contiguous(array) else writer.converted(array, array.dtype)


def _zero(writer: "Writer", array: Array) -> None:
    numbers = contiguous((*array.shape, 1))[0] * array.shape[0]
    writer.append(f"__builtin_memset(&{entry(array, '0')}, 0, {numbers} * sizeof({array.type}));")


def _call(writer: "Writer", kernel: Kernel, dtype: torch.dtype, arguments: tuple[Any, ...]) -> None:
    """A call of a kernel with arrays of the text, tensors of a plan, and integers."""
    try:
        address = kernel.address(dtype)
    except KernelsMissingError as error:
        raise NoLoopError(f"{kernel.name}: no kernels") from error

    def passed(argument: Any) -> str:
        if isinstance(argument, Array):
            return f"(const void*)&{entry(argument, '0')}"
        return writer.constant(argument) if isinstance(argument, Tensor) else f"{argument}L"

    types = ", ".join("long" if kind == "n" else "const void*" for kind in kernel.arguments)
    assert len(arguments) == len(kernel.arguments)
    writer.append(f"((void (*)({types})){writer.function(address)})({', '.join(map(passed, arguments))});")
