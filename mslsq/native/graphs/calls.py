"""Operations of a graph that are calls within loops, by their names, and what their text reads."""

from collections.abc import Callable
from typing import Any

from torch import fx

from mslsq.native.graphs import block_systems, systems
from mslsq.native.graphs.arrays import Array, arguments_of
from mslsq.private import is_operator, operator_name

SEVERAL: dict[str, Callable[[Any, fx.Node], tuple[Array, ...]]] = {
    "linalg_cholesky_ex": systems.cholesky,
    "mslsq::native_linearizations": systems.linearizations,
    "mslsq::block_cholesky_factor": block_systems.factor,
    "mslsq::normal_equations": block_systems.normal_equations,
}
"""Operations with several results."""

SINGLE: dict[str, Callable[[Any, Array, fx.Node], None]] = {
    "cholesky_solve": systems.cholesky_solve,
    "mslsq::native_residuals": systems.residuals,
    "mslsq::block_cholesky_solve": block_systems.solve,
    "mslsq::block_cholesky_solve_lower": block_systems.solve_lower,
    "mslsq::normal_matrix": block_systems.normal_matrix,
    "mslsq::normal_gradient": block_systems.normal_gradient,
    "mslsq::block_product": block_systems.product,
}

OF_PLANS = {name for name in (*SEVERAL, *SINGLE) if name.startswith(("mslsq::block_", "mslsq::normal_"))}


def has_several(node: fx.Node) -> bool:
    """Is it an operation of `SEVERAL`?"""
    return operator_name(node.target) in SEVERAL


def read_by(node: fx.Node) -> list[fx.Node]:
    """The nodes that the text of a node reads: all that are put into it but the tensors of a plan, which are constants
    of the program, and what is empty."""
    if not is_operator(node.target) or operator_name(node.target) not in OF_PLANS:
        return node.all_input_nodes
    tensors = [argument for argument in arguments_of(node) if isinstance(argument, fx.Node)]
    return [x for x in tensors if 0 not in getattr(x.meta.get("tensor_meta"), "shape", ())]
