"""Launches a kernel, its adjoint or its tangent kernel on tensors with a lane axis."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mslsq.interop.operators.contract import Tensors
from mslsq.interop.warp.library import WarpError, library
from mslsq.interop.warp.signature import Signature


class Launcher:
    """The functions of a contract (`mslsq.interop.operators`) for one kernel."""

    def __init__(
        self,
        signature: Signature,
        shapes: Mapping[str, tuple[int, ...]],
        shared: Sequence[str],
        adjoint: Any | None,
        tangent: Any | None,
    ) -> None:
        self.signature, self.shapes = signature, shapes
        self.by_lane = [k for k, name in enumerate(signature.inputs) if name not in shared]
        self.adjoint, self.tangent = adjoint, tangent

    def forward(self, *inputs: Tensor) -> Tensor | Tensors:
        """The outputs, zeros where the kernel writes nothing."""
        outputs = self._empty(inputs)
        self._launch(self.signature.kernel, self._named(inputs, outputs))
        return outputs[0] if len(outputs) == 1 else outputs

    def backward(self, inputs: Tensors, cotangents: Tensors, wanted: Sequence[int]) -> list[Tensor | None]:
        """Warp's adjoint of the kernel, or the one that was written by hand."""
        signature = self.signature
        outputs = self._empty(inputs)
        gradients = {signature.inputs[k]: torch.zeros_like(inputs[k]) for k in wanted}
        pulled = {name: one.clone() for name, one in zip(signature.outputs, cotangents, strict=True)}  # Warp may write
        if self.adjoint is None:
            tensors = self._named(inputs, outputs)
            self._launch(signature.kernel, tensors, adjoints={**gradients, **pulled})
        else:
            spare = {
                name: gradients[name] if name in gradients else torch.zeros_like(x)
                for name, x in zip(signature.inputs, inputs, strict=True)
                if x.is_floating_point()
            }
            hand = {f"adj_{name}": x for name, x in {**spare, **pulled}.items()}
            self._launch(self.adjoint, {**self._named(inputs, outputs), **hand})
        return [gradients.get(name) for name in signature.inputs]

    def jvp(self, inputs: Tensors, tangents: Tensors) -> Tensor | Tensors:
        """The tangent kernel's outputs."""
        signature = self.signature
        outputs, changes = self._empty(inputs), self._empty(inputs)
        moved = {
            f"tan_{name}": t
            for name, x, t in zip(signature.inputs, inputs, tangents, strict=True)
            if x.is_floating_point()
        }
        made = {f"tan_{name}": one for name, one in zip(signature.outputs, changes, strict=True)}
        self._launch(self.tangent, {**self._named(inputs, outputs), **moved, **made})
        return changes[0] if len(changes) == 1 else changes

    def _empty(self, inputs: Tensors) -> Tensors:
        lanes = len(inputs[self.by_lane[0]])
        arrays = [self.signature.arrays[name] for name in self.signature.outputs]
        return tuple(
            torch.zeros(
                (lanes, *self.shapes.get(one.name, ()), *one.element), dtype=one.torch_dtype, device=inputs[0].device
            )
            for one in arrays
        )

    def _named(self, inputs: Tensors, outputs: Tensors) -> dict[str, Tensor]:
        signature = self.signature
        for name, x in zip(signature.inputs, inputs, strict=True):
            signature.arrays[name].look_at(signature.name, x)
        return dict(zip((*signature.inputs, *signature.outputs), (*inputs, *outputs), strict=True))

    def _launch(self, kernel: Any, tensors: Mapping[str, Tensor], adjoints: Mapping[str, Tensor] | None = None) -> None:
        warp = library()
        signature = self.signature
        device = tensors[signature.inputs[0]].device
        names = [argument.label for argument in kernel.adj.args]

        def argument(name: str) -> Any:
            if name in signature.constants:
                return signature.constants[name]
            base = name.removeprefix("adj_").removeprefix("tan_")
            return signature.arrays[name if name in signature.arrays else base].array(tensors[name])

        options: dict[str, Any] = {"device": str(device)}
        if device.type == "cuda":
            options = {"stream": warp.stream_from_torch(torch.cuda.current_stream(device))}
        if adjoints is not None:
            options |= {
                "adjoint": True,
                "adj_inputs": [
                    signature.arrays[name].array(adjoints[name]) if name in adjoints else None for name in names
                ],
                "adj_outputs": [],
            }
        warp.launch(
            kernel, dim=len(tensors[signature.outputs[0]]), inputs=[argument(name) for name in names], **options
        )


def check_arguments(signature: Signature, kernel: Any, prefix: str, what: str) -> None:
    """
    Raises:
        WarpError: a hand-written adjoint or tangent kernel does not have the arguments that it is launched with.
    """
    warp = library()
    if not isinstance(kernel, warp.Kernel):
        raise WarpError(f"{signature.name}: {what} must be a function decorated with @warp.kernel, not {kernel!r}.")
    floating = [name for name in signature.inputs if signature.arrays[name].torch_dtype.is_floating_point]
    expected = [*signature.arguments, *[f"{prefix}{name}" for name in (*floating, *signature.outputs)]]
    given = [argument.label for argument in kernel.adj.args]
    if sorted(given) != sorted(expected):
        raise WarpError(
            f"{signature.name}: {what} {kernel.key} must have the arguments {', '.join(expected)} (in any order), not "
            f"{', '.join(given)}."
        )
