"""A robust loss as a part of a statement: its tensors as leaves; that of a user around them, wherever its code reads
them."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mslsq.front.leaves import Holder, LossParameter, loss_parameter
from mslsq.losses import RobustLoss
from mslsq.private import MODULE_TABLES
from mslsq.problem.data import own_tensors
from mslsq.tracing.reading.changes import Changes
from mslsq.tracing.reading.inputs import Collected, collect_module
from mslsq.tracing.reading.origins import is_own

FUNCTIONS = ("rho", "derivatives")
"""What the engine calls of a loss."""


@dataclass(frozen=True, eq=False)
class StatedLoss:
    """A loss, or none."""

    loss: RobustLoss | None = None
    """As the engine calls it."""
    leaves: tuple[LossParameter, ...] = ()
    holder: Holder | None = None
    """A user's loss with all that it holds."""

    def keyed(self, changes: Changes) -> tuple[Hashable, str]:
        """As `Holder.keyed`. A loss of the library depends on its type and its tensors alone."""
        return (None, "") if self.holder is None else self.holder.keyed(changes)


class AroundInputs(RobustLoss):
    """A user's loss whose tensors are inputs of a solve: they are exchanged in the object, too, since its code may read
    them there and not in `parameters`."""

    def __init__(self, collected: Collected) -> None:
        nn.Module.__init__(self)  # its scale is among what was collected
        self.collected = collected
        self.own = tuple(own_tensors(collected.root))

    def rho(self, s, parameters=None):
        return self._applied(parameters, lambda loss, own: loss.rho(s, own))

    def derivatives(self, s, parameters=None):
        return self._applied(parameters, lambda loss, own: loss.derivatives(s, own))

    def _applied(self, parameters: Mapping[str, Tensor] | None, use: Callable[[Any, dict[str, Tensor]], Any]) -> Any:
        assert parameters is not None  # the engine gives all of them
        own = {name: parameters[name] for name in self.own}
        exchanged = {name: parameters[name] for name in self.collected.tensors}
        return self.collected.applied(exchanged, lambda loss: use(loss, own))


def stated_loss(loss: RobustLoss | None, part: str = "loss") -> StatedLoss:
    """The tensors of a loss, and what of a user's loss besides them a plan depends on; `part` is what that is called.

    A user's loss may hold tensors that are not in its `state_dict`: plain attributes, cells of closures.
    """
    if loss is None:
        return StatedLoss()
    if is_own(type(loss).__module__) and vars(loss).keys().isdisjoint(FUNCTIONS):
        own = [vars(loss)[table] for table in MODULE_TABLES[:2]]  # 5 µs less in every call than `own_tensors`
        return StatedLoss(loss, tuple([loss_parameter(*named) for table in own for named in table.items()]))
    collected = collect_module(loss, FUNCTIONS)
    leaves = {name: loss_parameter(name, tensor) for name, tensor in own_tensors(loss).items()}
    for name, tensor in collected.tensors.items():
        if name not in leaves:
            leaves[name] = loss_parameter(name, tensor, block_rank=tensor.ndim)
    return StatedLoss(AroundInputs(collected), tuple(leaves.values()), Holder(part, collected, leaves))
