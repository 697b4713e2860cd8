"""Joins fewer processes than `WORLD_SIZE` says."""

import json
import os
import sys
from pathlib import Path

from mslsq import distributed


def main() -> None:
    try:
        distributed.initialize("gloo", timeout=4)
        found = ["nothing", ""]
    except Exception as error:
        found = [type(error).__name__, str(error)]
    (Path(sys.argv[1]) / f"{os.environ['RANK']}.json").write_text(json.dumps({"joined": found}))
    os._exit(0)


if __name__ == "__main__":
    main()
