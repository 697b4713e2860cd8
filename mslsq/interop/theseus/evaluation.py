"""Code that was written for Theseus, called for one block with the batch axis of length one that Theseus gives it
in its `vmap` and `loop_batch` modes.

Theseus' operations on SO3 and SE3 are `autograd.Function`s with a backward alone: they have no forward mode and no
second derivatives. While such code runs they are those of `mslsq.manifolds`, plain operations with derivatives of all
orders, finite at the identity too.
"""

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mslsq.interop.theseus.fields import signed_distance
from mslsq.interop.theseus.library import library
from mslsq.manifolds import SE3, SO3

_LOCK = threading.RLock()
"""The operations are exchanged in Theseus' own module, which all threads share."""


def _rows(transform: Tensor) -> tuple[Tensor, Tensor]:
    """Rotation matrix and translation (a column) of [R | t]."""
    return transform[..., :3], transform[..., 3:]


def _inverse(transform: Tensor) -> Tensor:
    rotation, translation = _rows(transform)
    back = rotation.mT
    return torch.cat([back, -(back @ translation)], -1)


def _compose(first: Tensor, second: Tensor) -> Tensor:
    rotation, translation = _rows(first)
    moved, offset = _rows(second)
    return torch.cat([rotation @ moved, rotation @ offset + translation], -1)


def _act(transform: Tensor, points: Tensor) -> Tensor:
    rotation, translation = _rows(transform)
    return (rotation @ points[..., None] + translation)[..., 0]


def _act_back(transform: Tensor, points: Tensor) -> Tensor:
    rotation, translation = _rows(transform)
    return (rotation.mT @ (points[..., None] - translation))[..., 0]


def _of_quaternion(wxyz: Tensor) -> Tensor:
    return SO3(torch.cat([wxyz[..., 1:], wxyz[..., :1]], -1)).matrix()


def _weight_of_motion(weight: Any) -> Tensor:
    """`GPCostWeight._compute_cost_weight` without its `torch.empty`: a second derivative reads what that memory held
    before it was filled, and is NaN where it held one."""
    inverse, dt = weight.Qc_inv.tensor, weight.dt.tensor.view(-1, 1, 1)
    off = -6 * dt.pow(-2) * inverse
    above = torch.cat([12 * dt.pow(-3) * inverse, off], -1)
    return torch.linalg.cholesky(torch.cat([above, torch.cat([off, 4 * dt.reciprocal() * inverse], -1)], -2).mT).mT


OF_SO3: dict[str, Callable[..., Tensor]] = {
    "exp": lambda w: SO3.exp(w).matrix(),
    "log": lambda r: SO3.from_matrix(r).log(),
    "adj": lambda r: r,
    "inv": lambda r: r.mT,
    "compose": lambda a, b: a @ b,
    "transform": lambda r, p: (r @ p[..., None])[..., 0],
    "untransform": lambda r, p: (r.mT @ p[..., None])[..., 0],
    "hat": SO3.hat,
    "quaternion_to_rotation": _of_quaternion,
}
OF_SE3: dict[str, Callable[..., Tensor]] = {
    "exp": lambda xi: SE3.exp(xi).matrix()[..., :3, :],
    "log": lambda t: SE3.from_matrix(t).log(),
    "adj": lambda t: SE3.from_matrix(t).adjoint(),
    "inv": _inverse,
    "compose": _compose,
    "transform": _act,
    "untransform": _act_back,
}


def _instead(own: Callable[..., Any], ours: Callable[..., Tensor]) -> Callable[..., Any]:
    """Ours, except where Jacobians are asked for along with the value."""

    def called(*arguments: Any, jacobians: Any = None, **more: Any) -> Any:
        if jacobians is not None or more:
            return own(*arguments, jacobians=jacobians, **more)
        return ours(*arguments)

    return called


class _Differentiable:
    """The context that `differentiable` returns. Entering it within itself changes nothing."""

    def __init__(self) -> None:
        self._entered = 0
        self._exchanged: tuple[Exchange, ...] = ()
        self._before: list[Any] = []
        """Theseus' checks of elements as they were, by level."""

    def __enter__(self) -> None:
        _LOCK.acquire()
        try:
            if not self._entered:
                self._exchanged = _exchanged("torchkin" in sys.modules)
                for exchange in self._exchanged:
                    setattr(exchange.holder, exchange.name, exchange.instead)
            checks = _checks()
            self._before.append(checks.get_context())
            checks.set_context(False, True, False)
            self._entered += 1
        except BaseException:
            _LOCK.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            _checks().set_context(*self._before.pop())
            self._entered -= 1
            if not self._entered:  # torchkin may have been imported since
                for exchange in self._exchanged:
                    setattr(exchange.holder, exchange.name, exchange.own)
        finally:
            _LOCK.release()


_DIFFERENTIABLE = _Differentiable()


def differentiable() -> _Differentiable:
    """A context: Theseus' operations on SO3, SE3 and fields are those of this library; its checks of elements, which
    read values, are off."""
    return _DIFFERENTIABLE


class Exchange(NamedTuple):
    """What stands where, and what is put there."""

    holder: Any
    name: str
    own: Any
    instead: Any


@functools.cache
def _exchanged(with_kinematics: bool) -> tuple[Exchange, ...]:
    """All that is exchanged. Made once: a residual of a small problem takes less time than that would."""
    functional = importlib.import_module("torchlie.functional")
    found = [
        Exchange(fns, name, vars(fns)[name], _instead(vars(fns)[name], ours))
        for fns, operations in ((functional.SO3, OF_SO3), (functional.SE3, OF_SE3))
        for name, ours in operations.items()
    ]
    field = library().eb.SignedDistanceField2D
    found.append(Exchange(field, "signed_distance", vars(field)["signed_distance"], signed_distance))
    weight = library().eb.GPCostWeight
    name = "_compute_cost_weight"
    found.append(Exchange(weight, name, vars(weight)[name], _weight_of_motion))
    if with_kinematics:
        base = torch.autograd.Function
        own = base.apply.__func__

        def apply(cls: Any, *arguments: Any, **options: Any) -> Any:
            """Forward kinematics in torchkin has a backward that is right once, and wrong when it is differentiated."""
            if cls.__module__.startswith("torchkin."):
                return cls.forward(*arguments)
            return own(cls, *arguments, **options)

        found.append(Exchange(base, "apply", vars(base)["apply"], classmethod(apply)))
    return tuple(found)


@functools.cache
def _checks() -> Any:
    """What keeps whether Theseus checks elements. Its context managers forget to restore that after an error."""
    return importlib.import_module("theseus.geometry.lie_group_check")._LieGroupCheckContext


def emptied(variable: Any) -> Any:
    """A copy of a variable of Theseus to be filled in for a call. It holds no tensor between calls, which would be
    taken for one that the residual depends on."""
    return _around(variable, None)


def filled(containers: Sequence[Any], tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Copies of containers around tensors of one element each, given the batch axis."""
    return tuple([_around(container, tensor[None]) for container, tensor in zip(containers, tensors, strict=True)])


def _around(container: Any, tensor: Tensor | None) -> Any:
    """A shallow copy of a variable around another tensor; `copy.copy` takes ten times as long."""
    made = object.__new__(type(container))
    made.__dict__.update(container.__dict__, tensor=tensor)
    return made


@contextlib.contextmanager
def filling(containers: Sequence[Any], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Containers that a cost function of Theseus holds, around these tensors for as long as it is called."""
    try:
        for container, tensor in zip(containers, tensors, strict=True):
            container.tensor = tensor[None]
        yield
    finally:
        for container in containers:
            container.tensor = None
