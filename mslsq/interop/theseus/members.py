"""The cost functions of an objective, taken apart: error, weight, robust loss, and the variables of each."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from mslsq.interop.theseus.alike import function_key, state_key
from mslsq.interop.theseus.conventions import kind_of
from mslsq.interop.theseus.library import TheseusError, library


@dataclass(frozen=True, eq=False)
class Robust:
    """The robust loss around a cost function."""

    loss: Any
    radius: tuple[Any, ...]
    """The variables of its parameters: the log radius, and the control value of graduated non-convexity."""
    of_rows: bool
    """`flatten_dims=True`: the loss applies to each entry of the error."""


@dataclass(frozen=True, eq=False)
class Member:
    """One cost function of an objective."""

    cost: Any
    """Without its robust loss."""
    robust: Robust | None

    @property
    def weight(self) -> Any:
        return self.cost.weight

    @property
    def optim_vars(self) -> list[Any]:
        return list(self.cost.optim_vars)

    @property
    def has_plain_weight(self) -> bool:
        """Is its weight a scale or a diagonal, which this library has too?"""
        th = library()
        return type(self.weight) in (th.ScaleCostWeight, th.DiagonalCostWeight)

    @property
    def data(self) -> list[Any]:
        """The variables that its error, and a weight of another kind, are computed from as data."""
        weight = [] if self.has_plain_weight else list(self.weight.aux_vars)
        return [*self.cost.aux_vars, *weight]

    def key(self) -> Hashable:
        """Members of equal keys are blocks of one cost here."""
        th = library()
        if isinstance(self.cost, th.AutoDiffCostFunction):
            code = (type(self.cost), function_key(self.cost._err_fn), self.cost.dim())
        else:
            attributes = (*self.cost._optim_vars_attr_names, *self.cost._aux_vars_attr_names)
            code = state_key(self.cost, attributes)
        optimized = tuple(kind_of(variable) for variable in self.optim_vars)
        data = tuple((type(variable), tuple(variable.shape[1:])) for variable in self.data)
        weight = state_key(self.weight, self.weight._aux_vars_attr_names)
        shapes = tuple(tuple(variable.shape[1:]) for variable in self.weight.aux_vars)
        robust = None if self.robust is None else (type(self.robust.loss), len(self.robust.radius), self.robust.of_rows)
        return code, optimized, data, weight, shapes, robust


def members_of(objective: Any) -> list[Member]:
    """All cost functions of an objective.

    Raises:
        TheseusError: something that has no counterpart here; it is named.
    """
    th = library()
    if not isinstance(objective, th.Objective):
        raise TheseusError(
            f"from_theseus takes a theseus.Objective, not {type(objective).__name__}; a layer or an optimizer has it "
            "as `.objective`."
        )
    if not objective.cost_functions:
        raise TheseusError("The objective has no cost functions: objective.add(cost_function) first.")
    if objective._error_metric_fn is not th.core.objective.error_squared_norm_fn:
        raise TheseusError(
            "The objective has an error_metric_fn of its own: here the cost is always ½ Σ error². Write a robust loss, "
            "or transform the errors."
        )
    _check_weights(objective)
    return [_member(cost) for cost in objective.cost_functions.values()]


def _member(cost: Any) -> Member:
    th = library()
    if not isinstance(cost, th.RobustCostFunction):
        return Member(cost, None)
    radius = [cost.log_loss_radius]
    if isinstance(cost, th.GNCRobustCostFunction):
        radius.append(cost.gnc_control_val)
    return Member(cost.cost_function, Robust(cost.loss, tuple(radius), cost.flatten_dims))


def _check_weights(objective: Any) -> None:
    """Theseus takes weights for constants, whatever they depend on; what they depend on has to be data here."""
    for name in objective.cost_weight_optim_vars:
        raise TheseusError(
            f"A cost weight depends on the optimization variable {name!r}, which Theseus takes for a constant: make it "
            "an auxiliary variable, or put the weight into the error function."
        )
    both = objective.optim_vars.keys() & objective.aux_vars.keys()
    if both:
        raise TheseusError(
            f"{sorted(both)[0]!r} is an optimization variable of one cost function and an auxiliary variable of "
            "another: use two variables, or make it an optimization variable of both."
        )
