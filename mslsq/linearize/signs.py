"""Signs that a term had a native program in a process before, left in the folder of programs.

To look for a program there its text must be written, which takes a tenth of a second: longer than the first solve of
many a problem. A sign is found at once. It promises nothing: what is found by its text is what counts.
"""

import hashlib
from collections.abc import Hashable
from types import CodeType
from typing import Any

import torch

from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.family import family_key
from mslsq.native.store import STORE
from mslsq.problem.system import Inputs

PLAIN = str, bytes, int, float, complex, type(None), torch.dtype, torch.device
"""What is told by how it is written."""


def sign_of(block: BlockTerm, values: Values, inputs: Inputs) -> str | None:
    """What tells the term from others, in every process alike; None where what it reads is not known."""
    key = family_key(block, values, inputs)
    return None if key is None else sign_of_key(key)


def sign_of_key(key: Hashable) -> str:
    """What tells a key from others, in every process alike."""
    return hashlib.sha256(repr((torch.__version__, _alike(key))).encode()).hexdigest()[:32]


def has_sign(block: BlockTerm, values: Values, inputs: Inputs) -> bool:
    """Was there a program of such a term?"""
    sign = sign_of(block, values, inputs)
    return sign is not None and STORE.has_sign(sign)


def leave_sign(block: BlockTerm, values: Values, inputs: Inputs) -> None:
    """There is one now."""
    sign = sign_of(block, values, inputs)
    if sign is not None:
        STORE.leave_sign(sign)


def remove_sign(block: BlockTerm, values: Values, inputs: Inputs) -> None:
    """There is none any more."""
    sign = sign_of(block, values, inputs)
    if sign is not None:
        STORE.remove_sign(sign)


def _alike(value: Hashable) -> Any:
    """What stands for a value in all processes: of an object its type alone."""
    if isinstance(value, CodeType):
        return value.co_name, value.co_code, _alike(value.co_consts), value.co_names
    if isinstance(value, (tuple, list)):
        return tuple(map(_alike, value))
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(map(repr, map(_alike, value))))
    if isinstance(value, type):
        return value.__module__, value.__qualname__
    return value if isinstance(value, PLAIN) else _alike(type(value))
