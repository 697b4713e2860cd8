"""Under which note the program of a term of the library's own is found without its graph.

Recording the residual and the Jacobian of an SE(3) between factor takes 25 ms, a third of what a first solve of
sphere2500 takes besides its steps. The code of such a term is the library's, whose hash is part of what is noted; what
is left are types, shapes and names.
"""

from dataclasses import astuple, fields, is_dataclass
from enum import Enum
from typing import Any

import torch

from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.family import family_key
from mslsq.manifolds.space import ManifoldSpace, Space
from mslsq.native.noted import ROOMS, hashed
from mslsq.native.processor import VECTOR_BYTES, target
from mslsq.native.text import Argument
from mslsq.problem.system import Inputs

ALL_ROOMS = (*ROOMS, "factors", "front", "losses", "problem")
"""Where the code is that residual, weight and loss of such a term are made of, and how they are called."""

PLAIN = str, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size
"""What is told by how it is written."""


class _UnknownError(Exception):
    """Something is not told by how it is written."""


def key_of_term(block: BlockTerm, values: Values, inputs: Inputs, arguments: tuple[Argument, ...]) -> str | None:
    """What tells the program's text of a term from others, in every process alike; None of a term with anything of a
    user's own, and where something that its text depends on is not told by how it is written.

    Args:
        inputs: as given by the user.
        arguments: of the program.
    """
    term = block.term
    if not term.is_of_library or values[0].device.type != "cpu":
        return None
    key = family_key(block, values, inputs)
    if key is None:
        return None
    try:
        told = _told(key)
    except _UnknownError:
        return None
    names = [*["" for _ in term.slots], *inputs]
    indices = frozenset() if term.family is None else term.family.indices
    # No block reads an index, which has as many numbers as there are blocks. But inputs go by their places.
    forms = [None if name in indices else astuple(one) for name, one in zip(names, arguments, strict=True)]
    known = block.rows, block.tangents, term.jacobians is not None, forms
    return hashed(ALL_ROOMS, VECTOR_BYTES[target()], told, known)


def _told(value: Any) -> Any:
    """In plain values. Raises _UnknownError."""
    if isinstance(value, Space):
        if not value.is_euclidean and not (isinstance(value, ManifoldSpace) and value.is_of_library):
            raise _UnknownError
        return type(value).__name__, value.name, value.storage_dim, value.tangent_dim
    if isinstance(value, type):
        root, *rooms = value.__module__.split(".")
        if root not in ("builtins", "torch") and not (root == "mslsq" and rooms and rooms[0] in ALL_ROOMS):
            raise _UnknownError  # of a user, or of a room whose code is not part of the key
        return value.__module__, value.__qualname__
    if isinstance(value, Enum):
        return _told(type(value)), value.name
    if is_dataclass(value):
        return _told(type(value)), [(own.name, _told(getattr(value, own.name))) for own in fields(value)]
    if type(value) in (tuple, list):
        return tuple(map(_told, value))
    if isinstance(value, frozenset):
        return tuple(sorted(repr(_told(one)) for one in value))
    if type(value) in PLAIN:
        return value
    raise _UnknownError
