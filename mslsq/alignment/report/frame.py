"""The page around what a report shows: one file that holds everything, reads without a network, and says how it was
made."""

import json
import platform
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mslsq
from mslsq.alignment.report.text import escaped
from mslsq.replacing import write_text

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_frame(
    path: Path, title: str, lead: str, sections: str, options: Mapping[str, Any] | None, seconds: float | None
) -> Path:
    """Write a page of `lead` and `sections`, which are HTML, and of options, versions and times. Returns its path."""
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escaped(title)}</title><style>{_asset('page.css')}</style></head><body>"
        f"<header><h1>{escaped(title)}</h1>{lead}</header>"
        f"<main>{sections}{_making(options, seconds)}</main>"
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )
    write_text(path, text)
    return path


def _asset(name: str) -> str:
    return resources.files("mslsq.alignment.report").joinpath(name).read_text("utf-8")


def _making(options: Mapping[str, Any] | None, seconds: float | None) -> str:
    """Options, versions and times."""
    about = {
        "mslsq": mslsq.__version__,
        "PyTorch": torch.__version__,
        "NumPy": np.__version__,
        "Python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }
    if seconds is not None:
        about["seconds in all"] = f"{seconds:.3g}"
    listed = lambda pairs: "".join(f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in pairs.items())  # noqa: E731
    parts = [f"<h2>How it was made</h2><dl>{listed(about)}</dl>"]
    if options:
        given = {name: json.dumps(value, default=str, ensure_ascii=False) for name, value in options.items()}
        parts.append(f"<h3>Options</h3><dl>{listed(given)}</dl>")
    return f"<section>{''.join(parts)}</section>"
