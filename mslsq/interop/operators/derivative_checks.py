"""The first call of every shape looks whether an operator's derivatives are those of its values.

Along random directions, at points close to those of the call, on a few lanes: what `backward`, `jvp` and `second` give
against central differences, extrapolated (Ridders). A derivative that is wrong by more than a hundredth in float32, or
a millionth in float64, is refused. The points differ a little from the user's, since at those there may be kinks.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mslsq.diagnostics.ridders import central_differences
from mslsq.interop.operators.errors import OperatorError
from mslsq.interop.operators.lanes import kind_of, lanes_of
from mslsq.interop.operators.running import Running

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}
MOVES = (1e-3, 1e-3, 1e-2, 1e-2, 1e-2)
"""How far from the user's points, by their size, each attempt looks."""
AGREEING = 2
"""The attempts that must agree: a kink may spoil others."""


class DerivativeChecks:
    """What is checked of one operator, once per shape."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._done: set[Any] = set()

    def lanes(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Does every lane depend on its own inputs only, whatever the number of lanes?"""
        contract = self._running.contract
        if contract.one_lane or lanes_of(inputs) == 1 or not self._is_new("lanes", inputs):
            return
        for lane in (0, lanes_of(inputs) - 1):
            self._alone(inputs, results, lane)

    def _alone(self, inputs: Sequence[Tensor], results: Sequence[Tensor], lane: int) -> None:
        """Has a lane the same results in a call without the others?

        Not two lanes at once: of two there are no others, and what reads its neighbour finds it there.
        """
        alone = self._running.forward(_taken(inputs, [lane]))
        for one, expected in zip(alone, _taken(results, [lane]), strict=True):
            near = torch.isclose(one, expected, rtol=_tolerance(one), atol=1e-12, equal_nan=True)
            if not bool(near.all()):
                raise OperatorError(
                    f"{self._running.contract.name}: a lane has other results in a call with others than without them "
                    f"({float(one[~near][0]):.6g}, {float(expected[~near][0]):.6g}). Its functions must treat the "
                    "entries of the leading axis apart; where they take one lane a call, say lanes='loop'; where they "
                    "are random, draw the numbers outside."
                )

    def kept(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Copies of the inputs of a first call, for `unchanged` and `repeated` after it; none of another."""
        return [x.clone() for x in inputs] if self._is_new("values", inputs) else []

    def unchanged(self, inputs: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
        """Has the operator left its inputs as they were `kept`?"""
        contract = self._running.contract
        for name, one, before in zip(contract.inputs, inputs, kept, strict=False):
            if not torch.equal(torch.nan_to_num(one), torch.nan_to_num(before)):
                raise OperatorError(
                    f"{contract.name}: it changes its input {name!r}, which is the caller's own memory. Its functions "
                    "must write into tensors that they have made; let it copy the input first."
                )

    def repeated(self, kept: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Does it give the same again?"""
        if not kept:
            return
        sample = _sample(lanes_of(kept))
        again = self._running.forward(_taken(kept, sample))
        for one, expected in zip(again, _taken(results, sample), strict=True):
            size = torch.nan_to_num(expected.abs()).amax() if expected.numel() else 0.0
            near = torch.isclose(one, expected, rtol=0, atol=float(_tolerance(one) * size), equal_nan=True)
            if not bool(near.all()):
                raise OperatorError(
                    f"{self._running.contract.name}: called again with the same inputs it gives other values "
                    f"({float(one[~near][0]):.6g}, {float(expected[~near][0]):.6g}). It must be deterministic: draw "
                    "random numbers outside, and hand them in."
                )

    def backward(self, inputs: Sequence[Tensor]) -> None:
        """Is Jᵀ·cotangents right for every input?"""
        running = self._running

        def products(at: list[Tensor], k: int, direction: Tensor, cotangents: list[Tensor]) -> Tensor:
            lanes = lanes_of(cotangents)
            (gradient,) = running.backward(at, cotangents, [k], [lanes])
            return (gradient * direction).reshape(lanes, -1).sum(1)

        self._compared("backward", inputs, products)

    def jvp(self, inputs: Sequence[Tensor]) -> None:
        """Is J·tangents right for every input?"""
        if not callable(self._running.contract.jvp):
            return

        def products(at: list[Tensor], k: int, direction: Tensor, cotangents: list[Tensor]) -> Tensor:
            return _product(self._running.jvp(at, [direction], [k]), cotangents)

        self._compared("jvp", inputs, products)

    def second(self, inputs: Sequence[Tensor]) -> None:
        """Is the derivative of `backward` along a tangent right, for all inputs at once?"""
        running = self._running
        if not callable(running.contract.second) or not self._is_new("second", inputs):
            return
        moving = [k for k, x in enumerate(inputs) if x.is_floating_point()]
        sample = _taken(inputs, _sample(lanes_of(inputs)))
        lanes = [lanes_of(sample)] * len(moving)
        cotangents = [_random(one, number) for number, one in enumerate(running.forward(sample))]

        for k in moving:

            def values(at: list[Tensor]) -> list[Tensor]:
                return running.backward(at, cotangents, moving, lanes)

            def claimed(at: list[Tensor], direction: Tensor, weights: list[Tensor], k: int = k) -> Tensor:
                return _product(running.second(at, cotangents, [direction], [k], moving, lanes), weights)

            self._agree("second", k, sample, values, claimed)

    def _compared(self, what: str, inputs: Sequence[Tensor], products: Callable[..., Tensor]) -> None:
        if not self._is_new(what, inputs):
            return
        sample = _taken(inputs, _sample(lanes_of(inputs)))
        for k, x in enumerate(inputs):
            if x.is_floating_point():

                def claimed(at: list[Tensor], direction: Tensor, weights: list[Tensor], k: int = k) -> Tensor:
                    return products(at, k, direction, weights)

                self._agree(what, k, sample, self._running.forward, claimed)

    def _agree(
        self,
        what: str,
        k: int,
        inputs: list[Tensor],
        values: Callable[[list[Tensor]], list[Tensor]],
        claimed: Callable[[list[Tensor], Tensor, list[Tensor]], Tensor],
    ) -> None:
        """Where nothing can be measured (at NaN, say) it is looked again in the next call.

        Raises:
            OperatorError: what is claimed of the derivative along input k is not what differences give.
        """
        agreed, differing = 0, []
        for at, direction, seed in _attempts(inputs, k):
            outputs = values(at)
            if not any(one.numel() for one in outputs):
                return
            tolerance = max(_tolerance(one) for one in (inputs[k], *outputs))
            weights = [_random(one, seed + number) for number, one in enumerate(outputs)]
            measured, size, uncertainty = _measured(values, at, k, direction, weights)
            analytic = claimed(at, direction, weights).detach()
            known = torch.isfinite(measured) & (uncertainty <= tolerance * size + 1e-300)
            if not bool(known.any()):
                continue
            wrong = known & ~((analytic - measured).abs() <= tolerance * size + uncertainty)
            if bool(wrong.any()):
                lane = int(wrong.nonzero()[0, 0])
                differing.append((float(analytic[lane]), float(measured[lane])))
            else:
                agreed += 1
            if agreed >= AGREEING:
                return
        if not agreed:
            self._done.discard((what, kind_of(inputs)))
        if differing:
            contract = self._running.contract
            self._done.discard((what, kind_of(inputs)))
            analytic, measured = differing[0]
            raise OperatorError(
                f"{contract.name}: {what} is wrong for {contract.inputs[k]!r}: along a random direction it gives "
                f"{analytic:.6g}, differences of its values {measured:.6g} ({len(differing)} of "
                f"{len(differing) + agreed} places). check=False takes it as it is."
            )

    def _is_new(self, what: str, inputs: Sequence[Tensor]) -> bool:
        key = what, kind_of(inputs)
        if not self._running.contract.check or key in self._done:
            return False
        self._done.add(key)
        return True


def _attempts(inputs: list[Tensor], k: int) -> Iterator[tuple[list[Tensor], Tensor, int]]:
    """Places near those given, and directions for input k; the same in every process."""
    for number, move in enumerate(MOVES):
        seed = 100 * number
        at = [
            x + move * (1 + x.abs()) * _random(x, seed + place) if x.is_floating_point() else x
            for place, x in enumerate(inputs)
        ]
        yield at, _random(inputs[k], seed + 50) * (1 + inputs[k].abs()), seed + 60


def _measured(
    values: Callable[[list[Tensor]], list[Tensor]], at: list[Tensor], k: int, direction: Tensor, weights: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Per lane the weighted derivative along the direction by differences, its size without cancellation, and its
    uncertainty."""

    def flat(step: Tensor) -> Tensor:
        places = list(at)
        places[k] = at[k] + step * direction
        return torch.cat([one.reshape(len(one), -1) for one in values(places)], 1).reshape(-1)

    lanes = lanes_of(weights)
    zero = torch.zeros(1, dtype=direction.dtype, device=direction.device)
    derivative, error = central_differences(flat, zero, torch.full_like(zero, 0.01))
    weight = torch.cat([one.reshape(lanes, -1) for one in weights], 1)
    terms, errors = derivative[:, 0].reshape(lanes, -1) * weight, error[:, 0].reshape(lanes, -1) * weight
    return terms.sum(1), terms.abs().sum(1), errors.abs().sum(1)


def _product(results: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Σ result · weight in every lane."""
    products = [(one * weight).reshape(len(weight), -1).sum(1) for one, weight in zip(results, weights, strict=True)]
    return torch.stack(products).sum(0)


def _random(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device="cpu").to(like.device)


def _sample(lanes: int) -> list[int]:
    """The first, the middle and the last lane."""
    return sorted({0, lanes // 2, lanes - 1})


def _taken(tensors: Sequence[Tensor], lanes: list[int]) -> list[Tensor]:
    return [x.detach() if len(x) == 1 else x.detach()[lanes] for x in tensors]


def _tolerance(x: Tensor) -> float:
    return TOLERANCE.get(x.dtype, 0.1)
