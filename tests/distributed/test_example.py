"""The example on several processes runs as it says, and all its ways come to one cost."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LINE = re.compile(r"2 ranks, (?:direct|conjugate gradients): cost ([\d.]+), ")


def costs(*arguments: str) -> list[float]:
    """What two processes print of the direct and of the iterative solver."""
    example = [str(REPOSITORY / "examples" / "many_processes.py"), "--laps", "3", *arguments]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    told = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    ended = subprocess.run([*torchrun, *example], env=told, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr
    return [float(cost) for cost in LINE.findall(ended.stdout)]


@pytest.mark.slow
def test_the_example_comes_to_one_cost_by_all_its_ways():
    found = [*costs(), *costs("--own")]
    assert len(found) == 4
    assert found == pytest.approx([found[0]] * 4, rel=1e-6)
