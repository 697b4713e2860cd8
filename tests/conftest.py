"""What every test needs: one thread, the same examples on every run, and the data sets beside the repository."""

import os
import warnings
from pathlib import Path

import hypothesis
import pytest
import torch

from mslsq.kernels import available

torch.set_num_threads(1)  # small problems: torch's own pool only fights with pytest-xdist's processes

# the same examples everywhere: a failure in CI is a failure here. No deadline: torch's first call of anything is slow.
hypothesis.settings.register_profile("mslsq", deadline=None, derandomize=True)
hypothesis.settings.load_profile("mslsq")


def kernels_available() -> bool:
    """Are there compiled kernels? Asked before the first test: that there are none is then not said within one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return available()


def pytest_sessionstart() -> None:
    kernels_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kernels") and not kernels_available():
        pytest.skip("the compiled kernels are missing, and cannot be compiled here")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of data sets (``nist``, ``g2o``, ``bal``, ``maps``); without it the tests that need it skip."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("MSLSQ_DATA", beside)).expanduser()
    if not folder.is_dir():
        pytest.skip(f"no data sets in {folder}: put them there, or set MSLSQ_DATA to their folder")
    return folder
