"""In new processes: a user without a home, a home or a package that cannot be written, paths with spaces.

Real ones, not imitated: namespaces of Linux give a process a user whom no list knows, and folders mounted read-only.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mslsq
from mslsq.kernels.build import NAME, record

UNKNOWN_USER = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]

SOLVE = """
import json, warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import mslsq, mslsq.kernels
    from mslsq.datasets.synthetic_graphs import ring_graph
    made = ring_graph(laps=1, per_lap=40).graph
    costs = []
    for linear_solver in (mslsq.linear.SparseCholesky(), mslsq.linear.Cholesky()):
        solver = mslsq.LevenbergMarquardt(linear_solver=linear_solver)
        costs.append(float(mslsq.solve(made.problem(), {"pose": made.poses}, solver=solver).cost))
print(json.dumps({
    "package": mslsq.__file__,
    "kernels": mslsq.kernels.available(),
    "costs": costs,
    "warnings": [f"{one.category.__name__}: {one.message}" for one in said if "mslsq" in str(one.message)],
}))
"""


def namespaces(*command: str) -> bool:
    return subprocess.run(["unshare", *command, "true"], capture_output=True).returncode == 0


def possible() -> bool:
    """Root alone: in other users' namespaces / has an unknown owner, and no library in such a place is trusted."""
    return sys.platform == "linux" and os.geteuid() == 0 and bool(shutil.which("unshare")) and namespaces("-U", "-m")


pytestmark = [pytest.mark.kernels, pytest.mark.skipif(not possible(), reason="needs root on Linux, and namespaces")]


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """A copy of the package, its library with it, in a path with spaces."""
    folder = tmp_path / "where people install" / "site packages"
    shutil.copytree(Path(mslsq.__file__).parent, folder / "mslsq", ignore=shutil.ignore_patterns("__pycache__"))
    if not (folder / "mslsq" / "kernels" / NAME).exists():
        pytest.skip("the kernels were not compiled when the package was installed")
    return folder


@pytest.fixture
def compiler(tmp_path: Path, site_packages: Path) -> dict[str, str]:
    """The library is taken out of the package; the variables of a compiler that copies it, in no time."""
    packaged, library = site_packages / "mslsq" / "kernels" / NAME, tmp_path / "compiled"
    packaged.rename(library)
    record(packaged).unlink()
    script = tmp_path / "quick c++"
    script.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec cp {shlex.quote(str(library))} "$2"\n')
    script.chmod(0o755)
    return {"CXX": str(script)}


def solved_by_an_unknown_user(site_packages: Path, variables: dict[str, str], read_only: Path) -> dict[str, Any]:
    """What a process says that may not write below a folder, and has no variables of the caller's home."""
    own = ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "MSLSQ_CACHE_DIR", "MSLSQ_TARGET", "CXX")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    mounted = f"mount --bind {shlex.quote(str(read_only))} {shlex.quote(str(read_only))}"
    script = f"{mounted} && {mounted.replace('--bind', '-o remount,ro,bind')} && exec {shlex.join(UNKNOWN_USER)} "
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script + shlex.join([sys.executable, "-c", SOLVE])],
        cwd=site_packages,
        env=environment | {"PYTHONPATH": str(site_packages), "OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert Path(said["package"]).is_relative_to(site_packages) and said["kernels"]
    assert said["costs"][0] == pytest.approx(said["costs"][1], rel=1e-9)
    return said


@pytest.mark.slow
def test_the_packaged_kernels_need_no_home_and_no_entry_in_the_list_of_users(site_packages, tmp_path):
    said = solved_by_an_unknown_user(site_packages, {}, read_only=tmp_path)
    assert said["warnings"] == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("home", "reason"), [({}, "no home folder"), ({"HOME": "my home"}, "Read-only file system")])
def test_without_a_home_that_can_be_written_kernels_are_compiled_and_a_warning_says_why(
    home, reason, site_packages, compiler, tmp_path
):
    (tmp_path / "my home").mkdir()
    variables = compiler | {name: str(tmp_path / folder) for name, folder in home.items()}
    (warning,) = solved_by_an_unknown_user(site_packages, variables, read_only=tmp_path)["warnings"]
    assert warning.startswith("KernelsNotKeptWarning") and reason in warning and "MSLSQ_CACHE_DIR" in warning


@pytest.mark.slow
def test_a_package_that_cannot_be_written_keeps_its_kernels_in_a_home_with_spaces(site_packages, compiler, tmp_path):
    home = tmp_path / "my home"
    home.mkdir()
    said = solved_by_an_unknown_user(site_packages, compiler | {"HOME": str(home)}, read_only=site_packages)
    assert said["warnings"] == []
    assert len(list((home / ".cache" / "mslsq").rglob(NAME))) == 1
