"""Tells a residual in which an operator takes a variable for a constant without saying so: PyTorch has no derivative of
it, and the solve would converge to what is no minimum."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.private import (
    DispatchMode,
    WeakTensorKeyDictionary,
    forward_level_is_open,
    is_operator,
    operator_name,
)

ON_PURPOSE = (
    *("detach", "nextafter", "lift_fresh", "alias", "zero", "zeros_like", "ones_like", "full_like", "empty_like"),
    *("rand_like", "randn_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
)
"""What has no derivative by what it is, or because the user says so."""

RESOLVED = "clone"
"""What resolves a lazy conjugate or minus, below autograd, for an operator that takes none: a conjugate of variables
times another number looked cut."""


class CutDerivativeWarning(UserWarning):
    """A residual depends on its variables through an operator that PyTorch differentiates as a constant."""


class Cuts(DispatchMode):
    """A context in which a residual is evaluated, whose variables require grad.

    An operator cuts where something it is given requires grad and nothing that it gives of real or complex numbers
    does, with gradients on. Numbers that are cut on purpose (`detach`, `no_grad`) and whole numbers (`argmax`, masks,
    indices) are no cuts, nor is what follows from a cut without leading to the residual. Nothing is said of what runs
    inside of a `jvp` or `jacfwd` of the residual's own, where tensors do not show whether they require grad.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._cut = WeakTensorKeyDictionary()
        """By tensor the name of the operator that cut it from the variables."""
        self._last: tuple[str, list[Tensor]] = ("", [])
        """What the operator before has given, of which autograd learns only after it has run."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._settle()
        output = func(*args, **(kwargs or {}))
        if not is_operator(func) or not torch.is_grad_enabled() or forward_level_is_open():
            return output
        name = operator_name(func)
        if name in ON_PURPOSE:
            return output
        given = [leaf for leaf in pytree.leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
        found = [leaf for leaf in pytree.leaves(output) if isinstance(leaf, Tensor) and _has_derivatives(leaf)]
        before = next((self._cut[leaf] for leaf in given if leaf in self._cut), None)
        if before is not None:
            for leaf in found:
                self._cut[leaf] = before
        elif name != RESOLVED and any(leaf.requires_grad and _has_derivatives(leaf) for leaf in given):
            self._last = (name, found)
        return output

    def _settle(self) -> None:
        name, found = self._last
        self._last = ("", [])
        if found and not any(leaf.requires_grad for leaf in found):
            for leaf in found:
                self._cut[leaf] = name

    def advice(self, residual: Any, term: str) -> str:
        """What to say of what the residual has returned; empty where nothing cuts it."""
        self._settle()
        leaves: Sequence[Any] = [leaf for leaf in pytree.leaves(residual) if isinstance(leaf, Tensor)]
        names = sorted({self._cut[leaf] for leaf in leaves if leaf in self._cut})
        if not names:
            return ""
        return (
            f"The residual of {term!r} depends on its variables through {', '.join(names)}, which PyTorch takes for "
            "constant without saying so: derivatives leave that part out, and the solution need be no minimum. Write "
            "it with other operations, or give the Jacobian yourself (jac=, or jacobians of a CostFunction). Where a "
            "constant is meant, say .detach()."
        )


def _has_derivatives(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
