"""What share of the code that users write is closed, and what makes the rest open.

    python benchmarks/closed_code.py                          # examples, pages and written residuals: five minutes
    python benchmarks/closed_code.py --sources users          # those of `user_programs/written.py`: seconds
    python benchmarks/closed_code.py --sources programs       # the other residuals of `user_programs/`: a minute
    python benchmarks/closed_code.py --sources tests --half B

Calls of closed code are answered at once (docs/guide/solvers.md). Looked at are residuals and costs: those of
`user_programs/`, written as different users would write them; those that the examples, the code of the documentation
and `tests/front` hand to a solve while they run. Each counts once, by its code. They are split in halves by a hash of
the name: constructs are opened for half A, the claim is that of half B.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import io
import os
import sys
import tempfile
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from timing import print_machine, print_table

import mslsq
from mslsq.front import residual_statement
from mslsq.front.closed_costs import elements, overrides, own_costs
from mslsq.tracing.reading.closed import why_open
from mslsq.tracing.reading.inputs import collect, collect_module

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("users", "programs", "examples", "pages", "tests")


class Survey:
    """What has been seen: by name, why it is open (empty: it is closed)."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, str]] = {source: {} for source in SOURCES}
        self.source = ""
        self.place = ""

    def see_residual(self, residual: Callable[..., Any]) -> None:
        with contextlib.suppress(Exception):  # what cannot be collected raises in the solve
            self._note(_code_of(residual), why_open(collect(residual), elements()))

    def see_problem(self, problem: mslsq.Problem) -> None:
        for _, cost in own_costs(problem):
            why = "it replaces a method of CostFunction" if overrides(type(cost)) else ""
            with contextlib.suppress(Exception):
                self._note(_code_of(type(cost).residual), why or why_open(collect_module(cost), elements()))

    def _note(self, code: types.CodeType | None, why: str) -> None:
        if code is None or str(ROOT / "mslsq") + os.sep in code.co_filename:
            return  # the library's own
        name = self.place or f"{Path(code.co_filename).stem}:{code.co_firstlineno} {code.co_qualname}"
        self.found[self.source][name] = why

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """See what is handed to the front doors."""
        plain, init = residual_statement.callables, mslsq.Problem.__init__

        def callables(residual: Any, *rest: Any) -> Any:
            self.see_residual(residual)
            return plain(residual, *rest)

        def made(problem: mslsq.Problem, *costs: Any) -> None:
            init(problem, *costs)
            self.see_problem(problem)

        residual_statement.callables = callables
        setattr(mslsq.Problem, "__init__", made)  # noqa: B010  pyright compares signatures
        try:
            yield
        finally:
            residual_statement.callables = plain
            setattr(mslsq.Problem, "__init__", init)  # noqa: B010


def _code_of(residual: Any) -> types.CodeType | None:
    """The user's code: of a function, a method, an object that is called, a partial; behind the library's own."""
    for _ in range(8):
        residual = getattr(residual, "func", getattr(residual, "__func__", residual))
        code = getattr(residual, "__code__", None)
        held = getattr(residual, "__closure__", None) or ()
        parts = (
            [cell.cell_contents for cell in held]
            if code is not None
            else list(getattr(residual, "__dict__", {}).values())
        )
        if code is None:
            kind = type(residual)
            code = (kind.forward if isinstance(residual, torch.nn.Module) else kind.__call__).__code__
        if str(ROOT / "mslsq") + os.sep not in code.co_filename:
            return code
        residual = next((x for x in parts if callable(x) and not isinstance(x, type)), None)
        if residual is None:
            return None
    return None


def see_users(survey: Survey) -> None:
    from user_programs.written import EVERYONE

    for name, make in EVERYONE.items():
        survey.place = name
        torch.manual_seed(0)
        given, start, args = make()
        solver = mslsq.LevenbergMarquardt(max_steps=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if isinstance(given, mslsq.Problem):
                    mslsq.solve(given, start, solver=solver)
                else:
                    mslsq.least_squares(given, start, args, solver=solver)
            except Exception as error:
                print(f"left out: {name}: {type(error).__name__}: {error}")
                continue
        if isinstance(given, mslsq.Problem):
            survey.see_problem(given)
        else:
            survey.see_residual(given)
    survey.place = ""


def see_programs(survey: Survey) -> None:
    """Those that were written to find wrong answers, without a thought of closed code."""
    from user_programs.compared import PROGRAMS
    from user_programs.written import EVERYONE

    for name, program in PROGRAMS.items():
        if name not in EVERYONE:
            survey.place = name
            survey.see_residual(program.residual)
    survey.place = ""


def see_examples(survey: Survey) -> None:
    for file in sorted((ROOT / "examples").glob("*.py")):
        with survey.watching(), _elsewhere(), contextlib.suppress(ImportError):
            spec = importlib.util.spec_from_file_location(file.stem, file)
            assert spec is not None and spec.loader is not None
            module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            try:
                module.main(["--out", "."])
            except SystemExit:  # it takes no such option
                module.main([])


def see_pages(survey: Survey) -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    from pages import PAGES, blocks_of

    for page in PAGES:
        namespace: dict[str, Any] = {"__name__": "page"}
        with survey.watching(), _elsewhere():
            for block in blocks_of(page.read_text("utf-8")):
                if block.language == "python":
                    exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)


def see_tests(survey: Survey) -> None:
    import pytest

    with survey.watching():
        pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", str(ROOT / "tests" / "front")])


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """In an empty folder, quietly, with the default dtype put back."""
    before, here = torch.get_default_dtype(), os.getcwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        except (Exception, SystemExit) as error:
            print(f"left out from here on: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os.chdir(here)
            torch.set_default_dtype(before)


def half_of(name: str) -> str:
    return "AB"[hashlib.sha256(name.encode()).digest()[0] % 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=("users", "examples", "pages"))
    parser.add_argument("--half", choices=("A", "B"), help="list the names and reasons of this half alone")
    options = parser.parse_args()
    print_machine(["torch", "einops", "omegaconf"])
    survey = Survey()
    looks = {
        "users": see_users,
        "programs": see_programs,
        "examples": see_examples,
        "pages": see_pages,
        "tests": see_tests,
    }
    for source in options.sources:
        survey.source = source
        looks[source](survey)
    rows = []
    for source in options.sources:
        found = survey.found[source]
        for half in ("A", "B"):
            whys = [why for name, why in found.items() if half_of(name) == half]
            closed = sum(not why for why in whys)
            rows.append([source, half, len(whys), closed, f"{100 * closed / max(len(whys), 1):.0f} %"])
    print_table("Closed code", ["source", "half", "residuals", "closed", "share"], rows)
    listed = [
        [source, half_of(name), name, why]
        for source in options.sources
        for name, why in survey.found[source].items()
        if why and options.half in (None, half_of(name))
    ]
    print_table("What is open", ["source", "half", "residual", "because of"], listed)
    reasons = Counter(why for _, _, _, why in listed)
    print_table("Reasons", ["because of", "residuals"], [[why, str(n)] for why, n in reasons.most_common()])


if __name__ == "__main__":
    main()
