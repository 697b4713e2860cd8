"""What every test needs: one thread, the same examples on every run, and the data sets beside the repository."""

import math
import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from mslsq.datasets import nist
from mslsq.front.alike_problems import ALIKE
from mslsq.kernels import KernelsMissingError, available
from mslsq.kernels.build import CompilerError, compiler
from mslsq.linearize import plan_cache, prospects
from mslsq.solvers import planning, whole_solves

os.environ["MPLBACKEND"] = "Agg"  # no windows; by a variable, so that matplotlib is not needed where nothing is drawn
torch.set_num_threads(1)  # small problems: torch's own pool only fights with pytest-xdist's processes

# the same examples everywhere: a failure in CI is a failure here. No deadline: torch's first call of anything is slow.
hypothesis.settings.register_profile("mslsq", deadline=None, derandomize=True)
hypothesis.settings.load_profile("mslsq")


HAVE_KERNELS = pytest.StashKey[bool]()
WITHOUT_KERNELS = "the compiled kernels are missing, and cannot be compiled here"


def pytest_configure(config: pytest.Config) -> None:
    """Are there compiled kernels? Asked before the first test: that there are none is then not said within one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config.stash[HAVE_KERNELS] = available()


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with ``@pytest.mark.sampled(n)``, n of its cases stay fast; the others are slow."""
    cases: dict[tuple[Path, str], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled"):
            cases.setdefault((item.path, item.originalname), []).append(item)
    for alike in cases.values():
        chosen: set[int] = set()
        number = 0
        while len(chosen) < min(alike[0].get_closest_marker("sampled").args[0], len(alike)):
            # multiples of the golden ratio: spread over the list, in step with none of the parameters
            chosen.add(int(number * 0.6180339887 % 1 * len(alike)))
            number += 1
        for item in (item for k, item in enumerate(alike) if k not in chosen):
            item.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kernels") and not item.config.stash[HAVE_KERNELS]:
        pytest.skip(WITHOUT_KERNELS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Where there are no kernels, a test that calls one is skipped (kernels/test_without_kernels.py has what works)."""
    try:
        return (yield)
    except KernelsMissingError:
        if item.config.stash[HAVE_KERNELS]:
            raise
        pytest.skip(WITHOUT_KERNELS)


@pytest.fixture(autouse=True)
def no_plans_of_other_tests() -> None:
    """What one test has recorded of a problem serves none of the next test's."""
    plan_cache.SHARED.clear()
    ALIKE.clear()


@pytest.fixture(autouse=True)
def no_program_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native programs come where a test asks for them, not after a second of solves: on a busy machine that could be
    between two calls whose bits are compared."""
    for module in (prospects, planning, whole_solves):
        monkeypatch.setattr(module, "PROGRAM_SECONDS", math.inf)
    monkeypatch.setattr(prospects, "LOOK_SECONDS", math.inf)
    monkeypatch.setattr(whole_solves, "seconds_of_finding", lambda sign: math.inf)


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt as it does for a user at a terminal: what is started in the background of a shell
    (or by `nohup`, some machines of CI) begins with SIGINT ignored, and then Python installs no handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def cxx() -> list[str]:
    """The command of the C++ compiler."""
    try:
        return compiler()
    except CompilerError:
        pytest.skip("there is no C++ compiler")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of data sets (``nist``, ``g2o``, ``bal``, ``maps``); without it the tests that need it skip."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("MSLSQ_DATA", beside)).expanduser()
    if not folder.is_dir():
        pytest.skip(f"no data sets in {folder}: put them there, or set MSLSQ_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def nist_set(shared_data: Path) -> Callable[[str], nist.Regression]:
    """Reads one of NIST's sets by name, or skips the test: of the 27 a folder may hold a part."""

    def read(name: str) -> nist.Regression:
        path = shared_data / "nist" / f"{name}.dat"
        if not path.exists():
            pytest.skip(f"no {path.name} among the data sets")
        return nist.read(path)

    return read


@pytest.fixture
def noting() -> Callable[[Callable[[torch.Tensor], torch.Tensor]], tuple[Callable[..., Any], list[bool]]]:
    """`noting(question)`: an identity for residuals that notes the answer for every point it sees, under transforms
    too; and the list of the answers."""

    def of(question: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Callable[..., Any], list[bool]]:
        answers: list[bool] = []

        class Noted(torch.autograd.Function):
            generate_vmap_rule = False

            @staticmethod
            def forward(p: torch.Tensor) -> torch.Tensor:
                answers.append(bool(question(p).any()))
                return p.clone()

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                pass

            @staticmethod
            def backward(ctx: Any, *g: Any) -> Any:
                return g[0]

            @staticmethod
            def jvp(ctx: Any, *tangents: Any) -> Any:
                return tangents[0].clone()

            @staticmethod
            def vmap(info: Any, in_dims: Any, p: torch.Tensor) -> Any:
                return Noted.apply(p.movedim(in_dims[0], 0)), 0

        return Noted.apply, answers

    return of
