"""A manifold element: a light pytree wrapper over one storage tensor, and what a manifold has to define."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq import pytree
from mslsq.manifolds.errors import ManifoldError as ManifoldError

Constructor = TypeVar("Constructor", bound=Callable[..., None])


def _of_one_tensor(init: Constructor) -> Constructor:
    """A constructor that says how an element is made of numbers, where it is given several."""

    @functools.wraps(init)
    def called(self: Manifold, *storage: Any, **named: Any) -> None:
        if len(storage) > 1:
            raise ManifoldError(
                f"{type(self).__name__} takes one tensor, its storage of shape (..., {self.storage_dim})"
                f"{self._storage_hint()}; {len(storage)} arguments were given"
            )
        init(self, *storage, **named)

    return cast(Constructor, called)


class Manifold:
    """Elements of a manifold, batched: `storage` has shape (*batch, storage_dim); dtype and device are those of it.

    To define a manifold of your own, subclass with `storage_dim`, `tangent_dim`, `retract` and `local`, and, where
    starts are to be made up, `identity`. Everything else follows; the subclass is a pytree node as soon as it is
    defined, so that `torch.func` and `make_fx` see through it. All operations are out-of-place and work on any number
    of batch dimensions.

    Example::

        class Positive(mslsq.Manifold):          # a number > 0, moved by a factor exp(delta)
            storage_dim = 1
            tangent_dim = 1

            def retract(self, delta):
                return type(self)(self.storage * delta.exp())

            def local(self, other):
                return (other.storage / self.storage).log()

    Raises:
        ManifoldError: `storage` is not a floating-point tensor whose last dimension is `storage_dim`, or its
            numbers are no element (`check`).
    """

    storage_dim: ClassVar[int]
    tangent_dim: ClassVar[int]
    storage: Tensor

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name in ("storage_dim", "tangent_dim"):
            value = getattr(cls, name, None)
            if value is not None and not (isinstance(value, int) and value >= 0):
                raise TypeError(f"{cls.__name__}.{name} must be an int, got {value!r}")
        pytree.register(cls, _flatten, lambda children, _: cls._wrap(children[0]), _leaf_names)
        if cls.__module__.startswith("mslsq."):
            torch.serialization.add_safe_globals([cls])  # a tensor with a name: `torch.load` may make it

    @_of_one_tensor
    def __init__(self, storage: Float[Tensor, "*batch storage"]) -> None:
        kind = type(self).__name__
        if not hasattr(type(self), "storage_dim") or not hasattr(type(self), "tangent_dim"):
            raise ManifoldError(f"{kind} has no storage_dim or no tangent_dim: define both as class attributes")
        if not isinstance(storage, Tensor):
            raise ManifoldError(
                f"{kind} wraps a tensor of shape (..., {self.storage_dim}), got {type(storage).__name__}: "
                "pass torch.as_tensor(...) of it"
            )
        if not storage.is_floating_point():
            raise ManifoldError(
                f"{kind} needs float32 or float64 storage, got {storage.dtype}: call .double() on it first"
            )
        if storage.ndim == 0 or storage.shape[-1] != self.storage_dim:
            raise ManifoldError(
                f"{kind} needs storage of shape (..., {self.storage_dim}), got {tuple(storage.shape)}"
                f"{self._storage_hint()}"
            )
        self.check(storage)
        self.storage = storage

    @classmethod
    def check(cls, storage: Float[Tensor, "*batch storage"]) -> None:
        """Raises a ManifoldError where these numbers are no element: a quaternion whose norm is not one, say.

        Called by the constructor, where values may be read (not under `torch.func`, not while a graph is recorded); on
        CUDA it waits for the device once. Results of operations are never looked at. A manifold of your own may define
        it.
        """

    @classmethod
    def _storage_hint(cls) -> str:
        return ""

    @classmethod
    def _wrap(cls, storage: Any) -> Self:
        """An element of this storage, unchecked: for results of operations, and for the placeholders of transforms."""
        element = object.__new__(cls)
        element.storage = storage
        return element

    # What a manifold defines

    def retract(self, delta: Float[Tensor, "*batch tangent"]) -> Self:
        """The point reached from this one by the tangent vector `delta`; `retract(0)` is this point."""
        raise NotImplementedError(f"{type(self).__name__} does not define retract(delta)")

    def local(self, other: Any) -> Float[Tensor, "*batch tangent"]:
        """The tangent vector that leads from this point to `other`: the inverse of `retract`."""
        raise NotImplementedError(f"{type(self).__name__} does not define local(other)")

    @classmethod
    def identity(
        cls, *batch_shape: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Self:
        """The element to start from where nothing is known, in the given batch shape."""
        raise NotImplementedError(f"{cls.__name__} does not define identity(): give a start of your own")

    @classmethod
    def random(
        cls,
        *batch_shape: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Random elements in the given batch shape, for tests and starts.

        Rotations and directions are uniformly distributed, translations are standard normal, log scales have the
        standard deviation 0.3. A manifold of your own draws the identity moved by a standard normal tangent vector, or
        defines `random` itself.
        """
        batch = _batch(batch_shape)

        def normal(components: int) -> Tensor:
            return torch.randn((*batch, components), generator=generator, dtype=dtype, device=device)

        return cls._wrap(cls._random_storage(normal))

    @classmethod
    def _random_storage(cls, normal: Callable[[int], Tensor]) -> Float[Tensor, "*batch storage"]:
        """The storage of random elements; `normal(n)` draws standard normal numbers of shape (*batch, n)."""
        delta = normal(cls.tangent_dim)
        return cls.identity(*delta.shape[:-1], dtype=delta.dtype, device=delta.device).retract(delta).storage

    # The batch

    @property
    def shape(self) -> torch.Size:
        """The batch shape: that of the storage without its last dimension."""
        return self.storage.shape[:-1]

    @property
    def ndim(self) -> int:
        """The number of batch dimensions."""
        return self.storage.ndim - 1

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype

    @property
    def device(self) -> torch.device:
        return self.storage.device

    @property
    def requires_grad(self) -> bool:
        return self.storage.requires_grad

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError(f"a single {type(self).__name__} has no length: its batch shape is ()")
        return self.storage.shape[0]

    def __getitem__(self, index: Any) -> Self:
        """Index the batch dimensions as a tensor of shape `self.shape` would be."""
        key = index if isinstance(index, tuple) else (index,)
        key = key if any(part is Ellipsis for part in key) else (*key, ...)
        return self._wrap(self.storage[(*key, slice(None))])

    def reshape(self, *batch_shape: int) -> Self:
        """The same elements in another batch shape; -1 stands for what is left."""
        return self._wrap(self.storage.reshape(*_batch(batch_shape), self.storage_dim))

    def expand(self, *batch_shape: int) -> Self:
        """The same elements repeated without copying."""
        return self._wrap(self.storage.expand(*_batch(batch_shape), self.storage_dim))

    def to(self, *args: Any, **keywords: Any) -> Self:
        """`torch.Tensor.to` of the storage: another dtype or device."""
        return self._wrap(self.storage.to(*args, **keywords))

    def detach(self) -> Self:
        return self._wrap(self.storage.detach())

    def clone(self) -> Self:
        return self._wrap(self.storage.clone())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.storage!r})"


Element = TypeVar("Element", bound=Manifold)


def _flatten(element: Manifold) -> tuple[list[Any], None]:
    return [element.storage], None


def _leaf_names(element: Manifold) -> list[str]:
    return ["storage"]


def _batch(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """A batch shape given as separate numbers or as one sequence."""
    if len(shape) == 1 and isinstance(shape[0], Sequence):
        return tuple(shape[0])
    return shape


def stack(elements: Sequence[Element], dim: int = 0) -> Element:
    """Elements of one type and batch shape along a new batch dimension `dim`."""
    kind = _one_type(elements, "stack")
    return kind._wrap(torch.stack([element.storage for element in elements], dim if dim >= 0 else dim - 1))


def cat(elements: Sequence[Element], dim: int = 0) -> Element:
    """Elements of one type along an existing batch dimension `dim`."""
    kind = _one_type(elements, "cat")
    if any(element.ndim == 0 for element in elements):
        raise ManifoldError(f"cat needs a batch dimension, got a single {kind.__name__}: use stack")
    return kind._wrap(torch.cat([element.storage for element in elements], dim if dim >= 0 else dim - 1))


def _one_type(elements: Sequence[Element], verb: str) -> type[Element]:
    if not elements:
        raise ManifoldError(f"{verb} needs at least one element, got none")
    kinds = {type(element) for element in elements}
    if len(kinds) > 1:
        raise ManifoldError(f"{verb} needs elements of one type, got {', '.join(sorted(k.__name__ for k in kinds))}")
    return kinds.pop()
