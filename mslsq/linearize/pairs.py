"""Tells a residual in which data of shape (n,) are subtracted from a prediction of shape (n, 1): n² differences of each
point with every other, and a solution that is wrong without a sign."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.private import DispatchMode, WeakTensorKeyDictionary, is_operator, operator_name

AXES_ON_PURPOSE = ("unsqueeze", "view", "_unsafe_view", "reshape", "expand", "transpose", "t", "permute")
"""What gives a tensor axes to broadcast along: `x[:, None] - y` means every pair."""
REARRANGING = ("view", "_unsafe_view", "reshape", "clone", "alias", "detach", "permute", "transpose", "t")


class BroadcastResidualWarning(UserWarning):
    """A residual has an entry for each pair of a prediction and a measurement, where one for each point is meant."""


class Differences:
    """Follows the operators of one evaluation of a residual, to tell whether its entries are such differences.

    One is the difference of two tensors of as many entries each, but of another number of axes, with more entries than
    either, where one depends on the variables and the other does not, and neither was given its axes just before. That
    it is the residual itself, and not reduced or compared with as many numbers later on, makes pairs that are meant
    (distances between two sets of points, kernels) no reason to warn.
    """

    def __init__(self, variables: Iterable[Any]) -> None:
        self._dependent = WeakTensorKeyDictionary()
        self._prepared = WeakTensorKeyDictionary()
        """What was given its axes on purpose."""
        self._pairs = WeakTensorKeyDictionary()
        """By a difference of pairs, or what follows from one entry by entry, the shapes of its operands."""
        for leaf in variables:
            self._dependent[leaf] = True

    def see(self, operator: Any, args: tuple[Any, ...], output: Any) -> None:
        """An operator that has run."""
        given = [leaf for leaf in pytree.leaves(args) if isinstance(leaf, Tensor)]
        depends = any(leaf in self._dependent for leaf in given)
        name = operator_name(operator)
        if isinstance(output, Tensor):
            if name in AXES_ON_PURPOSE:
                self._prepared[output] = True
            if depends:
                self._note_pairs(operator, name, given, output)
        if depends:
            for leaf in pytree.leaves(output):
                if isinstance(leaf, Tensor):
                    self._dependent[leaf] = True

    def _note_pairs(self, operator: Any, name: str, given: list[Tensor], output: Tensor) -> None:
        if name == "sub" and len(given) == 2:
            a, b = given
            is_larger = output.numel() > a.numel() == b.numel() and a.ndim != b.ndim
            of_both = (a in self._dependent) != (b in self._dependent)
            if is_larger and of_both and a not in self._prepared and b not in self._prepared:
                self._pairs[output] = tuple(a.shape), tuple(b.shape)
                return
        pairs = next((self._pairs[leaf] for leaf in given if leaf in self._pairs), None)
        if pairs is None or output.numel() != max(leaf.numel() for leaf in given):
            return
        is_alone = all(leaf in self._pairs or leaf.numel() < output.numel() for leaf in given)
        if is_alone and (torch.Tag.pointwise in operator.tags or name in REARRANGING):
            self._pairs[output] = pairs

    def advice(self, residual: Any, whose: str) -> str:
        """What to say of what the residual has returned; empty where there is nothing to say.

        Args:
            whose: what has returned it, as a message begins: "The residual of 'fit'".
        """
        for leaf in pytree.leaves(residual):
            if isinstance(leaf, Tensor) and leaf in self._pairs:
                a, b = self._pairs[leaf]
                return (
                    f"{whose} has {leaf.numel()} entries, the difference of tensors of shapes {a} and "
                    f"{b}, which PyTorch broadcasts: each entry of one minus every entry of the other. Give both one "
                    "shape, with .squeeze(-1) or [:, None]; where all pairs are meant, write the axes beside the "
                    "difference: a[:, None] - b[None, :]."
                )
        return ""


class Followed(DispatchMode):
    """A context in which every operation that runs is seen by `differences`."""

    supports_higher_order_operators = True

    def __init__(self, differences: Differences) -> None:
        super().__init__()
        self.differences = differences

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if is_operator(func):
            self.differences.see(func, args, output)
        return output
