"""Begin and end with the processes that `torchrun` has started."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from mslsq.distributed.solve import TIMEOUT
from mslsq.ranks import RankLostError, RanksError
from mslsq.validation import number

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What `torchrun` tells a process."""


def initialize(backend: str | None = None, timeout: float = TIMEOUT) -> int:
    """Join the processes that `torchrun` has started, and return the number of this one (its rank).

    Args:
        backend: "gloo" for tensors on a CPU, "nccl" for those on GPUs; by default "nccl" where there is a GPU. With
            "nccl" the GPU of this process becomes the current one (`LOCAL_RANK`).
        timeout: seconds to wait for the other processes.

    Raises:
        RanksError: the process was not started by `torchrun`.
        RankLostError: not all processes have come within the time-out, because fewer were started than `WORLD_SIZE`
            says, for instance.

    >>> rank = mslsq.distributed.initialize()
    """
    number("distributed.initialize: timeout", timeout, above=0)
    if dist.is_initialized():
        return dist.get_rank()
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise RanksError(
            f"distributed.initialize: {', '.join(missing)} not set in the environment. Start the program by "
            "`torchrun --nproc-per-node=N file.py`."
        )
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:
        raise RankLostError(
            f"Rank {os.environ['RANK']} waited {timeout:g} s for {os.environ['WORLD_SIZE']} processes (WORLD_SIZE) at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}, and not all came. Start as many, with different "
            "RANKs, or let torchrun do it."
        ) from error
    return dist.get_rank()
