"""`python -m mslsq.kernels`: which compiled kernels are used here; compiles them where they are missing.

To be run once where compiling inside the first large solve is not wanted: when a container's image is made, say. Exit
code 1 where there are none, with what to do about it.
"""

import sys
from pathlib import Path

from mslsq.kernels.library import KernelsMissingError, _library


def main() -> int:
    try:
        library, target = _library()
    except KernelsMissingError as error:
        print(error, file=sys.stderr)
        return 1
    place = library._name if Path(library._name).exists() else "compiled now"
    print(f"mslsq's kernels: {place}, used for {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
