"""Where cuDSS has proved itself: what `make cuda` has seen on a device, kept in the user's folder.

Two things are proved, each of one kind of GPU and one version of cuDSS: that it is right and faster than dense factors
(`"alone"`), and that it is so for whole batches, faster than one after the other (`"together"`).
"""

import json
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from mslsq.kernels.places import cache_folder, make_private
from mslsq.linear.sparse.backends.cudss_library import cudss

FILE = "cudss.json"

What = Literal["alone", "together"]


def is_proved(what: What, device: torch.device) -> bool:
    """Has it proved itself there?"""
    return what in _read().get(_name(device), ())


def record(device: torch.device, proved: list[What]) -> Path:
    """Keep what a device has shown, in place of what was known of it. OSError where nothing can be written."""
    path = make_private(cache_folder()) / FILE
    known = {**_read(), _name(device): list(proved)}
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(known, indent=1), encoding="utf-8")
    unfinished.replace(path)
    _read.cache_clear()
    return path


def _name(device: torch.device) -> str:
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{kind}, cuDSS {'.'.join(map(str, cudss().version))}"


@cache
def _read() -> dict[str, list[str]]:
    """Nothing where there is no such file, or it is none of ours."""
    try:
        found = json.loads((cache_folder() / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
