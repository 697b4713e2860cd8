"""Many processes on `torch.distributed`: the blocks of one problem, or the problems of a batch, on several ranks."""

from mslsq.distributed.batch import solve_batch
from mslsq.distributed.group import Traffic, traffic
from mslsq.distributed.solve import solve
from mslsq.distributed.start import initialize
from mslsq.ranks import RankFailedError, RankLostError, RanksDifferError, RanksError

__all__ = [
    "RankFailedError",
    "RankLostError",
    "RanksDifferError",
    "RanksError",
    "Traffic",
    "initialize",
    "solve",
    "solve_batch",
    "traffic",
]
