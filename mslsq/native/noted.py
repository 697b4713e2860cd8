"""Which text a recorded graph became in a process before, noted beside the programs.

A process that only loads a program needs its text for one thing: to find it. Writing the text of an SE(3) between
factor (derivatives included) takes 60 ms, recording its graph 10. A text follows from the graph and from the library's
own code, so that their hash tells it; what is noted is the hash of the text, under which the program is kept, and which
inputs it reads. A program that is found so is compared with PyTorch as any other.
"""

import hashlib
import operator
import os
from collections.abc import Hashable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from mslsq.native.arrays import LARGEST_READ
from mslsq.native.store import STORE
from mslsq.private import is_operator
from mslsq.tracing.graph import attribute_of

ROOMS = "native", "linearize", "manifolds", "tracing"
"""Where the code is that makes a text of a graph: rules and derivatives, what they are asked for, the moves of
manifolds, and how those are recorded."""

PLAIN = str, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format
"""Arguments of operators that are told by how they are written."""


class Noted(NamedTuple):
    """What is known of a text."""

    digest: str
    """Its hash."""
    inputs: int
    """How many the program is given: what it writes to stands behind them."""
    used: frozenset[int]
    """The inputs of which the program reads something."""


def key_of(graph: fx.GraphModule, *more: Hashable) -> str | None:
    """What tells the text of a graph from others, in every process alike; None where something in the graph is not
    known to the end.

    Args:
        graph: with `meta["val"]`, as it was recorded.
        more: what the text depends on besides, of plain values.
    """
    try:
        told = list(_told(graph))
    except _UnknownError:
        return None
    return hashed(ROOMS, told, more)


def hashed(rooms: tuple[str, ...], *parts: Any) -> str:
    """A key of plain values, and of the library's code in these rooms."""
    known = _code(rooms), torch.__version__, torch.get_default_dtype(), *parts
    return hashlib.sha256(repr(known).encode()).hexdigest()[:32]


def find(key: str) -> Noted | None:
    """What was noted under a key; None also of what is damaged: a program is given no input but those it is said to
    read."""
    words = words_of(key)
    if words is None:
        return None
    digest, inputs, *used = words.split()
    return Noted(digest, int(inputs), frozenset(map(int, used)))


def note(key: str, known: Noted) -> None:
    """For processes to come."""
    leave_words(key, " ".join([known.digest, *map(str, (known.inputs, *sorted(known.used)))]))


def words_of(key: str) -> str | None:
    """What was left under a key; None also of what is damaged."""
    words, _, checksum = (STORE.note(key) or "").rpartition(" ")
    return words if words and checksum == _checksum(key, words) else None


def leave_words(key: str, words: str) -> None:
    """For processes to come."""
    STORE.leave_note(key, f"{words} {_checksum(key, words)}")


def _checksum(key: str, words: str) -> str:
    return hashlib.sha256(f"{key} {words}".encode()).hexdigest()


class _UnknownError(Exception):
    """Something in a graph is not told by how it is written."""


def _told(graph: fx.GraphModule) -> Iterator[Any]:
    """The nodes of a graph, by their numbers, in plain values."""
    numbers: dict[fx.Node, int] = {}

    def told(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return "node", numbers[value]
        if isinstance(value, (list, tuple)):
            return [told(part) for part in value]
        if type(value) not in PLAIN:
            raise _UnknownError
        return value

    for number, node in enumerate(graph.graph.nodes):
        numbers[node] = number
        constant = _constant(attribute_of(graph, node)) if node.op == "get_attr" else None
        named = sorted(node.kwargs.items())
        arguments = None if constant else (told(node.args), [(name, told(value)) for name, value in named])
        yield node.op, _target(node), arguments, constant, _shapes(node.meta.get("val"))


def _target(node: fx.Node) -> str:
    if node.op in ("placeholder", "get_attr", "output"):
        return ""  # inputs are told by their order, constants by what they hold
    if node.op == "call_function" and is_operator(node.target):
        return str(node.target)
    if node.op == "call_function" and node.target is operator.getitem:
        return "getitem"
    raise _UnknownError


def _constant(tensor: Tensor) -> Any:
    if tensor.numel() > LARGEST_READ:  # no program has such a one
        raise _UnknownError
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return tuple(tensor.shape), tensor.dtype, plain.view(torch.uint8).numpy().tobytes()


def _shapes(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_shapes(part) for part in value]
    return (tuple(value.shape), value.dtype, value.device.type) if isinstance(value, Tensor) else None


@cache
def _code(rooms: tuple[str, ...]) -> str:
    """A hash of the library's code in these rooms. Reading it takes 8 ms; where no file has changed since a process
    before has read it, which the system says of each in a tenth of that, it is what was noted then."""
    package = str(Path(__file__).parents[1])
    files = sorted((path, state) for room in rooms for path, state in _files(os.path.join(package, room)))
    key = hashlib.sha256(repr(("code", package, files)).encode()).hexdigest()[:32]
    known = words_of(key)
    if known is None:
        known = _read(package, [path for path, _ in files])
        leave_words(key, known)
    return known


def _read(package: str, paths: list[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            digest.update(f"{os.path.relpath(path, package)}\0".encode() + file.read())
    return digest.hexdigest()


def _files(folder: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The files of code in a folder, and what changes with every write to one: also with one that sets the time of the
    last write back, as an installation from an archive does."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.name.endswith((".py", ".h")):
                found = entry.stat()
                yield entry.path, (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
