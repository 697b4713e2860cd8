"""What every test needs: one thread, the same examples on every run, and the data sets beside the repository."""

import os
from pathlib import Path

import hypothesis
import pytest
import torch

torch.set_num_threads(1)  # small problems: torch's own pool only fights with pytest-xdist's processes

# the same examples everywhere: a failure in CI is a failure here. No deadline: torch's first call of anything is slow.
hypothesis.settings.register_profile("mslsq", deadline=None, derandomize=True)
hypothesis.settings.load_profile("mslsq")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of data sets (``nist``, ``g2o``, ``bal``, ``maps``); without it the tests that need it skip."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("MSLSQ_DATA", beside)).expanduser()
    if not folder.is_dir():
        pytest.skip(f"no data sets in {folder}: put them there, or set MSLSQ_DATA to their folder")
    return folder
