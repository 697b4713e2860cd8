"""What a foreign operator promises: its functions, and which of their tensors have a lane axis.

A lane is one evaluation of the operator: one block of one problem. Transforms of PyTorch (`vmap` in `vmap` in
`jacrev`) make many lanes, which are always one leading axis here, so that the operator is called once for all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

Tensors = tuple[Tensor, ...]
Backward = Callable[[Tensors, Tensors, Sequence[int]], Sequence[Tensor | None]]
"""(inputs, cotangents, wanted) -> Jᵀ·cotangents, for every input; those that are not `wanted` may be None."""
Second = Callable[[Tensors, Tensors, Tensors, Sequence[int]], Sequence[Tensor | None]]
"""(inputs, cotangents, tangents, wanted) -> the derivative of Jᵀ·cotangents along the tangents of the inputs."""


MISSING: Mapping[str, str] = {
    "backward": "no derivative in reverse mode: give backward=",
    "jvp": "no derivative in forward mode: give jvp= as a function, 'rows' (exact, by one backward pass per row) or "
    "'differences'",
    "second": "no second derivative: give second= as a function, 'autograd' or 'differences'",
}
"""What is said where a transform needs a rule that was not given."""


@dataclass(frozen=True)
class Contract:
    """The functions of one operator. Inputs are contiguous tensors on one device."""

    name: str
    inputs: tuple[str, ...]
    """The names of its arguments."""
    forward: Callable[..., Tensor | Sequence[Tensor]]
    backward: Backward | None
    jvp: Callable[[Tensors, Tensors], Tensor | Sequence[Tensor]] | str | None
    """(inputs, tangents) -> J·tangents; or "rows", from `backward`; or "differences"."""
    second: Second | str | None
    shared: frozenset[int]
    """Inputs that have no lane axis: the same for all lanes."""
    one_lane: bool
    """Do the functions take tensors without the lane axis, one lane a call?"""
    check: bool
    """Are its derivatives compared with differences at the first call of every shape?"""
    missing: Mapping[str, str] = field(default_factory=lambda: MISSING)
    """What is said where a transform needs a rule that was not given, by the rule."""
