"""Looks whether a residual has kept a tensor of one of its evaluations: in a list, or in a cache."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from mslsq.tracing.reading.exchange import KEPT, UncollectedTensorError, keeping, nodes_of
from mslsq.tracing.reading.inputs import Collected


def check_kept(before: Iterable[Collected], leaves: Sequence[Tensor]) -> None:
    """Walk again what was walked before an evaluation whose variables were these leaves, which require grad.

    Raises:
        UncollectedTensorError: there is a tensor now that depends on them; names it.
    """
    own = {id(leaf) for leaf in leaves}
    for known in before:
        try:
            found = Collected(known.root, known.methods).tensors
        except UncollectedTensorError as error:
            found = {} if error.tensor is None else {error.place: error.tensor}
        for name, tensor in found.items():
            if any(id(getattr(node, "variable", None)) in own for node in nodes_of(tensor)):
                setattr(tensor, KEPT, True)  # it is still there in the next call
                raise UncollectedTensorError(keeping(name), name)
