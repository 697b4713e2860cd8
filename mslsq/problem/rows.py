"""The first block of a cost: does its residual run, and how many entries has it?"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.manifolds import LieGroup, Manifold
from mslsq.private import outside_of_transforms
from mslsq.problem.cost import CostFunction, is_of_library
from mslsq.problem.data import own_tensors
from mslsq.problem.errors import ProblemError, ShapeError
from mslsq.problem.layout import complex_view_hint
from mslsq.problem.system import residual_vector
from mslsq.problem.variable import Variable
from mslsq.tracing.reading.closed import Closed
from mslsq.tracing.reading.content import Content
from mslsq.tracing.reading.known_code import CODES

MOST_KNOWN = 256
_ROWS: dict[Hashable, tuple[int, Closed | None]] = {}
"""By what it depends on, the number of entries of a residual: calling it takes 0.2 ms, half of the time that a small
problem takes to be put together. With it names of libraries that the code of a user's own reads."""


def rows_of_first_block(cost: CostFunction) -> int:
    """The entries of the residual of a block; looks whether it runs on the first one, and whether the weight fits.

    It is not called where that is known of a cost that holds the same.
    """
    key = _key_of(cost)
    rows, closed = _ROWS.get(key, (0, None)) if key is not None else (0, None)
    if not rows or (closed is not None and not closed.holds):
        rows = _found_rows(cost)
        if key is not None and is_of_library(cost):
            _keep(key, rows, None)
    _check_weight(cost, rows)
    return rows


def keep_rows(cost: CostFunction, rows: int, closed: Closed) -> None:
    """What is known of a cost of a user's own, and of those that hold the same.

    Args:
        closed: what its code reads, which was recorded: so the entries of its residual follow from its code, what it
            holds and the shapes of tensors, and from no number in there.
    """
    key = _key_of(cost)
    if key is not None:
        _keep(key, rows, closed)


def _keep(key: Hashable, rows: int, closed: Closed | None) -> None:
    if len(_ROWS) >= MOST_KNOWN:
        _ROWS.clear()
    _ROWS[key] = rows, closed


def _key_of(cost: CostFunction) -> Hashable:
    """What that depends on; None where the code of a cost may read something else, or where some of its data or
    variables are of a user's types."""
    if not is_of_library(cost):
        code = CODES.of(cost)
        own = None if code is None else Content.of(cost, (), {id(cost): code})
        return (own.key, torch.get_default_dtype()) if own is not None and own.is_all_own else None
    content = Content.of((type(cost), cost.arguments, [reference.variable.space for reference in cost.references]))
    if content is None or content.tensors:
        return None
    kinds = []
    for leaf in cost.data_leaves:
        tensor = cost.get_parameter_or_buffer(leaf.name)
        kinds.append((tensor.shape[leaf.per_block :], tensor.dtype, tensor.device))
    return content.key, tuple(kinds), torch.get_default_dtype()


def _found_rows(cost: CostFunction) -> int:
    """By a call of its residual with the first block of its data, at random values."""
    tensors = {name: tensor.detach() for name, tensor in own_tensors(cost).items()}
    first: dict[str, Tensor] = {}
    for leaf in cost.data_leaves:
        first[leaf.name] = tensors[leaf.name][0] if leaf.per_block else tensors[leaf.name]
    kept = first
    dtypes = [t.dtype for t in first.values() if t.is_floating_point()] or [torch.get_default_dtype()]
    device = next(iter(tensors.values())).device if tensors else None
    failure: Exception | None = None
    # A cost without data does not say its dtype: whichever works will do.
    for dtype in dict.fromkeys((dtypes[0], torch.float64, torch.float32)):
        generator = torch.Generator().manual_seed(0)
        values = [_random_value(reference.variable, generator, dtype, device) for reference in cost.references]
        first = {name: tensor.clone() for name, tensor in kept.items()}  # a residual may write into what it is given
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                output = cost.residual(*values, **cost.data_arguments(first))
                _check_leaves(output)
                vector, _ = residual_vector(output)
        except NotImplementedError:
            raise
        except Exception as error:
            failure = failure or error
            continue
        return len(vector)
    assert failure is not None  # at least one dtype was tried
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in first.items())
    raise ProblemError(
        f"Cost {cost.name!r}: its residual fails on block 0 ({type(failure).__name__}: {failure}). "
        f"It is called for ONE block, with variables {', '.join(map(repr, cost.references))}"
        + (f" and data of shapes {shapes}" if shapes else "")
        + ". "
        + (
            complex_view_hint(failure)
            or _plain_storage_hint(cost, first)
            or "Data that all blocks share is given as mslsq.Shared(x)."
        )
    ) from failure


def _plain_storage_hint(cost: CostFunction, data: dict[str, Tensor]) -> str:
    """What to write where data are plain numbers in the place of elements of a manifold, as its variables are."""
    for keyword, argument in cost.arguments.items():
        if len(argument.leaves) != 1 or not isinstance(cost.data_arguments(data)[keyword], Tensor):
            continue
        shape = tuple(data[argument.leaves[0].name].shape)
        for kind in dict.fromkeys(reference.variable.manifold for reference in cost.references):
            if not (isinstance(kind, type) and issubclass(kind, Manifold)):
                continue
            made = "" if shape == (kind.storage_dim,) else None
            if len(shape) == 2 and shape[0] == shape[1] and issubclass(kind, LieGroup):
                made = ".from_matrix"
            if made is not None:
                return (
                    f"Data {keyword!r} are a plain tensor; if elements of {kind.__name__} are meant, write "
                    f"{keyword}=mslsq.{kind.__name__}{made}(...)."
                )
    return ""


def _check_leaves(output: Any) -> None:
    for leaf in pytree.leaves(output):
        if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            what = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
            raise TypeError(
                f"a residual is a tensor or a pytree of tensors, real or complex floating point, not {what}"
            )


def _random_value(variable: Variable, generator: torch.Generator, dtype: torch.dtype, device: Any) -> Any:
    with outside_of_transforms():  # `vmap` refuses random numbers
        storage = variable.space.random(generator=generator, dtype=dtype, device="cpu")
    return variable.space.wrap(storage.to(device=device, non_blocking=True))  # nothing waits for a device


def _check_weight(cost: CostFunction, rows: int) -> None:
    if rows == 0:
        raise ShapeError(f"Cost {cost.name!r}: the residual of a block is empty.")
    if cost.weight is not None:
        value = cost.weight.value
        block = value.shape[1:] if value.ndim > cost.weight.block_rank else value.shape
        cost.weight.check_block(tuple(block), rows, cost.name)
