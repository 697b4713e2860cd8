"""The test suite with each version of Python and PyTorch that is claimed to work; writes docs/versions.md.

    python .ci/matrix.py --python python3.11 python3.14 --torch 2.9.1 2.13.0

To be run once per change of dependencies: ten minutes a combination on two cores. A result replaces that of an earlier
run of the same combination and tests; the others stay, so combinations may come from several machines. PyTorch comes as
pip finds it: on Linux with 4 GB of CUDA, unpacked 7. With --tests only some of the tests run, and the page says so.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".ci" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
ALL = "all but the slow"

HEAD = """# Tested versions

Written by `python .ci/matrix.py`, which is run when a dependency changes. Every change is tested with the versions in
`constraints.txt`. Skipped tests need what the machine does not have: a GPU, the larger data sets, an optional package.

| Python | PyTorch | NumPy | SciPy | C library | kernels | tests | result | seconds | date | commit |
|---|---|---|---|---|---|---|---|---|---|---|
"""

ASK = """
import json, platform, sys, numpy, scipy, torch, mslsq.kernels
print(json.dumps({
    "python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__,
    "scipy": scipy.__version__, "libc": " ".join(platform.libc_ver()),
    "kernels": mslsq.kernels.target() if mslsq.kernels.available() else "none",
}))
"""


def outcome(python: str, torch: str, tests: str, folder: Path) -> dict[str, Any]:
    """Install and test one combination by `make test`; what was installed, and pytest's last line."""
    folder.mkdir(parents=True, exist_ok=True)
    constraints = folder / "constraints.txt"
    # constraints.txt is of one Python and one PyTorch: with others, pip chooses what goes with them
    wanted = f"torch=={torch}\n"
    if not constraints.exists() or constraints.read_text() != wanted:  # else make would install all again
        constraints.write_text(wanted)
    make = ["make", "test", f"PYTHON={python}", f"VENV={folder / 'venv'}", f"CONSTRAINTS={constraints}"]
    chosen = "" if tests == ALL else tests
    log = folder / "log"
    with log.open("w") as written:
        subprocess.run([*make, f"ARGS={chosen}"], cwd=ROOT, stdout=written, stderr=subprocess.STDOUT)
    said = re.findall(r"^=* ?(.*(?:passed|failed|error).*) in ([\d.]+)s", log.read_text(), re.MULTILINE)
    if not said or re.search("^!+ ", log.read_text(), re.MULTILINE):  # pytest's mark for an interruption
        sys.exit(f"{python} with PyTorch {torch}: pytest did not finish, see {log}")
    asked = [str(folder / "venv" / "bin" / "python"), "-c", ASK]
    found = json.loads(subprocess.run(asked, cwd=folder, check=True, capture_output=True, text=True).stdout)
    result, seconds = said[-1]
    return found | {"tests": tests, "result": result, "seconds": round(float(seconds))} | stamp()


def stamp() -> dict[str, str]:
    """The day and the name of the last commit."""
    asked = ["git", "show", "--no-patch", "--format=%h", "HEAD"]
    commit = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    day = subprocess.run(["date", "-u", "+%F"], check=True, capture_output=True, text=True).stdout.strip()
    return {"date": day, "commit": commit}


def combination(result: dict[str, Any]) -> tuple[Any, ...]:
    """What a later run of the same replaces; in the order of the page."""
    release = tuple(int(part) for part in re.findall(r"\d+", result["torch"])[:3])
    return tuple(int(part) for part in result["python"].split(".")[:2]), release, result["tests"]


def keep(new: list[dict[str, Any]]) -> None:
    """Put results among those of earlier runs, and write the page."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    merged = {combination(result): result for result in [*known, *new]}
    results = [merged[key] for key in sorted(merged)]
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results), "utf-8")


def page(results: list[dict[str, Any]]) -> str:
    columns = ("python", "torch", "numpy", "scipy", "libc", "kernels", "tests", "result", "seconds", "date", "commit")
    return HEAD + "".join(f"| {' | '.join(str(one[name]) for name in columns)} |\n" for one in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="*", default=["python3"], help="commands, 3.11 or newer")
    parser.add_argument("--torch", nargs="*", default=["2.9.1", "2.13.0"], help="versions")
    parser.add_argument("--tests", default=ALL, help="files, folders or options for pytest")
    parser.add_argument("--folder", type=Path, help="keep environments and logs there")
    given = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # what is tested is what pip installed
    with tempfile.TemporaryDirectory() as temporary:
        for python in given.python:
            for torch in given.torch:
                folder = (given.folder or Path(temporary)).absolute() / f"{Path(python).name}-torch{torch}"
                result = outcome(python, torch, given.tests, folder)
                print(json.dumps(result))
                keep([result])


if __name__ == "__main__":
    main()
