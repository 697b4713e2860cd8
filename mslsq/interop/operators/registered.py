"""A contract as operators of PyTorch: one node each in recorded graphs, with rules for fake tensors and for `vmap`."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mslsq.interop.operators.contract import Contract
from mslsq.interop.operators.derivative_checks import DerivativeChecks
from mslsq.interop.operators.lanes import kind_of, lanes_of
from mslsq.interop.operators.running import Running
from mslsq.private import below_autograd, without_modes

NAMESPACE = "mslsq_foreign"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_TAKEN: dict[str, int] = {}

Shapes = list[tuple[tuple[int, ...], torch.dtype]]


class Registered:
    """The operators of one contract: `torch.ops.mslsq_foreign.<name>_values`, `_backward`, `_jvp` and `_second`."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.running = Running(contract)
        self.checks = DerivativeChecks(self.running)
        self._shapes: dict[Any, Shapes] = {}
        self._name = _free(contract.name)
        self.overloads = {
            "forward": self._define("_values", "", self._forward, self._fake_values),
            "backward": self._define(
                "_backward", "Tensor[] cotangents, int[] wanted, int[] groups", self._backward, self._fake_gradients
            ),
            "jvp": self._define("_jvp", "Tensor[] tangents, int[] moved", self._jvp, self._fake_values),
            "second": self._define(
                "_second",
                "Tensor[] cotangents, Tensor[] tangents, int[] moved, int[] wanted, int[] groups",
                self._second,
                self._fake_gradients,
            ),
        }

    def _define(self, suffix: str, arguments: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
        name = self._name + suffix
        _LIBRARY.define(f"{name}({', '.join(filter(None, ['Tensor[] inputs', arguments]))}) -> Tensor[]")
        _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
        return getattr(getattr(torch.ops, NAMESPACE), name).default

    def differentiate(self, role: str, rule: Callable[..., Any]) -> None:
        """What autograd calls for the operator of a role."""
        _LIBRARY.impl(self.overloads[role].name().partition("::")[2], rule, "Autograd")

    def __call__(self, role: str, *arguments: Any) -> list[Tensor]:
        """Runs one of them, below autograd."""
        with below_autograd():
            return self.overloads[role](*arguments)

    # what runs

    def _forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        kept = self.checks.kept(inputs)
        results = self.running.forward(inputs)
        self._shapes[kind_of(inputs)] = [(tuple(one.shape[1:]), one.dtype) for one in results]
        self.checks.unchanged(inputs, kept)
        self.checks.lanes(inputs, results)
        self.checks.repeated(kept, results)
        return results

    def _backward(
        self, inputs: Sequence[Tensor], cotangents: Sequence[Tensor], wanted: Sequence[int], groups: Sequence[int]
    ) -> list[Tensor]:
        self.checks.backward(inputs)
        return self.running.backward(inputs, cotangents, wanted, groups)

    def _jvp(self, inputs: Sequence[Tensor], tangents: Sequence[Tensor], moved: Sequence[int]) -> list[Tensor]:
        self.checks.jvp(inputs)
        return self.running.jvp(inputs, tangents, moved)

    def _second(
        self,
        inputs: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        tangents: Sequence[Tensor],
        moved: Sequence[int],
        wanted: Sequence[int],
        groups: Sequence[int],
    ) -> list[Tensor]:
        self.checks.second(inputs)
        return self.running.second(inputs, cotangents, tangents, moved, wanted, groups)

    # what traces without numbers are told

    def _fake_values(self, inputs: Sequence[Tensor], tangents: Sequence[Tensor] = (), *_: Any) -> list[Tensor]:
        lanes = lanes_of([*inputs, *tangents])
        return [inputs[0].new_empty((lanes, *shape), dtype=dtype) for shape, dtype in self._shapes_for(inputs)]

    def _fake_gradients(self, inputs: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
        *_, wanted, groups = arguments
        return [inputs[k].new_empty((count, *inputs[k].shape[1:])) for k, count in zip(wanted, groups, strict=True)]

    def _shapes_for(self, inputs: Sequence[Tensor]) -> Shapes:
        """The shape of a result does not depend on values: where it was not seen yet, one lane of ones shows it."""
        key = kind_of(inputs)
        if key not in self._shapes:
            with without_modes():
                ones = [torch.ones((1, *x.shape[1:]), dtype=x.dtype, device=x.device) for x in inputs]
                self._shapes[key] = [(tuple(one.shape[1:]), one.dtype) for one in self.running.forward(ones)]
        return self._shapes[key]


def _free(name: str) -> str:
    """A name for PyTorch, with a number where another operator has it."""
    name = re.sub(r"\W+", "_", name).strip("_") or "operator"
    number = _TAKEN[name] = _TAKEN.get(name, 0) + 1
    return name if number == 1 else f"{name}_{number}"
