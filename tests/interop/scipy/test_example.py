"""The example finds the orbit that its data are made of."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_orbit_is_found(capsys):
    spec = importlib.util.spec_from_file_location("numpy_residual", ROOT / "examples" / "numpy_residual.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--points", "40"]) < 5
    assert "termination condition is satisfied" in capsys.readouterr().out.splitlines()[4]
