"""Theseus' layer and this library's beside each other, on what a program written for Theseus gives to its layer.

`exchange()` puts `Pair` in the place of `theseus.TheseusLayer`, and the same in the place of an optimizer's `optimize`.
Every call is solved by both, from the same start and with the same data; the program goes on with the answer of this
library.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import theseus as th
import torch
from torch import Tensor

from mslsq.interop.theseus import from_theseus_layer

MODES: dict[str, dict[str, Any]] = {
    "implicit": {},
    "unroll": {},
    "truncated": {"backward_num_iterations": 5},
    "dlm": {"dlm_epsilon": 1e-3},
}
OriginalLayer = th.TheseusLayer
original_optimize = th.optimizer.Optimizer.optimize
TOKEN = th.constants.__FROM_THESEUS_LAYER_TOKEN__


class Enough(Exception):
    """As many calls as are wanted have been made."""


@dataclass
class Record:
    """What the calls of one layer cost, and what they found."""

    cost_functions: int
    unknowns: int
    batch: int
    terms: int = 0
    theirs: list[float] = field(default_factory=list)
    """CPU seconds of a call."""
    ours: list[float] = field(default_factory=list)
    short: list[float] = field(default_factory=list)
    """Ours of no more steps than theirs has taken in that call..."""
    short_costs: list[float] = field(default_factory=list)
    """... and the cost that it ends at."""
    costs: list[tuple[float, float]] = field(default_factory=list)
    """Theirs and ours, summed over the batch."""
    worst: float = 0.0
    """The largest (ours − theirs) / theirs of any problem of any call."""
    gradients: dict[str, list[float]] = field(default_factory=dict)
    """By mode: CPU seconds of a differentiated call, errors of the derivative along a direction (both theirs, ours),
    and the difference of the two gradients."""


RECORDS: list[Record] = []
LISTENERS: list[Callable[[], Any]] = []
"""Called after every call of a layer: a program may be stopped."""
LIMITS = {"calls": 10, "same steps": False}


class Pair(torch.nn.Module):
    """Called as `theseus.TheseusLayer`."""

    def __init__(self, optimizer: Any, *args: Any, **options: Any):
        super().__init__()
        self.theirs = OriginalLayer(optimizer, *args, **options)
        self.bridged: Any = None
        self.record: Record | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("theirs"), name)

    def to(self, *args: Any, **options: Any) -> "Pair":
        self.theirs.to(*args, **options)
        return self

    def forward(self, input_tensors: Any = None, optimizer_kwargs: Any = None) -> Any:
        objective = self.theirs.objective
        options = {key: value for key, value in (optimizer_kwargs or {}).items() if key != TOKEN}
        options["verbose"] = False
        given = dict(input_tensors or {})
        starts = {name: variable.tensor.detach() for name, variable in objective.optim_vars.items()}
        given = {**starts, **given}
        if self.record is None:
            self._begin(given)
        record = self.record
        assert record is not None
        (_, their_info), seconds = timed(lambda: self.theirs.forward(given, dict(options)))
        record.theirs.append(seconds)
        cost_of_theirs = objective.error_metric().detach()
        if self.bridged is None:
            self.bridged, built = timed(lambda: from_theseus_layer(self.theirs))
            record.terms = len(list(self.bridged.problem))
        else:
            built = 0.0
        (values, info), seconds = timed(lambda: self.bridged.forward(given, dict(options)))
        record.ours.append(seconds + built)
        cost_of_ours = objective.error_metric().detach()
        if LIMITS["same steps"]:
            self._same_steps(record, given, options, steps_of(self.theirs.optimizer, their_info))
        objective.update({**given, **values})
        record.costs.append((float(cost_of_theirs.sum()), float(cost_of_ours.sum())))
        relative = (cost_of_ours - cost_of_theirs) / cost_of_theirs.clamp_min(1e-12)
        record.worst = max(record.worst, float(relative.max())) if len(record.costs) > 1 else float(relative.max())
        tell()
        if len(record.costs) == 1 and MODES:
            with torch.enable_grad():
                self._gradients(given, options)
            objective.update(given)
            values, info = self.bridged.forward(given, dict(options))
        if len(record.costs) >= LIMITS["calls"]:
            raise Enough
        return values, info

    def _same_steps(self, record: Record, given: dict[str, Tensor], options: dict[str, Any], steps: int) -> None:
        """Ours once more with as many steps as theirs, where it takes more: what theirs has not finished is not timed
        against what ours has."""
        solver = dataclasses.replace(self.bridged.solver, max_steps=steps)
        self.bridged.solver, whole = solver, self.bridged.solver
        try:
            _, seconds = timed(lambda: self.bridged.forward(given, dict(options)))
        finally:
            self.bridged.solver = whole
        record.short.append(seconds)
        record.short_costs.append(float(self.theirs.objective.error_metric().detach().sum()))

    def _begin(self, given: dict[str, Tensor]) -> None:
        objective = self.theirs.objective
        objective.update(given)
        unknowns = sum(variable.dof() for variable in objective.optim_vars.values())
        self.record = Record(len(objective.cost_functions), unknowns, objective.batch_size)
        RECORDS.append(self.record)

    def _gradients(self, given: dict[str, Tensor], options: dict[str, Any]) -> None:
        """All modes, along one direction of the data, against central differences of converged solves."""
        found = differentiable_data(self.theirs.objective, given)
        if not found:
            return
        generator = torch.Generator().manual_seed(0)
        directions = {name: random_like(tensor, generator) for name, tensor in found.items()}
        weights: dict[str, Tensor] = {}

        def along(layer: Any, size: float) -> Tensor:
            moved = {name: tensor + size * directions[name] for name, tensor in found.items()}
            with torch.no_grad():
                return scalar(layer.forward({**given, **moved})[0], weights)

        h = 1e-5 if next(iter(found.values())).dtype == torch.float64 else 1e-2
        scalar(self.bridged.forward({**given, **found})[0], weights)
        truth = float((along(self.bridged, h) - along(self.bridged, -h)) / (2 * h))
        assert self.record is not None
        for mode, more in MODES.items():
            self.record.gradients[mode] = self._one_mode(mode, more, given, found, directions, weights, truth, options)
            tell()

    def _one_mode(self, mode, more, given, found, directions, weights, truth, options):
        kept = {k: v for k, v in options.items() if k not in ("backward_mode", "track_best_solution")}
        seconds, slopes, gradients = [], [], []
        for layer in (self.theirs, self.bridged):
            leaves = {name: tensor.clone().requires_grad_() for name, tensor in found.items()}

            def call(layer: Any = layer, leaves: Any = leaves) -> Any:
                inputs = {**{k: v.detach() for k, v in given.items()}, **leaves}
                values, _ = layer.forward(inputs, {**kept, "backward_mode": mode, **more})
                return torch.autograd.grad(scalar(values, weights), list(leaves.values()), allow_unused=True)

            try:
                call()
                got, took = timed(call)
            except Exception as error:
                print(
                    f"  {mode}, {'theirs' if layer is self.theirs else 'ours'}: {type(error).__name__}: {error}"[:300]
                )
                seconds.append(float("nan"))
                slopes.append(float("nan"))
                gradients.append(torch.tensor([float("nan")]))
                continue
            seconds.append(took)
            pairs = zip(got, leaves.values(), strict=True)
            full = [torch.zeros_like(leaf) if each is None else each for each, leaf in pairs]
            slopes.append(float(sum((g * directions[n]).sum() for n, g in zip(leaves, full, strict=True))))
            gradients.append(torch.cat([g.flatten() for g in full]))
        errors = [abs(slope - truth) / max(abs(truth), 1e-12) for slope in slopes]
        nan = any(len(g) == 1 and bool(g.isnan()) for g in gradients)
        apart = (
            float("nan") if nan else float((gradients[0] - gradients[1]).norm() / gradients[1].norm().clamp_min(1e-30))
        )
        return [*seconds, *errors, apart]


def steps_of(optimizer: Any, info: Any) -> int:
    """How many steps Theseus has taken, of the problem of the batch that took most."""
    most = getattr(getattr(optimizer, "params", None), "max_iterations", 1)  # a linear optimizer takes one
    taken = torch.as_tensor(getattr(info, "converged_iter", -1))
    return max(1, int(torch.where(taken < 0, most, taken).max()))


def differentiable_data(objective: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that the program differentiates; where there are none, its auxiliary vectors up to 10,000 numbers."""
    asked = {n: t.detach() for n, t in given.items() if t.requires_grad and n in objective.aux_vars}
    if asked:
        return asked
    found = {}
    for name, variable in objective.aux_vars.items():
        now: Any = given.get(name, variable.tensor)
        tensor = now.detach()
        groups = (th.SO2, th.SE2, th.SO3, th.SE3)
        if tensor.is_floating_point() and not isinstance(variable, groups) and tensor.numel() <= 10_000:
            found[name] = tensor
    return found


def scalar(values: dict[str, Tensor], weights: dict[str, Tensor]) -> Tensor:
    """A fixed random combination of all values."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in values.items():
        if name not in weights:
            weights[name] = random_like(tensor.detach(), generator)
    return sum((weights[name] * tensor).sum() for name, tensor in values.items())  # type: ignore[return-value]


def random_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)


def tell() -> None:
    for listener in LISTENERS:
        listener()


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


def _optimize(self: Any, **options: Any) -> Any:
    """An optimizer that a program calls itself: a layer around it."""
    if TOKEN in options:
        return original_optimize(self, **options)
    if not hasattr(self, "_pair"):
        self._pair = Pair(self, vectorize=self.objective.vectorized)
    return self._pair.forward({}, options)[1]


def exchange() -> None:
    """From now on `theseus.TheseusLayer` is `Pair`."""
    th.TheseusLayer = Pair
    th.optimizer.Optimizer.optimize = _optimize
