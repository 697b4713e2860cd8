"""What is given away: the source archive has all that the README's commands and the tests need, a wheel its kernels."""

import json
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from mslsq.kernels.build import NAME, CompilerError, checksum, compiler

REPOSITORY = Path(__file__).resolve().parents[1]


def tracked() -> list[str]:
    """The files that belong to the project, by git."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: there is nothing to compare with")
    return [name for name in done.stdout.splitlines() if (REPOSITORY / name).exists()]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the project, nothing built in it."""
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip("the build needs setuptools 77")
    for name in tracked():
        target = tmp_path / "check out" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, target)
    return tmp_path / "check out"


def run(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python in a checkout."""
    environment = os.environ | variables
    return subprocess.run([sys.executable, *arguments], cwd=checkout, env=environment, capture_output=True, text=True)


def build(checkout: Path, *arguments: str, **variables: str) -> None:
    """As `python -m build --no-isolation` does it, which is not needed for that."""
    done = run(checkout, *arguments, **variables)
    assert done.returncode == 0, done.stderr


def test_the_source_archive_is_the_whole_project(checkout: Path) -> None:
    build(checkout, "-c", "import setuptools.build_meta as backend; backend.build_sdist('dist')")
    (archive,) = (checkout / "dist").iterdir()
    with tarfile.open(archive) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames() if opened.getmember(name).isfile()}
    assert sorted(set(tracked()) - packed) == []
    made = {name for name in packed if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    assert sorted(packed - made - set(tracked())) == []


@pytest.mark.slow
def test_wheels_and_editable_installations_bring_the_kernels_and_their_checksum(checkout: Path, tmp_path: Path) -> None:
    try:
        command = shlex.join(compiler())
    except CompilerError:
        pytest.skip("there is no C++ compiler")
    quick = tmp_path / "quick c++"
    quick.write_text(f'#!/bin/sh\nexec {command} "$@" -O0\n')
    quick.chmod(0o755)
    build(checkout, "setup.py", "build_ext", "--inplace", CXX=str(quick))
    library = checkout / "mslsq" / "kernels" / NAME
    assert library.with_name(f"{NAME}.sha256").read_text().startswith(f"{checksum(library)}  {NAME}\n")

    build(checkout, "-c", "import setuptools.build_meta as backend; backend.build_wheel('dist')", CXX=str(quick))
    (wheel,) = (checkout / "dist").iterdir()
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "installed")
    packed = tmp_path / "installed" / "mslsq" / "kernels" / NAME
    assert packed.with_name(f"{NAME}.sha256").read_text().startswith(f"{checksum(packed)}  {NAME}\n")
    assert checksum(packed) == checksum(library)
    assert "-py3-none-" in wheel.name


def test_without_a_compiler_the_package_is_built_all_the_same(checkout: Path) -> None:
    build(
        checkout,
        "-c",
        "import setuptools.build_meta as backend; backend.build_wheel('dist')",
        CXX="no-such-compiler",
    )
    (wheel,) = (checkout / "dist").iterdir()
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert "mslsq/alignment/metrics/learned.npz" in names
    assert "mslsq/kernels/source/schur.cpp" in names and f"mslsq/kernels/{NAME}" not in names


def test_where_the_kernels_are_required_the_build_fails_and_says_why(checkout: Path) -> None:
    arguments = ("-c", "import setuptools.build_meta as backend; backend.build_wheel('dist')")
    done = run(checkout, *arguments, CXX="no-such-compiler", MSLSQ_KERNELS="required")
    assert done.returncode and "no C++ compiler: looked for no-such-compiler" in done.stderr
    assert not list(checkout.glob("dist/*.whl"))


def test_the_page_of_tested_versions_says_what_the_runs_gave() -> None:
    results = json.loads((REPOSITORY / ".ci" / "versions.json").read_text())
    matrix = runpy.run_path(str(REPOSITORY / ".ci" / "matrix.py"))
    assert (REPOSITORY / "docs" / "project" / "versions.md").read_text("utf-8") == matrix["page"](results)
    assert sorted(results, key=matrix["combination"]) == results
