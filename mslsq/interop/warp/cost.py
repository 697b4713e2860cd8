"""`cost`: a Warp kernel as a class of cost functions."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from mslsq.interop.warp.kernel_operator import operator
from mslsq.problem import CostFunction
from mslsq.problem import cost as cost_of_function


def cost(
    kernel: Any,
    *,
    outputs: Sequence[str] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    shared: Sequence[str] = (),
    constants: Mapping[str, Any] | None = None,
    adjoint: Any | None = None,
    tangent: Any | Literal["rows", "differences"] | None = None,
    second: Literal["differences"] | None = None,
    check: bool = True,
) -> type[CostFunction]:
    """A Warp kernel as a `CostFunction` class: its outputs are the residual of a block.

    Variables come by position, in the order of the kernel's input arrays; data by name, with one entry per block.
    Those in `shared` are passed as `mslsq.Shared(x)`. A manifold variable arrives as its storage (`wp.transform` is
    that of `SE3`: x, y, z and the quaternion x, y, z, w).

    Args:
        kernel, outputs, shapes, shared, constants, adjoint, tangent, second, check: as for `operator`.

    Raises:
        WarpError (a ValueError): as `operator` does.
        ImportError: Warp is not installed.

    >>> @wp.kernel
    ... def distance(pose: wp.array(dtype=wp.transform), beacon: wp.array(dtype=wp.vec3),
    ...              measured: wp.array(dtype=float), residual: wp.array(dtype=float)):
    ...     i = wp.tid()
    ...     residual[i] = wp.length(wp.transform_get_translation(pose[i]) - beacon[i]) - measured[i]
    >>> Distance = mslsq.interop.warp.cost(distance)
    >>> problem = mslsq.Problem(Distance(pose[k], beacon=beacons, measured=ranges))
    """
    launched = operator(
        kernel,
        outputs=outputs,
        shapes=shapes,
        shared=shared,
        constants=constants,
        adjoint=adjoint,
        tangent=tangent,
        second=second,
        check=check,
    )
    names = launched.inputs

    def residual(*given: Any, **data: Any) -> Any:
        by_name = dict(zip(names, given, strict=False)) | data
        return launched(*[_storage(by_name[name]) for name in names])

    residual.__name__ = kernel.key.rpartition(".")[2]
    residual.__doc__ = kernel.func.__doc__ or f"The residual of the Warp kernel {kernel.key}."
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    residual.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return cost_of_function(residual)


def _storage(value: Any) -> Any:
    """The tensor of a manifold element."""
    return value if isinstance(value, Tensor) else getattr(value, "storage", value)
