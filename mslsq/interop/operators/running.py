"""Runs the functions of a contract on tensors with a lane axis, and looks whether they did what it says."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mslsq.interop.operators.contract import Contract, Tensors
from mslsq.interop.operators.errors import OperatorError
from mslsq.interop.operators.lanes import as_tensors, called, joined, lanes_of, summed_to

OWN = -1


class Running:
    """The four functions, each from tensors with lanes to tensors with lanes."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.returns_one: bool | None = None
        """Does `forward` return a tensor, not a tuple? Known after its first call."""

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The values in all lanes."""
        contract = self.contract

        def values(given: Tensors) -> list[Tensor]:
            results = contract.forward(*given)
            self.returns_one = isinstance(results, Tensor)
            return [self._value(one, given) for one in as_tensors(contract, "it", results)]

        pieces = called(contract, values, [inputs], [range(len(inputs))])
        results = [joined(list(parts)) for parts in zip(*pieces, strict=True)]
        lanes = lanes_of(inputs)
        for one in results:
            if one.ndim == 0 or len(one) != lanes:
                raise OperatorError(
                    f"{contract.name}: a result has the shape {tuple(one.shape)} for {lanes} lanes; one entry per lane "
                    "was expected. Where the operator takes one lane a call, say so: lanes='loop'."
                )
        return results

    def backward(
        self, inputs: Sequence[Tensor], cotangents: Sequence[Tensor], wanted: Sequence[int], groups: Sequence[int]
    ) -> list[Tensor]:
        """Jᵀ·cotangents for the `wanted` inputs, `groups` entries each: neighbouring lanes are added up."""
        contract = self.contract
        backward = contract.backward
        assert backward is not None  # who calls has looked

        def gradients(given: Tensors, pulled: Tensors) -> list[Tensor]:
            return self._gradients("backward", backward(given, pulled, wanted), given, wanted)

        owners = [range(len(inputs)), [OWN] * len(cotangents)]
        return self._in_groups(
            called(contract, gradients, [inputs, cotangents], owners, self._pieces(wanted, groups)), groups
        )

    def jvp(self, inputs: Sequence[Tensor], tangents: Sequence[Tensor], moved: Sequence[int]) -> list[Tensor]:
        """J·tangents; `moved` says whose tangents are given."""
        contract = self.contract
        if contract.jvp == "rows":
            return self._by_rows(inputs, tangents, moved)
        if contract.jvp == "differences":
            return _differences(self.forward, inputs, tangents, moved)

        def derivative(given: Tensors, directions: Tensors) -> list[Tensor]:
            assert callable(contract.jvp)
            results = contract.jvp(given, _spread(given, directions, moved))
            return [self._value(one, given) for one in as_tensors(contract, "jvp", results)]

        pieces = called(contract, derivative, [inputs, tangents], [range(len(inputs)), moved])
        return [joined(list(parts)) for parts in zip(*pieces, strict=True)]

    def second(
        self,
        inputs: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        tangents: Sequence[Tensor],
        moved: Sequence[int],
        wanted: Sequence[int],
        groups: Sequence[int],
    ) -> list[Tensor]:
        """The derivative of `backward` along tangents of the inputs: Σ cotangentᵢ ∇²fᵢ · tangents."""
        contract = self.contract
        second = contract.second
        if second == "differences":
            lanes = [lanes_of([*inputs, *cotangents])] * len(wanted)
            results = _differences(lambda at: self.backward(at, cotangents, wanted, lanes), inputs, tangents, moved)
            return [summed_to(one, count) for one, count in zip(results, groups, strict=True)]

        def derivative(given: Tensors, pulled: Tensors, directions: Tensors) -> list[Tensor]:
            assert callable(second)
            results = second(given, pulled, _spread(given, directions, moved), wanted)
            return self._gradients("second", results, given, wanted)

        owners = [range(len(inputs)), [OWN] * len(cotangents), moved]
        pieces = called(contract, derivative, [inputs, cotangents, tangents], owners, self._pieces(wanted, groups))
        return self._in_groups(pieces, groups)

    def _by_rows(self, inputs: Sequence[Tensor], tangents: Sequence[Tensor], moved: Sequence[int]) -> list[Tensor]:
        """J·tangents exactly, with a backward pass for every row of J."""
        lanes = lanes_of([*inputs, *tangents])
        values = [one.expand(lanes, *one.shape[1:]) for one in self.forward(inputs)]
        results = []
        for number, value in enumerate(values):
            rows = []
            for row in range(value[0].numel()):
                cotangents = [torch.zeros(other.shape, dtype=other.dtype, device=other.device) for other in values]
                cotangents[number].reshape(lanes, -1)[:, row] = 1
                gradients = self.backward(inputs, cotangents, moved, [lanes] * len(moved))
                products = [(g * t).reshape(lanes, -1).sum(1) for g, t in zip(gradients, tangents, strict=True)]
                rows.append(torch.stack(products).sum(0))
            results.append(torch.stack(rows, 1).reshape(value.shape))
        return results

    def _pieces(self, wanted: Sequence[int], groups: Sequence[int]) -> int:
        """An input without a lane axis has one gradient a call."""
        return max([count for one, count in zip(wanted, groups, strict=True) if one in self.contract.shared], default=1)

    @staticmethod
    def _in_groups(pieces: list[list[Tensor]], groups: Sequence[int]) -> list[Tensor]:
        return [
            summed_to(joined(list(parts)), count)
            for parts, count in zip(zip(*pieces, strict=True), groups, strict=True)
        ]

    def _value(self, one: Tensor, given: Tensors) -> Tensor:
        contract = self.contract
        if not one.is_floating_point():
            raise OperatorError(f"{contract.name}: a result is {one.dtype}; numbers with derivatives are expected.")
        if one.device != given[0].device:
            raise OperatorError(f"{contract.name}: the inputs are on {given[0].device}, a result on {one.device}.")
        if any(_same_memory(one, other) for other in given):
            one = one.clone()
        return one[None] if contract.one_lane else one

    def _gradients(
        self, what: str, results: Sequence[Tensor | None], given: Tensors, wanted: Sequence[int]
    ) -> list[Tensor]:
        """The wanted ones of `backward` or `second`, with a lane axis."""
        contract = self.contract
        if not isinstance(results, tuple | list) or len(results) != len(given):
            number = len(results) if isinstance(results, tuple | list) else "something else"
            raise OperatorError(
                f"{contract.name}: {what} must return a tuple with one gradient per input "
                f"({', '.join(contract.inputs)}), not {number}."
            )
        found = []
        for k in wanted:
            one, x = results[k], given[k]
            if one is None:
                raise OperatorError(
                    f"{contract.name}: {what} returns None for {contract.inputs[k]!r}, which is differentiated; return "
                    "zeros where the derivative is zero."
                )
            if one.shape != x.shape or one.dtype != x.dtype or one.device != x.device:
                raise OperatorError(
                    f"{contract.name}: {what} returns {one.dtype} of shape {tuple(one.shape)} on {one.device} for "
                    f"{contract.inputs[k]!r}, which is {x.dtype} of shape {tuple(x.shape)} on {x.device}."
                )
            one = one.clone() if any(_same_memory(one, other) for other in given) else one
            found.append(one[None] if contract.one_lane or k in contract.shared else one)
        return found


def _spread(given: Tensors, directions: Tensors, moved: Sequence[int]) -> Tensors:
    """One tangent per input: zeros for those that stay."""
    by_input = dict(zip(moved, directions, strict=True))
    return tuple(by_input[k] if k in by_input else torch.zeros_like(x) for k, x in enumerate(given))


def _differences(
    function: Callable[[Sequence[Tensor]], list[Tensor]],
    inputs: Sequence[Tensor],
    tangents: Sequence[Tensor],
    moved: Sequence[int],
) -> list[Tensor]:
    """The derivative of a function of lanes along tangents, by central differences: the error is some ε^⅔ of its size.
    Every lane has a step of its own."""
    size = torch.stack(torch.broadcast_tensors(*[_largest(inputs[k]) for k in moved])).amax(0)
    speed = torch.stack(torch.broadcast_tensors(*[_largest(tangent) for tangent in tangents])).amax(0)
    step = torch.finfo(tangents[0].dtype).eps ** (1 / 3) * (1 + size) / torch.where(speed > 0, speed, 1.0)

    def by_lane(like: Tensor) -> Tensor:
        return step.reshape(-1, *[1] * (like.ndim - 1))

    def at(sign: float) -> list[Tensor]:
        places = list(inputs)
        for k, tangent in zip(moved, tangents, strict=True):
            places[k] = places[k] + sign * by_lane(tangent) * tangent
        return places

    ahead, behind = function(at(1.0)), function(at(-1.0))
    return [(a - b) / (2 * by_lane(a)) for a, b in zip(ahead, behind, strict=True)]


def _largest(x: Tensor) -> Tensor:
    """The largest magnitude in every lane."""
    return x.abs().reshape(len(x), -1).amax(1)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
