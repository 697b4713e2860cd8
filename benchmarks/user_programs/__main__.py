"""Run all programs, or those whose names hold a word that is given: `cd benchmarks && python -m user_programs sparse`.

Ten minutes of one processor; a `look` is a program that was refused, whose start is far from a minimum, or of which
differences are no better, as well as a mistake.
"""

import sys

from user_programs import compared, networks, numerics, operators, python, statistics

assert all((networks, numerics, operators, python, statistics))  # each takes its programs in
names = [name for name in compared.PROGRAMS if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
agreed = sum([compared.run(name) for name in names])
print(f"{agreed} of {len(names)} agree with SciPy and with differences")
