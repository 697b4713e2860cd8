"""A problem: cost functions over variables, checked when it is put together."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mslsq.elsewhere.members import NAMES_OF_PROBLEMS, here
from mslsq.problem.components import check_can_be_held
from mslsq.problem.constraints import Constraint, parts_of
from mslsq.problem.cost import CostFunction
from mslsq.problem.data import WEIGHT, own_tensors
from mslsq.problem.errors import DeviceError, DtypeError, ProblemError
from mslsq.problem.joined_blocks import extended_parts
from mslsq.problem.rows import rows_of_first_block
from mslsq.problem.system import TermKind
from mslsq.problem.variable import Fixed, Variable


class Problem(nn.Module):
    """Cost functions, and the variables they refer to: minimise ½ Σ_costs Σ_blocks ρ(‖residual‖²), under constraints
    if there are some.

    Args:
        costs: `CostFunction`s; `Equality(cost)` and `Inequality(cost)` for residuals that are to be zero, or not above
            zero; and `variable.fixed(index)` for blocks that stay at their start, or
            `variable.fixed(index, components=...)` for parts of them.

    A problem is a module: `.to()` moves the data of all costs, `state_dict` holds them, parameters of the costs are
    its parameters. What is wrong with it is said at once: two costs or two variables of one name, dtypes or devices
    that do not agree, a residual that fails on its first block, a weight that does not fit the residual.

    >>> problem = mslsq.Problem(Between(pose[i], pose[j], measured=T_ij), pose.fixed([0]))
    """

    def __init__(self, *costs: CostFunction | Constraint | Fixed):
        super().__init__()
        _check_parts(costs)
        parts = [part for part in costs if not isinstance(part, Fixed)]
        self.costs = nn.ModuleList([part.cost if isinstance(part, Constraint) else part for part in parts])
        if not len(self.costs):
            raise ProblemError("A Problem needs at least one cost function.")
        self.fixed = tuple(part for part in costs if isinstance(part, Fixed))
        self.variables = self._variables()
        self._check_fixed()
        self._check_names()
        self._check_tensors()
        kinds = [part.kind if isinstance(part, Constraint) else TermKind.COST for part in parts]
        self.kinds = {cost.name: kind for cost, kind in zip(self, kinds, strict=True)}
        self.num_rows = {cost.name: rows_of_first_block(cost) for cost in self}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError as error:
                raise AttributeError(f"{error}{here(name, NAMES_OF_PROBLEMS)}", name=name, obj=self) from None

    def __iter__(self) -> Iterator[CostFunction]:
        for cost in self.costs:
            assert isinstance(cost, CostFunction)  # ModuleList forgets the type
            yield cost

    def __getitem__(self, name: str) -> CostFunction:
        """The cost function of that name."""
        for cost in self:
            if cost.name == name:
                return cost
        raise KeyError(f"no cost is called {name!r}; there are {', '.join(repr(cost.name) for cost in self)}")

    def __repr__(self) -> str:
        costs = {cost: self.kinds[cost.name] for cost in self}
        lines = [
            f"  {kind.value.title()}({cost!r})" if kind.is_constraint else f"  {cost!r}" for cost, kind in costs.items()
        ]
        lines += [f"  {fixed!r}" for fixed in self.fixed]
        return "Problem(\n" + "\n".join(lines) + "\n)"

    def cost(self, values: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]] | None = None) -> Float[Tensor, ""]:
        """½ Σ ρ(‖w · r‖²) over all costs at these values, weights and losses included; constraints add nothing.

        Differentiable. By cost and by block it is `mslsq.evaluate(problem, values)`, which also takes batches.

        Args:
            values: of all variables, as `mslsq.solve` takes its start.
            data: as for `mslsq.solve`, in place of the data of the costs.

        Raises:
            ProblemError: a name that is not known, a wrong shape, dtype or device; the message says which.
        """
        from mslsq.diagnostics.evaluation import evaluate  # stands above this floor, needed when it is called

        return evaluate(self, values, data).cost

    def residuals(
        self, values: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, Float[Tensor, "blocks rows"]]:
        """What the cost functions and constraints return at these values, by name: before weights and losses.

        Differentiable. Complex residuals are pairs (real, imaginary). Those of `mslsq.evaluate` are weighted.

        Args:
            values, data: as for `cost`.

        Raises:
            ProblemError: as for `cost`.
        """
        from mslsq.diagnostics.evaluation import raw_residuals  # as above

        return raw_residuals(self, values, data)

    @property
    def parts(self) -> list[CostFunction | Constraint | Fixed]:
        """What it was put together from: `Problem(*problem.parts)` is the same problem."""
        return [*parts_of(self, self.kinds), *self.fixed]

    def extended(self, *parts: CostFunction | Constraint | Fixed) -> "Problem":
        """This problem with more blocks: poses that have been reached, places that have been seen, their measurements.

        A cost function of a name that is known adds its blocks behind those of that one; a new name is a new cost. A
        variable may have grown: give the new parts one of the same name and a larger `count`. The numbers of blocks
        stay. The problem itself is not changed, both share what has not; whatever does not depend on how many blocks
        there are (derivatives that were checked, native programs) is kept.

        Args:
            parts: as for `Problem`. Blocks of one cost share its class, its loss, what is `Shared`, and the class of
                its weight. A weight or the parameter of a loss that all blocks shared becomes one for each where the
                new ones have another.

        Raises:
            ProblemError: a part does not fit; the message says which, and what it differs in.

        >>> pose = mslsq.Variable("pose", mslsq.SE2, count=n + 1)          # one more
        >>> problem = problem.extended(mslsq.Between(pose[[n - 1]], pose[[n]], measured=step))
        >>> poses = mslsq.manifolds.cat([solution.value["pose"], guess])
        >>> solution = mslsq.solve(problem, {"pose": poses})
        """
        _check_parts(parts)
        return Problem(*extended_parts(self.parts, parts))

    def free_entries(self, variable: Variable) -> Tensor | None:
        """(count, tangent) bool, which components of which blocks may move; None where all may."""
        held = [fixed for fixed in self.fixed if fixed.variable.name == variable.name]
        if not held:
            return None
        free = torch.ones(variable.num_blocks, variable.space.tangent_dim, dtype=torch.bool, device="cpu")
        for fixed in held:
            free[fixed.index[:, None], torch.tensor(fixed.components, dtype=torch.int64, device="cpu")] = False
        return free

    def _variables(self) -> dict[str, Variable]:
        """All variables by name, in the order the costs mention them."""
        variables: dict[str, Variable] = {}
        for cost in self:
            for reference in cost.references:
                variable = reference.variable
                known = variables.setdefault(variable.name, variable)
                if known is not variable and (known.space != variable.space or known.count != variable.count):
                    raise ProblemError(
                        f"Two different variables are called {variable.name!r}: {known!r} and {variable!r} (in cost "
                        f"{cost.name!r}). "
                        "Give them different names."
                    )
        for fixed in self.fixed:
            if fixed.variable.name not in variables:
                raise ProblemError(
                    f"Variable {fixed.variable.name!r} is held fixed, but no cost function refers to it."
                )
        return variables

    def _check_fixed(self) -> None:
        for name, variable in self.variables.items():
            free = self.free_entries(variable)
            if free is not None:
                check_can_be_held(name, variable.space, free)

    def _check_names(self) -> None:
        names = [cost.name for cost in self]
        if "bounds" in names:
            raise ProblemError(
                "A cost may not be called 'bounds': data={'bounds': ...} replaces the bounds of variables. Give it "
                "another name."
            )
        for name in names:
            if names.count(name) > 1:
                raise ProblemError(
                    f"Two cost functions are called {name!r}: give one another name, {name.title()}(..., "
                    f"name={name + '_2'!r})."
                )

    def _check_tensors(self) -> None:
        """One dtype for all floating-point data and weights, one device for everything but numbers; indices follow."""
        dtype: tuple[torch.dtype, CostFunction, str] | None = None
        device: tuple[torch.device, CostFunction, str] | None = None
        for cost in self:
            typed = {WEIGHT, *(leaf.name for leaf in cost.data_leaves)}
            for name, tensor in own_tensors(cost).items():
                if tensor.ndim == 0:  # the weight 2.0 and the loss Huber(1.0) serve on every device
                    continue
                if device is not None and tensor.device != device[0]:
                    raise DeviceError(
                        f"{cost.name}.{name} is on {tensor.device}, {device[1].name}.{device[2]} is on {device[0]}. "
                        f"Move one of them first: {cost.name}.to({str(device[0])!r}), say."
                    )
                device = device or (tensor.device, cost, name)
                if name not in typed or not tensor.is_floating_point():
                    continue
                if dtype is not None and tensor.dtype != dtype[0]:
                    raise DtypeError(
                        f"{cost.name}.{name} is {tensor.dtype}, {dtype[1].name}.{dtype[2]} is {dtype[0]}: convert one "
                        "of them, nothing is rounded silently."
                    )
                dtype = dtype or (tensor.dtype, cost, name)
        if device is not None:
            for cost in self:
                cost.place_indices(device[0])


def _check_parts(parts: tuple[Any, ...]) -> None:
    """Is every one of them something that a problem is made of?"""
    strange = [part for part in parts if not isinstance(part, (CostFunction, Constraint, Fixed))]
    if strange:
        hint = " Create it first: Between(pose[i], pose[j], ...)." if isinstance(strange[0], type) else ""
        if isinstance(strange[0], list | tuple):
            hint = " Write mslsq.Problem(*costs)."
        raise ProblemError(
            f"A Problem takes cost functions, constraints and variable.fixed(index), not {strange[0]!r}.{hint}"
        )
