"""Tensors of classes and imported modules, exchanged where they are used: they cannot be replaced where they stand.

`Config.gain` is shared: another thread may read it while a residual is differentiated. So nothing writes to
it. While the residual runs, every function of PyTorch that is given the tensor is given its substitute instead.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from mslsq import pytree
from mslsq.private import has_escaped, transforms_are_active

KEPT = "_kept_by_a_residual"
"""The attribute of a tensor that has been refused since a residual has kept it."""
CONTAINERS = (list, tuple, dict)


class UncollectedTensorError(ValueError):
    """A residual uses a tensor that carries derivatives but cannot be made an input, such as a global variable, or has
    kept one of its own evaluations. `place` names the `tensor`, where they are known."""

    def __init__(self, message: str, place: str = "", tensor: Tensor | None = None) -> None:
        super().__init__(message)
        self.place, self.tensor = place, tensor


class Exchange(TorchFunctionMode):
    """While it is active, functions of PyTorch see the substitutes: of this thread alone, and to any depth of calls.

    `substitutes` are by the id of the tensor that each one stands for; the caller keeps these alive.
    """

    def __init__(self, substitutes: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.substitutes = substitutes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple([self.exchanged(entry) for entry in args])
        return func(*args, **{key: self.exchanged(entry) for key, entry in (kwargs or {}).items()})

    def exchanged(self, value: Any) -> Any:
        """The same with substitutes in it, also inside of lists, tuples, dicts and pytree nodes."""
        if isinstance(value, Tensor):
            return self.substitutes.get(id(value), value)
        if isinstance(value, CONTAINERS):
            return pytree.map_leaves(self.of_leaf, value)
        return value

    def of_leaf(self, leaf: Any) -> Any:
        return self.substitutes.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf


def with_substitutes(use: Callable[[], Any], held: Mapping[str, Tensor], substitutes: Mapping[str, Tensor]) -> Any:
    """What `use()` returns while each tensor of `held` is exchanged for the substitute of its name.

    Raises:
        UncollectedTensorError: one was used where no mode of PyTorch sees it (an `autograd.Function`, TorchScript).
    """
    exchange = Exchange({id(tensor): substitutes[name] for name, tensor in held.items()})
    with exchange:
        output = use()
    output = pytree.map_leaves(exchange.of_leaf, output)
    if torch.is_grad_enabled() and not transforms_are_active():
        missed = {name: held[name] for name in held if not substitutes[name].requires_grad}
        _check_none_is_missed(missed, output)
    return output


def _check_none_is_missed(held: Mapping[str, Tensor], output: Any) -> None:
    """No graph of the output leads to one of these tensors itself.

    A substitute that requires no grad belongs to an evaluation inside of a solve, where no input has a graph: what
    leads to the user's tensor there has come past the exchange.
    """
    own = {get_gradient_edge(tensor).node: name for name, tensor in held.items() if tensor.requires_grad}
    if not own:
        return
    for node in nodes_of(output):
        if node in own:
            raise UncollectedTensorError(refusal(own[node]), own[node])


def nodes_of(output: Any) -> Iterator[Any]:
    """All nodes of the graphs that tensors were made by."""
    pending = [leaf.grad_fn for leaf in pytree.leaves(output) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


def refusal(name: str) -> str:
    """Why a tensor cannot be collected, and what to do, in words."""
    return (
        f"The residual uses the {name}, a tensor that requires grad or is being transformed. It cannot become an input "
        "of the solve from there and would lose its derivative: pass it in args (or as data of the cost), or hold it "
        "in a closure, a list or a module."
    )


def is_kept(tensor: Tensor) -> bool:
    """Has a residual kept it of one of its evaluations? To be asked where the user's own transforms are running."""
    return has_escaped(tensor) or (tensor.requires_grad and hasattr(tensor, KEPT))


def keeping(name: str) -> str:
    """Why a residual must not keep that tensor, and what to do, in words."""
    return (
        f"The residual has kept a tensor of one of its own evaluations: the {name}. It depends on the variables, and "
        "belongs to one point, to many blocks at once (vmap) or to a derivative that has ended; .detach() does not "
        "change that. Compute it in every call. For the points on the way use callback= of the solver or "
        "solution.history; a cache may hold only what does not depend on the variables, and is best made before the "
        "solve and passed in args."
    )
