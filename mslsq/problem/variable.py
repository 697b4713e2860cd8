"""Variables: what is to be estimated, and references to some of its blocks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mslsq.elsewhere.members import NAMES_OF_VARIABLES, here
from mslsq.manifolds import space_of
from mslsq.problem.components import Components, checked_components
from mslsq.problem.errors import IndexRangeError, ProblemError
from mslsq.validation import integer, plain_number

Index = Any  # int, slice, sequence of int, or integer tensor of shape (E,)


class Variable:
    """One kind of unknown: `count` blocks on one manifold, under one name.

    Args:
        name: the key in the `values` of `mslsq.solve`.
        manifold: a manifold class (`mslsq.SE3`), `mslsq.Euclidean(dim)`, or a dict of them (their product).
        count: number of blocks; `None` is a single block without a leading axis.
        lower, upper: bounds of a Euclidean variable: numbers or tensors that broadcast to (count, dim), infinite or
            None where there is no bound. Where both are equal an entry is held. They are differentiable inputs of a
            solve, which `data={"bounds": {name: (lower, upper)}}` replaces for one call.

    `variable[index]` refers to blocks, one per block of a cost function; an integer refers to the same block for all
    of them. `variable.fixed(index)`, given to `Problem`, holds blocks at their start, and
    `variable.fixed(index, components=...)` a part of their tangent.

    >>> pose = Variable("pose", mslsq.SE3, count=4)
    >>> pose[torch.tensor([0, 1, 2])]
    pose[3 blocks of 4]
    """

    def __init__(self, name: str, manifold: Any, count: int | None = None, lower: Any = None, upper: Any = None):
        if not isinstance(name, str) or not name:
            raise ProblemError(f"Variable: the name must be a non-empty string, not {name!r}.")
        if count is not None:
            integer(f"Variable {name!r}: count", count, 1, otherwise="None", error=ProblemError)
        self.name = name
        self.manifold = manifold
        self.space = space_of(manifold)
        self.count = plain_number(count)
        self.lower, self.upper = lower, upper
        if (lower is not None or upper is not None) and not self.space.is_euclidean:
            raise ProblemError(
                f"Variable {name!r}: {self.space.name} has no bounds, since its elements are not ordered. Bound "
                "Euclidean variables alone; a limit of a rotation or a pose is a cost, or a variable of its own."
            )

    @property
    def num_blocks(self) -> int:
        return 1 if self.count is None else self.count

    def __getitem__(self, index: Index) -> "Blocks":
        if self.count is None:
            raise ProblemError(
                f"Variable {self.name!r} is a single block (count=None) and takes no index: pass the variable itself."
            )
        return Blocks(self, checked_index(self, index))

    def fixed(self, index: Index = None, components: Components = None) -> "Fixed":
        """A marker for `Problem`: these blocks (all of them without an index) stay at their start, whole or in part.

        Args:
            index: blocks, as in `variable[index]`.
            components: the components of the tangent that are held; None holds all of them. Numbers from 0 to
                tangent_dim − 1 in the order of the tangent, a slice, a mask (tangent_dim,), or names: "translation",
                "rotation" and "scale" of a group, the keys of a product by dict. Of a Euclidean variable they are its
                entries.

        What is held: `start.local(value)` is zero in these components. On a group that is motion in the frame of the
        block itself: of SE3, `components="rotation"` keeps the orientation, `"translation"` the position, `[2, 3, 4]`
        (z, roll, pitch) leaves motions in the x-y plane of the start. A set that does not keep its promise over two
        steps is refused: z alone of an SE3 could still change, by turning, moving and turning back. The height of a
        pose that turns freely is a component of `{"translation": Euclidean(3), "rotation": SO3}`.

        Raises:
            ProblemError: a component that the tangent does not have, here; components that cannot be held, in
                `Problem`.

        >>> mslsq.Problem(reprojection, camera.fixed(components=[7, 8]), pose.fixed([0]))    # distortion held
        """
        blocks = torch.arange(self.num_blocks, device="cpu") if index is None else self[index].index
        blocks = torch.tensor([blocks], device="cpu") if isinstance(blocks, int) else blocks.reshape(-1)
        return Fixed(self, blocks, checked_components(self.name, self.space, components))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            words = f"'Variable' object has no attribute {name!r}{here(name, NAMES_OF_VARIABLES)}"
            raise AttributeError(words, name=name, obj=self)

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, {self.space.name}, count={self.count})"


@dataclass(frozen=True, eq=False)
class Blocks:
    """References to blocks of a variable: an index per block of the cost, or one integer for all of them."""

    variable: Variable
    index: Tensor | int

    @property
    def count(self) -> int | None:
        return None if isinstance(self.index, int) else self.index.shape[0]

    def to(self, device: torch.device) -> "Blocks":
        """The same blocks, their index on another device."""
        if isinstance(self.index, int) or self.index.device == device:
            return self
        return Blocks(self.variable, self.index.to(device))

    def __repr__(self) -> str:
        shown = self.index if isinstance(self.index, int) else f"{len(self.index)} blocks of {self.variable.num_blocks}"
        return f"{self.variable.name}[{shown}]"


@dataclass(frozen=True, eq=False)
class Fixed:
    """Blocks of a variable that a problem holds at their start."""

    variable: Variable
    index: Tensor
    components: tuple[int, ...]
    """Of their tangent, those that are held."""

    def __repr__(self) -> str:
        whole = len(self.components) == self.variable.space.tangent_dim
        part = "" if whole else f"components {list(self.components)} of "
        return f"{part}{len(self.index)} blocks of {self.variable.name} fixed"


def blocks_of(reference: Variable | Blocks) -> Blocks:
    """What a cost function was given, as references: a whole variable means each of its blocks in turn."""
    if isinstance(reference, Blocks):
        return reference
    if isinstance(reference, Variable):
        return Blocks(reference, 0 if reference.count is None else torch.arange(reference.count, device="cpu"))
    raise ProblemError(
        f"A cost function takes Variables or variable[index] by position, not {type(reference).__name__}; "
        "pass measurements by keyword."
    )


def checked_index(variable: Variable, index: Index) -> Tensor | int:
    """The index as a non-negative int64 vector (or a plain integer), or an error that names the entry out of range."""
    if isinstance(index, slice):
        index = torch.arange(variable.num_blocks, device="cpu")[index]
    if not isinstance(index, Tensor):
        try:
            index = torch.as_tensor(index, device="cpu")
        except (TypeError, ValueError, RuntimeError):
            raise IndexRangeError(
                f"Variable {variable.name!r}: an index must be an integer or a vector of them, not {index!r}."
            ) from None
    if index.dtype == torch.bool and index.ndim == 1:
        if len(index) != variable.num_blocks:
            raise IndexRangeError(
                f"Variable {variable.name!r}: a mask must have one entry per block, {variable.num_blocks}, not "
                f"{len(index)}."
            )
        index = index.nonzero()[:, 0]
    if index.numel() == 0 and index.ndim == 1:
        index = index.to(torch.int64)
    if index.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        raise IndexRangeError(f"Variable {variable.name!r}: an index must be of integers, not {index.dtype}.")
    if index.ndim > 1:
        raise IndexRangeError(
            f"Variable {variable.name!r}: an index must be an integer or a vector of shape (blocks,), "
            f"not of shape {tuple(index.shape)}."
        )
    index = index.to(torch.int64)
    if index.ndim and len(index):
        # Three times as fast as looking for what is wrong; a device is asked once for both.
        least, most = index.aminmax() if index.is_cpu else torch.stack(index.aminmax()).cpu()
        if int(least) >= 0 and int(most) < variable.num_blocks:
            return index.clone(memory_format=torch.contiguous_format)
    wrong = (index < -variable.num_blocks) | (index >= variable.num_blocks)
    if bool(wrong.any()):
        where = 0 if index.ndim == 0 else int(wrong.nonzero()[0])
        value = int(index.reshape(-1)[where])
        raise IndexRangeError(
            f"Variable {variable.name!r} has {variable.num_blocks} blocks (0 to {variable.num_blocks - 1}); "
            f"entry {where} of the index is {value}."
        )
    index = torch.where(index < 0, index + variable.num_blocks, index)
    return int(index) if index.ndim == 0 else index
