"""The ranks of `torch.distributed` that solve together: sums, decisions, time-outs, and what one rank tells the others.

What a rank does on its own between two sums may fail: the user's residual raises, Ctrl-C comes. So a sum is announced:
a few integers go round first, their largest on all ranks says whether one of them has failed, been interrupted, or is
at another place of the program. All ranks read the same integers, so all raise or none. A rank that has failed takes
part in the next announcement and leaves; after that the process group can be used again.
"""

import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from mslsq.distributed.waiting import wait_for
from mslsq.ranks import RankFailedError, RankLostError, Ranks, RanksDifferError

FINE, INTERRUPTED, FAILED = 0, 1, 2
"""What a rank announces of itself."""


class InterruptedElsewhere(KeyboardInterrupt):
    """A KeyboardInterrupt of some rank, raised on all of them at the same place."""


@dataclass
class Traffic:
    """What this process has exchanged with other ranks."""

    collectives: int = 0
    bytes: int = 0
    """Of the tensors that it has given to collectives."""
    seconds: float = 0.0
    """Between the begin and the end of a collective, waiting for slower ranks included."""


_TRAFFIC = Traffic()
"""Of this process."""


def traffic() -> Traffic:
    """What this process has exchanged with other ranks so far: a snapshot. The difference of two of them says what a
    solve costs in collectives and bytes.

    >>> before = mslsq.distributed.traffic()
    >>> mslsq.distributed.solve(problem, {"pose": T0})
    >>> mslsq.distributed.traffic().collectives - before.collectives
    """
    return replace(_TRAFFIC)


@dataclass(eq=False)
class Together(Ranks):
    """The ranks of a process group.

    Args:
        group: of `torch.distributed`; None for all processes.
        timeout: seconds that a rank waits for the others.
        device: of the tensors that are exchanged.
    """

    group: Any
    timeout: float
    device: torch.device

    is_alone = False

    def __post_init__(self) -> None:
        self.rank, self.count = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.is_first = self.rank == 0
        self.key: Hashable = ("ranks", self.rank, self.count)
        self._interrupt_is_pending = False

    # ---- what the engine asks for

    def summed(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._announce(flat.numel())
        self._reduce(flat, dist.ReduceOp.SUM)
        pieces = flat.split([tensor.numel() for tensor in tensors])
        return tuple(piece.reshape(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True))

    def product_sum(self, tensor: Tensor) -> Tensor:
        """The sum of one tensor inside of an iteration, where nothing of the user's runs: not announced."""
        total = tensor.contiguous().clone()
        self._reduce(total, dist.ReduceOp.SUM)
        return total

    def any(self, *flags: bool) -> tuple[bool, ...]:
        return tuple(bool(flag) for flag in self._announce(-len(flags), [int(flag) for flag in flags]))

    def agreed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        flat = torch.cat([tensor.reshape(-1).to(torch.float64) for tensor in tensors])  # holds all of them exactly
        self._exchange(flat, lambda: self._sent_by_the_first(flat))
        pieces = flat.split([tensor.numel() for tensor in tensors])
        pairs = zip(pieces, tensors, strict=True)
        return [piece.reshape(tensor.shape).to(tensor.dtype) for piece, tensor in pairs]

    def union(self, rows: np.ndarray) -> np.ndarray:
        own = np.unique(np.ascontiguousarray(rows, dtype=np.int64), axis=0)
        (most,) = self.largest(len(own))
        padded = np.full((most, own.shape[1]), -1)
        padded[: len(own)] = own
        gathered = np.concatenate([part.cpu().numpy() for part in self.gathered(torch.from_numpy(padded))])
        return np.unique(gathered[gathered[:, 0] >= 0], axis=0)

    def tell_interrupt(self, interrupt: KeyboardInterrupt) -> None:
        if not isinstance(interrupt, InterruptedElsewhere):
            self._tell(INTERRUPTED)

    # ---- what the front door asks for

    def largest(self, *numbers: int) -> tuple[int, ...]:
        """The largest of each number on any rank."""
        return tuple(self._announce(-100 - len(numbers), numbers))

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of one shape."""
        self._announce(tensor.numel())
        own = tensor.to(self.device).contiguous()
        found = [torch.empty_like(own) for _ in range(self.count)]
        self._exchange(own, lambda: dist.all_gather(found, own, self.group, async_op=True))
        return found

    def objects(self, value: Any) -> list[Any]:
        """The values of all ranks, pickled: small ones, at places where something is to be said."""
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value, self.group)
        return found

    @contextmanager
    def as_one(self, defers: bool = True) -> Iterator[None]:
        """What one rank raises in here ends all ranks: it tells the others. Where something is exchanged again and
        again Ctrl-C waits until it can be told (`defers`); the second one does not."""
        with _deferred_interrupts(self._defer) if defers else nullcontext():
            try:
                yield
            except (RankLostError, RankFailedError, RanksDifferError, InterruptedElsewhere):
                raise  # all ranks know
            except KeyboardInterrupt:
                self._tell(INTERRUPTED)
                raise
            except Exception:
                self._tell(FAILED)
                raise

    # ---- how it is done

    def _defer(self) -> None:
        if self._interrupt_is_pending:
            raise KeyboardInterrupt
        self._interrupt_is_pending = True

    def _announce(self, kind: int, numbers: Sequence[int] = ()) -> list[int]:
        """The largest of each number, where all ranks are well and at the same place."""
        code = INTERRUPTED if self._interrupt_is_pending else FINE
        said = torch.tensor([code, kind, -kind, *numbers, *[0] * (WIDTH - 3 - len(numbers))], device=self.device)
        self._reduce(said, dist.ReduceOp.MAX)
        code, most, least, *rest = said.tolist()
        if code == FAILED:
            raise RankFailedError(
                f"Rank {self.rank}: another rank has failed, so the solve ends on all of them. Its own message is in "
                "its output."
            )
        if code == INTERRUPTED:
            self._interrupt_is_pending = False
            raise InterruptedElsewhere(
                f"Rank {self.rank}: Ctrl-C on one of the {self.count} ranks has ended the solve on all."
            )
        if most != -least:
            raise RanksDifferError(
                f"Rank {self.rank} wants to exchange {abs(kind)} numbers, other ranks between {abs(least)} and "
                f"{abs(most)}: they do not solve the same problem, or do not call the same functions in the same order."
            )
        return rest[: len(numbers)]

    def _tell(self, code: int) -> None:
        """Take part in the announcement that the others come to next."""
        self._interrupt_is_pending = False
        said = torch.tensor([code, *[0] * (WIDTH - 1)], device=self.device)
        self._reduce(said, dist.ReduceOp.MAX)

    def _reduce(self, tensor: Tensor, how: Any) -> None:
        self._exchange(tensor, lambda: dist.all_reduce(tensor, how, self.group, async_op=True))

    def _sent_by_the_first(self, tensor: Tensor) -> Any:
        source = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        return dist.broadcast(tensor, source, self.group, async_op=True)

    def _exchange(self, tensor: Tensor, begin: Callable[[], Any]) -> None:
        """Run a collective, within the time-out."""
        started = time.perf_counter()
        try:
            work = begin()
            wait_for(work, started + self.timeout, polls=self.device.type != "cpu")
        except RuntimeError as error:
            waited = time.perf_counter() - started
            what = "has not answered" if "imed out" in str(error) else "is gone"
            raise RankLostError(
                f"Rank {self.rank} of {self.count}: another rank {what} ({waited:.1f} s, time-out {self.timeout:g} s, "
                f"exchange number {_TRAFFIC.collectives}). Look at the output of the other ranks; a rank that "
                "computes for longer needs a larger timeout."
            ) from error
        _TRAFFIC.collectives += 1
        _TRAFFIC.bytes += tensor.numel() * tensor.element_size()
        _TRAFFIC.seconds += time.perf_counter() - started


WIDTH = 6
"""Integers in an announcement."""


@contextmanager
def _deferred_interrupts(defer: Callable[[], None]) -> Iterator[None]:
    """SIGINT calls `defer`; only in the main thread, where Python raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: defer())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
