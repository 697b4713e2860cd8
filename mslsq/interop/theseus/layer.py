"""`from_theseus_layer`: a layer with the calls of `theseus.TheseusLayer`, solved here."""

import copy
import dataclasses
import difflib
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import mslsq
from mslsq.interop.theseus.library import TheseusError, library
from mslsq.interop.theseus.problem import TheseusProblem
from mslsq.solution import CONVERGED, Solution, Status
from mslsq.solvers import Solver

ADJOINTS = {
    "implicit": lambda steps, epsilon: mslsq.Implicit(failed="zero"),
    "unroll": lambda steps, epsilon: mslsq.Unrolled(failed="zero"),
    "truncated": lambda steps, epsilon: mslsq.Truncated(steps=steps, failed="zero"),
    "dlm": lambda steps, epsilon: mslsq.DirectLossMinimization(1e-4 if epsilon is None else epsilon, "zero"),
}
OPTIONS = {
    "backward_mode",
    "backward_num_iterations",
    "dlm_epsilon",
    "verbose",
    "track_best_solution",
    "track_err_history",
    "track_state_history",
}
"""What is read of `optimizer_kwargs`."""
WITHOUT_EFFECT = {
    "damping",
    "adaptive_damping",
    "ellipsoidal_damping",
    "damping_eps",
    "down_damping_ratio",
    "up_damping_ratio",
    "damping_accept",
    "trust_region_init",
    "step_size",
    "__keep_final_step_size__",
    "__strict_implicit_final_gn__",
    "__FROM_THESEUS_LAYER_TOKEN__",  # which Theseus writes into the dict that it is given
}
"""How Theseus' methods find the length of a step, and what they keep of it: the methods here find it themselves."""


class TheseusLayer(nn.Module):
    """What `from_theseus_layer` returns: `forward(input_tensors, optimizer_kwargs)` as `theseus.TheseusLayer` has it.

    Attributes:
        problem: the `TheseusProblem`.
        solver: of this library.
        objective: Theseus', whose variables hold the last solution.
    """

    def __init__(self, layer: Any, solver: Solver | None = None):
        super().__init__()
        if not isinstance(layer, library().theseus_layer.TheseusLayer):
            raise TheseusError(
                f"from_theseus_layer takes a theseus.TheseusLayer, not {type(layer).__name__}; an objective is for "
                "from_theseus."
            )
        self.theseus = layer
        self.problem = TheseusProblem(layer.objective)
        self.solver = solver_of(layer.optimizer) if solver is None else solver
        self._takes_one_step = solver is None and isinstance(layer.optimizer, library().LinearOptimizer)
        self._of_version = layer.objective.current_version

    @property
    def objective(self) -> Any:
        return self.theseus.objective

    @property
    def optimizer(self) -> Any:
        return self.theseus.optimizer

    @property
    def device(self) -> Any:
        return self.objective.device

    @property
    def dtype(self) -> Any:
        return self.objective.dtype

    def to(self, *args: Any, **kwargs: Any) -> "TheseusLayer":
        self.theseus.to(*args, **kwargs)
        self.problem.to(*args, **kwargs)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "TheseusLayer":
        """A layer around a copy of the objective, as of `theseus.TheseusLayer`."""
        made = TheseusLayer(copy.deepcopy(self.theseus, memo), copy.deepcopy(self.solver, memo))
        made._takes_one_step = self._takes_one_step
        memo[id(self)] = made
        return made.train(self.training)

    def forward(
        self, input_tensors: Mapping[str, Tensor] | None = None, optimizer_kwargs: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], Any]:
        """Solve from these tensors.

        Args:
            input_tensors: by name of a variable, (1 or batch, ...). Others are as the variables hold them: an
                optimization variable starts where the last call has left it, without the graph of that call.
            optimizer_kwargs: `backward_mode`: "implicit", "unroll" (the default), "truncated" (with
                `backward_num_iterations`) or "dlm" (with `dlm_epsilon`); `verbose`; `track_err_history`;
                `track_state_history`, whose steps run in Python, as those of any callback; `track_best_solution`. What
                steers the damping of Theseus' methods has no effect.

        Returns:
            The values of all optimization variables by name, and Theseus' `NonlinearOptimizerInfo` with one attribute
            more, `solution`, the `Solution` of this library.

        Raises:
            TheseusError: an option that is not known, or one of the errors of `TheseusProblem.inputs`.
        """
        if self.objective.current_version != self._of_version:
            raise TheseusError("The objective was modified after the layer was made: call from_theseus_layer again.")
        options = dict(optimizer_kwargs or {})
        adjoint = adjoint_of(options)
        if self._takes_one_step:
            adjoint = mslsq.Unrolled()  # of a step there is no other derivative, and Theseus has no other
        given = self._known(dict(input_tensors or {}))
        starts = {name: variable.tensor.detach() for name, variable in self.objective.optim_vars.items()}
        inputs = self.problem.inputs({**starts, **given})
        solver = dataclasses.replace(self.solver, verbose=True) if options.get("verbose") else self.solver
        states = States() if options.get("track_state_history") else None
        solver = solver if states is None else states.watching(solver)
        solution = mslsq.solve(self.problem, *inputs, in_dims=inputs.in_dims, solver=solver, adjoint=adjoint)
        values = self.problem.tensors(solution.value)
        self._remember(given, values)
        info = self._info(solution, values, options)
        if states is not None:
            info.state_history = states.history(self.problem, values, solution.history.cost.shape[-1])
        return values, info

    def _known(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """Theseus passes over names that it does not know; so does this, with a warning."""
        names = [*self.objective.optim_vars, *self.objective.aux_vars]
        for name in [name for name in given if name not in names]:
            near = difflib.get_close_matches(name, names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            warnings.warn(f"The objective has no variable {name!r}: the tensor has no effect.{hint}", stacklevel=3)
            del given[name]
        return given

    def _remember(self, given: dict[str, Tensor], values: dict[str, Tensor]) -> None:
        """The variables of the objective hold what a call of Theseus' layer leaves there."""
        variables = {**self.objective.optim_vars, **self.objective.aux_vars}
        for name, tensor in {**given, **values}.items():
            variables[name].tensor = tensor
            variables[name]._num_updates += 1
        self.objective._batch_size = max(len(variable.tensor) for variable in variables.values())

    def _info(self, solution: Solution, values: dict[str, Tensor], options: dict[str, Any]) -> Any:
        """Theseus' account of a solve."""
        th = library()
        status, steps = solution.status.reshape(-1), solution.num_steps.reshape(-1)
        cost = solution.cost.detach().reshape(-1)
        history = solution.history.cost.detach()
        history = history[None] if history.ndim == 1 else history
        converged = torch.isin(status, torch.tensor([int(s) for s in CONVERGED], device=status.device))
        names = th.NonlinearOptimizerStatus
        words = [
            names.CONVERGED if done else names.MAX_ITERATIONS if code == Status.MAX_STEPS else names.FAIL
            for done, code in zip(converged.tolist(), status.tolist(), strict=True)
        ]
        best = {name: tensor.detach() for name, tensor in values.items()}
        info = th.NonlinearOptimizerInfo(
            best_solution=best if options.get("track_best_solution") else None,
            status=np.array(words),
            converged_iter=torch.where(converged, steps, -torch.ones_like(steps)),
            best_iter=steps,
            err_history=_filled(history, cost) if options.get("track_err_history") else None,
            last_err=cost,
            best_err=cost,
            state_history=None,
        )
        info.solution = solution
        return info


class States:
    """The values at the start of a solve and after every step, as a callback gets them."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def watching(self, solver: Solver) -> Solver:
        """The same solver, whose steps are noted here."""
        given = solver.callback

        def callback(info: Any) -> bool | None:
            self.seen.append({name: values.clone() for name, values in info.values.items()})
            return None if given is None else given(info)

        return dataclasses.replace(solver, callback=callback)

    def history(self, problem: TheseusProblem, ends: dict[str, Tensor], length: int) -> dict[str, Tensor]:
        """Theseus' `state_history`: by name (batch, ..., length), as long as the history of costs; after the end the
        values are those of the end."""
        seen = [problem.tensors(values) for values in self.seen]
        found = {}
        for name, end in ends.items():
            taken = [tensors[name] for tensors in seen]
            found[name] = torch.stack([*taken, *[end.detach()] * (length - len(taken))], -1)
        return found


def from_theseus_layer(layer: Any, solver: Solver | None = None) -> TheseusLayer:
    """A layer with the calls of `theseus.TheseusLayer`, whose solves and derivatives are this library's.

    Args:
        layer: `theseus.TheseusLayer`; neither its optimizer nor its linear solver is used. Its objective is: after a
            call its variables hold the solution.
        solver: `Dogleg()` for Theseus' `Dogleg` by default, `LevenbergMarquardt(scaling="identity")` for its
            `GaussNewton` and `LevenbergMarquardt` (which damps by λI, too). They choose their steps themselves and go
            on until the solution is reached, so that `max_iterations`, `step_size` and the tolerances of the optimizer
            have no effect. For `LinearOptimizer` it is `GaussNewton(max_steps=1)`: one step, differentiated as such in
            every backward mode, as Theseus does. A step that would raise the cost is not taken.

    Returns:
        A `TheseusLayer`.

    Raises:
        TheseusError: as `from_theseus`; or an optimizer that does not minimise by least squares (`DCEM`).

    >>> layer = mslsq.interop.theseus.from_theseus_layer(th.TheseusLayer(optimizer))
    >>> values, info = layer.forward({"x": x}, {"backward_mode": "implicit"})
    """
    return TheseusLayer(layer, solver)


def solver_of(optimizer: Any) -> Solver:
    """The method here for an optimizer of Theseus.

    Raises:
        TheseusError: it is none of least squares.
    """
    th = library()
    if isinstance(optimizer, th.Dogleg):
        return mslsq.Dogleg()
    if isinstance(optimizer, th.LinearOptimizer):
        return mslsq.GaussNewton(max_steps=1)
    if isinstance(optimizer, (th.GaussNewton, th.LevenbergMarquardt)):
        return mslsq.LevenbergMarquardt(scaling="identity")
    raise TheseusError(
        f"{type(optimizer).__name__} has no counterpart here: pass solver=mslsq.LevenbergMarquardt(), which minimises "
        "the same cost."
    )


def adjoint_of(options: Mapping[str, Any]) -> Any:
    """How derivatives pass, by Theseus' `optimizer_kwargs`.

    Raises:
        TheseusError: an option that is not known; it is named.
    """
    for name in options:
        if name not in OPTIONS | WITHOUT_EFFECT:
            known = ", ".join(sorted(OPTIONS))
            raise TheseusError(f"optimizer_kwargs has {name!r}; what has an effect here: {known}.")
    mode = options.get("backward_mode", "unroll")
    mode = getattr(mode, "name", mode).lower()
    if mode not in ADJOINTS:
        raise TheseusError(f"backward_mode is {mode!r}; it is one of {', '.join(ADJOINTS)}.")
    if mode == "truncated" and "backward_num_iterations" not in options:
        raise TheseusError('backward_mode="truncated" needs backward_num_iterations, the steps to differentiate.')
    return ADJOINTS[mode](options.get("backward_num_iterations"), options.get("dlm_epsilon"))


def _filled(history: Tensor, last: Tensor) -> Tensor:
    """Costs by step, (batch, steps + 1); after the end that of the end."""
    return torch.where(torch.isnan(history), last[:, None], history)
