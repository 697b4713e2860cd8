"""What a term's first block tells: how long its residual is, and whether it is one."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

from mslsq import pytree
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.cuts import CutDerivativeWarning, Cuts
from mslsq.linearize.loaded import Loads
from mslsq.linearize.unmoved import Influence
from mslsq.manifolds.errors import of_storage
from mslsq.problem.errors import DtypeError, ProblemError, ShapeError
from mslsq.problem.layout import complex_view_hint
from mslsq.problem.system import Inputs, System, Term, residual_vector
from mslsq.tracing.operators import Composed
from mslsq.tracing.remedies import remedy

T = TypeVar("T")

MOST_TRIED = 16
"""Problems of a batch at which a residual is evaluated before its error is taken for its own."""


def block_term(
    term: Term,
    system: System,
    batch: int,
    batched: frozenset[str],
    values: Values,
    inputs: Inputs,
    influence: Influence,
) -> BlockTerm:
    """A term ready to be mapped; evaluates the residual of its first block once, as plain Python, to learn its size,
    unless the residual is the library's own and the problem knows it.

    Errors of the user's residual itself surface here, outside any transform. `inputs` are as given by the user (not
    prepared). `influence` is told where its derivative is zero.
    """
    if term.is_of_library and term.num_rows is not None:
        influence.note_unknown(BlockTerm(term, system, batch, batched, term.num_rows, 0))
        return BlockTerm(term, system, batch, batched, term.num_rows, 0)  # of real numbers, in the dtype of the start
    probe = BlockTerm(term, system, batch, batched, 0, 0)

    def evaluated(storages: tuple[Tensor, ...], first: Inputs) -> tuple[Any, Inputs]:
        output = _looked_after(term, probe, storages, first, influence)
        with explained(term):
            return term.residual(probe.values_of_block(storages), first) if output is None else output, first

    output, first = of_a_block(evaluated, term, batched, values, inputs)
    vector, pairs = checked_residual(output, term.name)
    start = values[0].dtype
    if torch.promote_types(vector.dtype, start) != start:
        raise DtypeError(
            f"Cost {term.name!r}: the residual is {vector.dtype}, the start {start}: convert one of them, nothing "
            "is rounded silently. "
            "The dtype comes from the data, or from constants made inside the residual."
        )
    if term.whiten is not None:
        vector = term.whiten(vector, first)
    return BlockTerm(term, system, batch, batched, len(vector), pairs)


@contextlib.contextmanager
def explained(term: Term) -> Iterator[None]:
    """A context in which its residual is evaluated in plain Python.

    Raises:
        ProblemError: it fails in a way of which it is known what to write instead. Other errors are the user's own.
    """
    try:
        yield
    except (RuntimeError, IndexError, TypeError, AttributeError) as error:
        own = (lambda error: "") if term.hint is None or isinstance(error, (TypeError, AttributeError)) else term.hint
        of_devices = own(error) if "device" in str(error) else ""  # knows which tensor is elsewhere
        hint = complex_view_hint(error) or of_devices or remedy(error) or of_storage(error) or own(error)
        if not hint:
            raise
        whose = "PyTorch" if isinstance(error, (RuntimeError, IndexError)) else type(error).__name__
        raise ProblemError(f"Cost {term.name!r}: {hint} ({whose}: {error})") from error


def evaluate_first(
    term: Term, system: System, batch: int, batched: frozenset[str], values: Values, inputs: Inputs
) -> None:
    """Evaluate the residual of a first block in plain Python, for what it leaves behind."""
    probe = BlockTerm(term, system, batch, batched, 0, 0)
    of_a_block(lambda at, first: term.residual(probe.values_of_block(at), first), term, batched, values, inputs)


def _looked_after(
    term: Term, probe: BlockTerm, storages: tuple[Tensor, ...], first: Inputs, influence: Influence
) -> Any:
    """The residual, evaluated so that a tensor that it keeps and that depends on the variables can be told: in every
    later evaluation it would be a constant. Operators that cut a derivative, and variables that have none, are told as
    well. None where the residual cannot be evaluated so.

    Raises:
        UncollectedTensorError: there is one.
        LoadedParameterError: the residual writes its variables into a tensor from outside.
    """
    if term.check_kept is None or term.is_of_library or term.jacobians is not None:
        influence.note_unknown(probe)
        return None
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Converting a tensor with requires_grad=True", UserWarning)
        leaves = [x.detach().requires_grad_() for x in storages]
        followed = tuple(leaf.clone() for leaf in leaves)  # may be written to
        cuts, loads = Cuts(), Loads(followed, first.values(), term.name)
        try:
            with Composed(), loads.assignments, loads, cuts:
                output = term.residual(probe.values_of_block(followed), dict(first))
        except (RuntimeError, IndexError, TypeError, AttributeError):
            influence.note_unknown(probe)
            return None  # it is evaluated again, and the error explained
    advice = cuts.advice(output, term.name)
    if advice:
        warnings.warn(advice, CutDerivativeWarning, stacklevel=2)
        influence.note_unknown(probe)
    else:
        influence.note(probe, tuple(leaves), first, output)
    detached = pytree.map_leaves(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, output)
    del output
    term.check_kept(leaves)
    return detached


def of_a_block(
    function: Callable[[tuple[Tensor, ...], dict[str, Tensor]], T],
    term: Term,
    batched: frozenset[str],
    values: Values,
    inputs: Inputs,
) -> T:
    """`function(storages, inputs)` of the first block of the first problem at which it can be evaluated.

    PyTorch raises where a matrix cannot be factored. One such problem must not stop the others of a batch.
    """
    failure: LinAlgError | None = None
    for problem in range(min(len(values[0]), MOST_TRIED)):
        try:
            return function(*first_block(term, batched, values, inputs, problem))
        except LinAlgError as error:
            failure = failure or error
    assert failure is not None  # there is at least one problem
    raise failure


def first_block(
    term: Term, batched: frozenset[str], values: Values, inputs: Inputs, problem: int = 0
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The storages and inputs of the first block of a problem; copies, since a residual may write into what it is
    given."""
    storages = []
    for slot in term.slots:
        x, index = values[slot.unknown][problem], slot.index  # an index of a device is not asked for its numbers
        storages.append(x[index].clone() if isinstance(index, int) else x.index_select(0, index[:1])[0].clone())
    first = {}
    for name, tensor in inputs.items():
        tensor = tensor[problem] if name in batched else tensor
        first[name] = (tensor[0] if name in term.per_block else tensor).clone()
    return tuple(storages), first


def checked_residual(output: Any, name: str) -> tuple[Tensor, int]:
    """The residual of one block as a vector, or an error that says what the cost function returned instead."""
    leaves = pytree.leaves(output)
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            is_pair = isinstance(output, tuple) and len(output) == 2
            hint = " For a pair (residual, aux), least_squares takes has_aux=True." if is_pair else ""
            raise ProblemError(
                f"Cost {name!r}: the residual must be a tensor or a pytree of tensors, it contains "
                f"{type(leaf).__name__}.{hint}"
            )
        if not (leaf.is_floating_point() or leaf.is_complex()):
            raise DtypeError(f"Cost {name!r}: the residual must be real or complex floating point, not {leaf.dtype}.")
    if not leaves or sum(leaf.numel() for leaf in leaves) == 0:
        raise ShapeError(f"Cost {name!r}: the residual is empty.")
    return residual_vector(output)
