"""SciPy's own tests of `least_squares` and `curve_fit`, from the installed wheel, run against ours.

Those that fail are listed on the page, with the reason. One that is not listed must pass, and one that is must fail
(with the SciPy of the page: other versions have other tests).
"""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
import scipy

from mslsq.interop.scipy import curve_fit, least_squares

PAGE = Path(__file__).parents[3] / "docs" / "how_to" / "from_scipy.md"
VERSION = re.findall(r"With SciPy (\d+\.\d+)", PAGE.read_text())[0]
IS_OF_PAGE = scipy.__version__.startswith(f"{VERSION}.")
EXPECTED = dict(re.findall(r"^\| `(test_\w+|Test\w+::\S+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE))


def scipys(name: str) -> ModuleType | None:
    """A module of SciPy's tests, where the wheel has them."""
    try:
        return importlib.import_module(f"scipy.optimize.tests.{name}")
    except ImportError:
        return None


LEAST_SQUARES, MINPACK = scipys("test_least_squares"), scipys("test_minpack")

if LEAST_SQUARES is None or MINPACK is None:
    pytest.skip("this wheel of SciPy has no tests", allow_module_level=True)

# Collected here as they are: classes with their fixtures and parameters, and functions.
globals().update(
    {name: type(name, (found,), {}) for name, found in inspect.getmembers(LEAST_SQUARES) if name.startswith("Test")}
)
globals().update({name: found for name, found in inspect.getmembers(LEAST_SQUARES) if name.startswith("test_")})
TestCurveFit = type("TestCurveFit", (MINPACK.TestCurveFit,), {})


@pytest.fixture(autouse=True)
def ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LEAST_SQUARES, "least_squares", least_squares)
    monkeypatch.setattr(MINPACK, "curve_fit", curve_fit)
    monkeypatch.setattr(importlib.import_module("scipy.optimize"), "curve_fit", curve_fit)
    reason = EXPECTED.get(name_of(request.node))
    if reason is not None:
        request.applymarker(pytest.mark.xfail(strict=IS_OF_PAGE, raises=AssertionError, reason=reason))


def name_of(item: pytest.Item) -> str:
    """The test as the page names it."""
    return item.nodeid.split("::", 1)[1]


def test_what_the_page_lists_is_among_these(request: pytest.FixtureRequest) -> None:
    here = {name_of(item) for item in request.session.items if item.path == Path(__file__)}
    if len(here) < 100 or not IS_OF_PAGE:
        pytest.skip("not all were collected, or another version of SciPy")
    assert set(EXPECTED) <= here
