"""Levenberg–Marquardt as an optimizer of PyTorch's form: `step(closure)` with a closure that returns residuals."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mslsq.linear.iterative.allowance import FIRST, Allowance
from mslsq.losses import RobustLoss
from mslsq.optim.errors import OptimizerError
from mslsq.optim.evaluation import Closure, Evaluated, Repeatable, check_graph, evaluated
from mslsq.optim.jacobian import Jacobian, RowSource
from mslsq.optim.layers import LayerRows, Recording
from mslsq.optim.linearization import Linearization, SystemOptions, rescaled
from mslsq.optim.numbers import Numbers
from mslsq.optim.parameters import Active, active_parameters, check_parameter
from mslsq.optim.per_sample import PerSample, SampleRows
from mslsq.optim.report import StepReport, StepStatus
from mslsq.optim.trials import Trials
from mslsq.validation import instance_of, integer, number, one_of

LEAST_GAIN = 1e-4
"""A trial is accepted if it lowers the loss by this share of what the model predicts."""

SHRINK = 0.2
"""Least share of the damping that an accepted step leaves. After 120 steps of two regressions (medians of three seeds),
0.1 is as good; μ/10 and 10μ, as is common for networks, ends 20 to 30 times higher and tries twice as often."""

ROUNDING = 16
"""Units in the last place of the loss by which two evaluations at one minimum are taken to differ."""

LITTLE = 1e3
"""A trial that changes nothing says that the minimum is reached if the model promised at most that many roundings."""

LEAST_DAMPING, MAX_DAMPING = 1e-16, 1e16


class LevenbergMarquardt(Optimizer):
    """Levenberg–Marquardt for networks and other models: fits parameters so that ½Σρ(r²) is smallest.

    Every step computes the Jacobian J of the residuals r in the parameters θ and solves
    (JᵀJ + μD + λ) p = −(Jᵀr + λθ), with λ the weight decay and D the `relative_damping` of the groups. The damping μ is
    steered by the ratio of actual to predicted decrease on the same batch (H. B. Nielsen, "Damping parameter in
    Marquardt's method", IMM-REP-1999-05): a trial that does not lower the loss is taken back, to the bit, and tried
    again with more damping.

    D is the identity within a group: column lengths of the Jacobian (Marquardt's D) help late on a smooth surface (6e-7
    instead of 8e-6 after 120 steps), but are led astray by sin(12x) (17 instead of 6e-5).

    Args:
        params: parameters or groups of them, as for every optimizer of PyTorch; float32 or float64, all of one dtype
            and on one device. Those that do not require grad stay as they are.
        lr: the share of the step that is taken. 1 is the full step of the method; learning-rate schedulers change it.
        damping: μ of the first step, relative to the mean squared column length of the first Jacobian.
        min_damping: μ never falls below. With mini-batches it holds back steps that fit a batch exactly.
        weight_decay: λ; the loss has ½λ|θ|² in addition, exactly (a ridge, not decoupled).
        relative_damping: D of a group: larger values hold its parameters back.
        loss: a robust loss of `mslsq.losses`, per residual (of |r| where r is complex). None is least squares.
        system: `"normal"` solves n × n equations by Cholesky, `"dual"` m × m ones (m residuals, n parameters), `"cg"`
            forms no matrix. All have the same solution. `"auto"` takes the smaller of the dense ones if it fits into
            `memory`, else conjugate gradients.
        max_trials: how many dampings one step tries before it leaves the parameters as they are.
        memory: bytes for the matrices of a step. Blocks of the Jacobian are made so large, too.
        cg_tolerance: where conjugate gradients stop: the residual of the system, relative to its right-hand side.
        cg_max_iterations: where they stop at the latest; each takes three passes over the batch.
        buffers: tensors that evaluations write into, `model.buffers()`: statistics of batch normalisation, say. After a
            step they are as after one evaluation at its start, whatever was tried.

    `lr`, `weight_decay` and `relative_damping` may differ by group. The damping is kept from step to step and batch to
    batch, and is in the `state_dict`. `report` says what the last step did. Gradients (`.grad`) are neither read nor
    written. Linear systems are solved in float64 for float32 parameters, too.

    Raises:
        OptimizerError: options out of range; parameters that are complex, sparse, of half precision, or of several
            dtypes or devices.

    >>> import torch, mslsq
    >>> x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    >>> model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    >>> optimizer = mslsq.optim.LevenbergMarquardt(model.parameters())
    >>> for _ in range(30):
    ...     loss = optimizer.step(lambda: model(x) - torch.sin(3 * x))
    >>> bool(loss < 1e-6)
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        *,
        damping: float = 1e-3,
        min_damping: float = 0.0,
        weight_decay: float = 0.0,
        relative_damping: float = 1.0,
        loss: RobustLoss | None = None,
        system: str = "auto",
        max_trials: int = 10,
        memory: int = 2**29,
        cg_tolerance: float = 1e-3,
        cg_max_iterations: int = 200,
        buffers: Iterable[Tensor] = (),
    ):
        if isinstance(params, torch.nn.Module):
            raise OptimizerError(
                "LevenbergMarquardt: params are the parameters of a model, not the model: write model.parameters()."
            )
        number("LevenbergMarquardt: damping", damping, above=0, error=OptimizerError)
        number("LevenbergMarquardt: min_damping", min_damping, least=0, error=OptimizerError)
        number("LevenbergMarquardt: cg_tolerance", cg_tolerance, above=0, below=1, error=OptimizerError)
        one_of("LevenbergMarquardt: system", system, ("auto", "normal", "dual", "cg"), OptimizerError)
        for name, given in (("max_trials", max_trials), ("memory", memory), ("cg_max_iterations", cg_max_iterations)):
            integer(f"LevenbergMarquardt: {name}", given, 1, error=OptimizerError)
        if loss is not None:
            hint = "Write loss=mslsq.Huber(1.0), say."
            instance_of("LevenbergMarquardt: loss", loss, RobustLoss, hint, OptimizerError)
        self.initial_damping, self.min_damping = float(damping), float(min_damping)
        self.loss, self.max_trials = loss, max_trials
        self.system = SystemOptions(system, memory, cg_tolerance, cg_max_iterations)
        self.buffers = list(buffers)
        self.report: StepReport | None = None
        self._is_checked = False
        self._reads_layers = True
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "relative_damping": relative_damping})

    def __getstate__(self) -> dict[str, Any]:
        ours = ("initial_damping", "min_damping", "loss", "max_trials", "system", "buffers", "report")
        ours = (*ours, "_is_checked", "_reads_layers")
        return super().__getstate__() | {name: getattr(self, name) for name in ours}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters with options of their own (`lr`, `weight_decay`, `relative_damping`).

        Raises:
            OptimizerError: as when the optimizer is made.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            for parameter in group["params"]:
                check_parameter(parameter)
            number("LevenbergMarquardt: weight_decay", group["weight_decay"], least=0, error=OptimizerError)
            number("LevenbergMarquardt: relative_damping", group["relative_damping"], above=0, error=OptimizerError)
            if not isinstance(group["lr"], Tensor):
                number("LevenbergMarquardt: lr", group["lr"], least=0, error=OptimizerError)
        except OptimizerError:
            del self.param_groups[-1]
            raise

    @property
    def damping(self) -> float:
        """μ of the next step."""
        return self._memory()["damping"]

    @torch.no_grad()
    def step(self, closure: Closure) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step: evaluates the closure once for the Jacobian and once per trial.

        Args:
            closure: returns the residuals of a batch at the current parameters: a tensor of any shape, real or complex,
                or a tuple of such tensors. Prediction minus target; not squared, not summed, without backward(). Called
                several times within a step, it must be about the same batch. Random numbers of PyTorch (dropout) are
                the same in all evaluations of a step. A `PerSample` is one, too.

        Returns:
            The loss before the step, ½Σρ(r²) + ½ weight_decay |θ|², a sum and no mean; 0-dim, of the parameters' dtype.

        Raises:
            ResidualError: what the closure returned are no residuals, or they are not finite.
            NonDeterministicResidualError: two evaluations at the same parameters differ.
        """
        if not callable(closure):
            raise TypeError(
                "LevenbergMarquardt.step needs a closure that returns residuals: optimizer.step(lambda: model(x) - y). "
                f"Given was {'a tensor' if isinstance(closure, Tensor) else repr(closure)}."
            )
        active = active_parameters(self.param_groups)
        evaluation = Repeatable(closure, active.device, self.buffers)
        recording = Recording() if self._reads_layers and not isinstance(closure, PerSample) else None
        if recording is None:
            at_start = evaluated(evaluation.first, active.tensors)
        else:
            with recording:
                at_start = evaluated(evaluation.first, active.tensors)
        check_graph(at_start)
        numbers = Numbers(active.device)
        trials = Trials(evaluation, active, self.loss, at_start, numbers)
        if not self._is_checked:
            trials.check_repeatable()
            self._is_checked = True
        sources = self._sources(closure, evaluation, active, at_start, recording)
        jacobian = Jacobian(at_start.vector(), active.tensors, sources, numbers)
        model = Linearization(jacobian, rescaled(at_start, self.loss), active, numbers)
        self.report = self._search(model, trials)
        self._reads_layers &= not sources or self.report.jacobian in ("layers", "samples", "products")
        if self.report.status == StepStatus.REJECTED:
            trials.check_repeatable()
        return torch.full((), self.report.loss, dtype=active.dtype, device=active.device)

    def _search(self, model: Linearization, trials: Trials) -> StepReport:
        """Try steps of growing damping until one lowers the loss.

        Where numbers are read for nothing a trial is made only of a step that is worth it. Else it is made first, and
        all that is to be known is read with its loss: one question to the device for each.
        """
        memory, numbers = self._memory(), trials.numbers
        if numbers.are_here or memory["unit"] is None:
            model.check()
        if memory["unit"] is None:
            memory["unit"] = model.mean_squared_column() or None
        allowance = None if numbers.are_here else Allowance(memory.get("cg_iterations", FIRST))
        system = model.system(self.system, memory["unit"] or 1.0, allowance)
        accepted, gain, iterations = None, math.nan, numbers.later(system.iterations)
        status, number_of_trials, damping = StepStatus.REJECTED, 0, memory["damping"]
        eps = torch.finfo(trials.active.dtype).eps
        while number_of_trials < self.max_trials and status == StepStatus.REJECTED:
            damping, gain = memory["damping"], math.nan
            step, solved = system.solve(damping)
            step = step * model.active.lr
            definite, promised = numbers.later(solved), numbers.later(model.predicted_decrease(step, system))
            trial = None if numbers.are_here else trials.after(step)
            iterations = numbers.later(system.iterations)
            wanted = solved.new_full((1,), self.system.cg_tolerance, dtype=model.dtype)
            allowed = None if allowance is None else allowance.next(wanted, solved[None])
            allowed = None if allowed is None else numbers.later(allowed)
            model.check()
            if allowance is not None and allowed is not None:
                allowance.iterations = memory["cg_iterations"] = int(allowed.value)
            if not model.jacobian.rows_are_right():
                system = model.system(self.system, memory["unit"] or 1.0, allowance)
                continue
            rounding = ROUNDING * eps * trials.cost.value
            predicted = promised.value if definite.value else math.nan
            if abs(predicted) <= rounding:
                status = StepStatus.LEVEL
                if predicted > 0:  # as a long step may promise more
                    memory["damping"] = self._clamped(damping * SHRINK)
                break
            number_of_trials += 1
            if predicted > 0:  # negative: shares `lr` that differ by group
                trial = trial or trials.after(step)
                gained = trials.cost.value - trial.cost.value
                gain = gained / predicted if math.isfinite(gained) else math.nan
                if gain >= LEAST_GAIN:
                    trials.keep(trial.moved)
                    status, accepted = StepStatus.ACCEPTED, trial
                elif abs(gained) <= rounding and predicted <= LITTLE * rounding:
                    status = StepStatus.LEVEL
            self._steer(memory, gain, status == StepStatus.ACCEPTED)
        return StepReport(
            status=status,
            loss=trials.cost.value,
            loss_after=(trials if accepted is None else accepted).cost.value,
            gain=gain,
            damping=damping,
            next_damping=memory["damping"],
            gradient_norm=model.gradient_norm.value,
            trials=number_of_trials,
            system=system.name,
            jacobian=model.way,
            cg_iterations=int(iterations.value),
        )

    def _steer(self, memory: dict[str, Any], gain: float, accepted: bool) -> None:
        """Nielsen's rule: μ ← μ max(s, 1 − (2ϱ − 1)³), ν ← 2 on success; μ ← μν, ν ← 2ν on failure."""
        if accepted:
            factor = max(SHRINK, 1 - (2 * min(gain, 1e3) - 1) ** 3)
            memory["growth"] = 2.0
        else:
            factor = memory["growth"]
            memory["growth"] = min(2 * factor, MAX_DAMPING)
        memory["damping"] = self._clamped(memory["damping"] * factor)

    def _clamped(self, damping: float) -> float:
        return min(max(damping, self.min_damping, LEAST_DAMPING), MAX_DAMPING)

    def _memory(self) -> dict[str, Any]:
        """What is kept from step to step, with the first parameter, so that the state dict has it."""
        memory = self.state[self.param_groups[0]["params"][0]]
        if not memory:
            memory.update(damping=max(self.initial_damping, self.min_damping), growth=2.0, unit=None)
        return memory

    def _sources(
        self,
        closure: Closure,
        evaluation: Repeatable,
        active: Active,
        at_start: Evaluated,
        recording: Recording | None,
    ) -> list[RowSource]:
        """The ways to rows of the Jacobian that may be better than the graph's."""
        if isinstance(closure, PerSample):
            rows = sum(part.numel() for part in at_start.parts)
            return [SampleRows(closure, active.tensors, evaluation, rows)]
        if recording is None:
            return []
        layers = LayerRows(at_start.parts, active.tensors, recording.calls)
        return [layers] if layers.is_worth_it else []
