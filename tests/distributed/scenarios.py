"""Runs scenarios on one rank, and writes what they return; started by `conftest.run_ranks`."""

import json
import os
import sys
from pathlib import Path

import derivatives
import failures
import layers
import solutions
import torch
import torch.distributed as dist
from problems import SCENARIOS, TIMEOUT, rank

from mslsq import distributed

ROOMS = (solutions, derivatives, failures, layers)
"""They enter their scenarios when they are imported."""


def main() -> None:
    torch.set_num_threads(1)
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    distributed.initialize("gloo", timeout=TIMEOUT)
    found = {name: SCENARIOS[name]() for name in names}
    (folder / f"{rank()}.json").write_text(json.dumps(found))
    if "a_rank_that_dies" in names or "a_rank_that_hangs" in names:
        os._exit(0)  # the process group is of no more use
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
