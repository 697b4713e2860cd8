"""The gradient in the data of the derivative of a cost along a tangent, by PyTorch."""

from torch import Tensor

from mslsq import pytree
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.private import vjp
from mslsq.problem.system import Inputs


def gradient_along(
    linearizer: Linearizer, values: Values, inputs: tuple[Inputs, ...], move: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor, ...]:
    """∂/∂d [D_v cost(x, d)] for the wanted tensors among the inputs."""
    flat, structure = pytree.flatten(inputs)

    def slope(*moved: Tensor) -> Tensor:
        rest = iter(moved)
        tensors = [next(rest) if flag else tensor for flag, tensor in zip(wanted, flat, strict=True)]
        prepared = linearizer.prepare(pytree.unflatten(tensors, structure))
        try:
            return linearizer.slope(values, prepared, move)
        except NotImplementedError:  # an operation without a derivative in forward mode, such as grid_sample
            return (linearizer.gradient(values, prepared) * move).sum(-1)

    pull = vjp(slope, *[tensor for flag, tensor in zip(wanted, flat, strict=True) if flag])[1]
    # Not `grad` of the sum, whose graph would compute the slope itself.
    return pull(move.new_ones(len(move)))
