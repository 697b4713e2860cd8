"""Small fits as users would write them, each compared with SciPy and with differences: `python -m user_programs`."""

from user_programs import (
    everyday,
    networks,
    numerics,
    operators,
    practice,
    python,
    sciences,
    states,
    statistics,
    written,
)

MODULES = everyday, networks, numerics, operators, practice, python, sciences, states, statistics, written
"""Each takes its programs in."""
