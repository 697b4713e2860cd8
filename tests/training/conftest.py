"""The command line of `scripts/train.py`, called in this process."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def train_script():
    """The module `train`, as Python finds it when the script is run."""
    pytest.importorskip("hydra")
    pytest.importorskip("imageio")
    return importlib.import_module("train")


@pytest.fixture
def command(train_script):
    """`command(folder, *overrides)` runs the script with these options and returns its exit code."""
    from command_line import CONFIGURATION_ERRORS, attempt, refuse
    from hydra import compose, initialize_config_dir

    def call(folder, *overrides):
        with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
            try:
                settings = compose("train", overrides=[str(option) for option in overrides])
            except CONFIGURATION_ERRORS as error:
                return refuse(error)
        return attempt(train_script.run, settings, Path(folder))

    yield call
    for name in [name for name in sys.modules if name == "training" or name.startswith("training.")]:
        del sys.modules[name]
    sys.modules.pop("train", None)
