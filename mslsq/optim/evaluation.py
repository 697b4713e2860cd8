"""Evaluations of a closure: always with the same random numbers and buffers, checked, as one real vector."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.losses import RobustLoss
from mslsq.optim.errors import NO_GRAPH, ResidualError

Closure = Callable[[], Any]


class Evaluated(NamedTuple):
    """What a closure returned, in the form that the linear algebra needs."""

    parts: list[Tensor]
    """The tensors that were returned; complex ones as real pairs in a last axis. With their graphs."""
    pairs: list[bool]
    """Which of them were complex."""

    @torch.enable_grad()
    def vector(self) -> Float[Tensor, "m"]:
        return torch.cat([part.reshape(-1) for part in self.parts])

    def squared(self) -> Float[Tensor, "m"]:
        """For every entry of the vector the square that a loss sees: r², of complex residuals |r|²."""
        squares = [
            part.square().sum(-1, keepdim=True).expand_as(part) if pair else part.square()
            for part, pair in zip(self.parts, self.pairs, strict=True)
        ]
        return torch.cat([square.detach().reshape(-1) for square in squares])

    def paired(self) -> Tensor:
        """(m,) Is this entry one of a complex pair?"""
        kinds = zip(self.parts, self.pairs, strict=True)
        return torch.cat([torch.full((part.numel(),), pair, device=part.device) for part, pair in kinds])

    def cost(self, loss: RobustLoss | None) -> Float[Tensor, ""]:
        """½Σρ(r²), summed in float64: rounding of the sum shall not decide about a step."""
        squared = self.squared().to(torch.float64 if self.parts[0].device.type != "mps" else torch.float32)
        rho = squared if loss is None else loss(squared)
        if any(self.pairs):
            rho = torch.where(self.paired(), 0.5 * rho, rho)  # ρ of a pair stands at both of its entries
        return 0.5 * rho.sum()


class Repeatable:
    """A closure whose evaluations within one step see the same random numbers and the same buffers.

    After the step the generators and buffers are as after one evaluation at its start, as with any other optimizer.
    Seen are PyTorch's own generators of the CPU and of the parameters' device.
    """

    def __init__(self, closure: Closure, device: torch.device, buffers: Sequence[Tensor]):
        self.closure, self.device, self.buffers = closure, device, buffers
        self.before = self._state()
        self.after = self.before

    def first(self) -> Any:
        result = self.closure()
        self.after = self._state()
        return result

    def again(self) -> Any:
        with self.replayed():
            return self.closure()

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Inside, random numbers and buffers are those that the first evaluation saw."""
        self._restore(self.before)
        try:
            yield
        finally:
            self._restore(self.after)

    def _state(self) -> tuple[list[Tensor], list[Tensor]]:
        generators = [torch.get_rng_state()]
        if self.device.type not in ("cpu", "meta"):
            generators.append(torch.get_device_module(self.device).get_rng_state(self.device))
        return generators, [buffer.detach().clone() for buffer in self.buffers]

    def _restore(self, state: tuple[list[Tensor], list[Tensor]]) -> None:
        generators, buffers = state
        torch.set_rng_state(generators[0])
        if len(generators) > 1:
            torch.get_device_module(self.device).set_rng_state(generators[1], self.device)
        for buffer, value in zip(self.buffers, buffers, strict=True):
            buffer.data.copy_(value)


@torch.enable_grad()
def evaluated(call: Callable[[], Any], parameters: Iterable[Tensor]) -> Evaluated:
    """Call a closure with grad enabled, and take apart what it returns.

    Raises:
        ResidualError: it called backward(), or did not return real or complex tensors of the parameters' dtype.
    """
    parameters = list(parameters)

    def refuse(parameter: Tensor) -> None:
        raise ResidualError(
            "LevenbergMarquardt: the closure called backward(). It shall only compute residuals and return them, "
            "without backward() and zero_grad(); the optimizer differentiates them itself."
        )

    with ExitStack() as stack:
        for parameter in parameters:
            stack.callback(parameter.register_post_accumulate_grad_hook(refuse).remove)  # pyright: ignore
        returned = call()
    given = list(returned) if isinstance(returned, tuple | list) else [returned]
    dtype = parameters[0].dtype
    for part in given:
        _check(part, dtype)
    if sum(part.numel() for part in given) == 0:
        shapes = ", ".join(str(tuple(part.shape)) for part in given) or "no tensor"
        raise ResidualError(
            f"LevenbergMarquardt: the closure returned no residual: shape {shapes}. Is the batch empty?"
        )
    pairs = [part.is_complex() for part in given]
    parts = [torch.view_as_real(part.resolve_conj()) if part.is_complex() else part for part in given]
    return Evaluated(parts, pairs)


def _check(part: Any, dtype: torch.dtype) -> None:
    if not isinstance(part, Tensor):
        raise ResidualError(
            f"LevenbergMarquardt: the closure returned {type(part).__name__!r}. It must return the residuals: a tensor "
            "of any shape, prediction minus target, or a tuple of such tensors."
        )
    if part.dim() == 0:
        raise ResidualError(
            "LevenbergMarquardt: the closure returned a single number, a loss. Least squares needs the residuals, "
            "before they are squared and summed: return model(x) - y, not ((model(x) - y)**2).mean()."
        )
    expected = (dtype, torch.complex64 if dtype == torch.float32 else torch.complex128)
    if part.dtype not in expected:
        raise ResidualError(
            f"LevenbergMarquardt: the closure returned residuals of dtype {part.dtype}, the parameters are {dtype}. "
            "Give data of that dtype, and leave autocast and half precision out; use model.double() for float64."
        )


def check_graph(at_start: Evaluated) -> None:
    """Raises ResidualError where residuals have no graph."""
    if not any(part.requires_grad for part in at_start.parts):
        raise ResidualError(NO_GRAPH)


def broken(vector: Float[Tensor, "m"], parameters: Iterable[Tensor]) -> ResidualError:
    """What is said of residuals that are not finite."""
    finite = vector.isfinite()
    where = int((~finite).nonzero()[0, 0])
    odd = any(not bool(parameter.isfinite().all()) for parameter in parameters)
    cause = (
        "A parameter itself is not finite: load the last good state."
        if odd
        else "The parameters are finite: look at the data of this batch, at divisions and logarithms in the model."
    )
    return ResidualError(
        f"LevenbergMarquardt: {int((~finite).sum())} of {len(vector)} residuals are NaN or infinite at the current "
        f"parameters, the first is entry {where} of the flattened residuals. {cause} Nothing was changed."
    )
