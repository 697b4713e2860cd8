"""Docstrings become what autodoc reads: code stays code, and nothing in prose is taken for markup."""

import pytest

api_pages = pytest.importorskip("api_pages", reason="the extra `docs` is not installed", exc_type=ImportError)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("the `x0` of `solve`", "the ``x0`` of ``solve``"),
        ("`Variable`s and |r|", r"``Variable``\ s and \|r\|"),
        ("(*residual, *x)", r"(\*residual, \*x)"),
        ("a trailing_ underscore in a_name", r"a trailing\_ underscore in a_name"),
        (":mod:`.nist` and ``code``", ":mod:`.nist` and ``code``"),
    ],
)
def test_prose(line, expected):
    assert api_pages.as_restructured_text([line]) == [expected]


def test_examples_tables_and_code_stay_as_they_are():
    lines = [
        "Prose of `x`.",
        "",
        ">>> f(*x)",
        "'*x_'",
        "",
        "Example::",
        "",
        "    g(**`x`)",
        "",
        "Prose of `y`.",
        "====  ====",
        "`a`   |x|",
        "====  ====",
        "",
        "`z`",
    ]
    converted = api_pages.as_restructured_text(lines)
    changed = {number for number, (old, new) in enumerate(zip(lines, converted, strict=True)) if old != new}
    assert changed == {0, 9, 11, 14}
    assert converted[11] == "`a`   \N{DIVIDES}x\N{DIVIDES}"


def test_a_class_shows_what_it_adds_to_its_public_bases():
    from mslsq.linear import Cholesky, LinearSolver

    assert "exclude-members" in " ".join(api_pages.options_of(Cholesky))
    assert "solve" in " ".join(api_pages.options_of(Cholesky))
    assert "exclude-members" not in " ".join(api_pages.options_of(LinearSolver))
