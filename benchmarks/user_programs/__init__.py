"""Small fits as users would write them, each compared with SciPy and with differences: `python -m user_programs`."""

from user_programs import (
    cameras,
    chains,
    everyday,
    fields,
    networks,
    numerics,
    operators,
    practice,
    python,
    sciences,
    states,
    statistics,
    writing,
    written,
)

MODULES = (
    cameras,
    chains,
    everyday,
    fields,
    networks,
    numerics,
    operators,
    practice,
    python,
    sciences,
    states,
    statistics,
    writing,
    written,
)
"""Each takes its programs in."""
