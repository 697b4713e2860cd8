"""Which of PyTorch's operators have a form on CUDA, by the table that it is built from.

A build for the CPU has no kernels of CUDA that could be asked for, but `torchgen` brings the table with it.
"""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

COMPOSITE = {f"Composite{kind}" for kind in ("ImplicitAutograd", "ExplicitAutograd", "ExplicitAutogradNonFunctional")}
ANY_DEVICE = {"CUDA", *COMPOSITE}


@cache
def table() -> dict[str, set[str]] | None:
    """By the name of an operator with its overload: for which keys it has a kernel of its own; those of another one's
    where it only calls that. None where this PyTorch has no table."""
    spec = find_spec("torchgen")
    path = Path(next(iter((spec and spec.submodule_search_locations) or [""]))) / "packaged/ATen/native"
    if not (path / "native_functions.yaml").exists():
        return None
    known: dict[str, set[str]] = {}
    delegates: dict[str, str] = {}
    for entry in re.split(r"^- func: ", (path / "native_functions.yaml").read_text(), flags=re.MULTILINE)[1:]:
        name = entry.partition("(")[0]
        dispatch = re.search(r"^  dispatch:\n((?:    .*\n|\s*#.*\n)*)", entry, flags=re.MULTILINE)
        keys = re.findall(r"^    ([\w, ]+):", dispatch[1], flags=re.MULTILINE) if dispatch else []
        known[name] = {key.strip() for line in keys for key in line.split(",")}
        if "\n  ufunc_inner_loop:" in entry:  # written for both
            known[name] |= {"CPU", "CUDA"}
        delegate = re.search(r"^  structured_delegate: (\S+)", entry, flags=re.MULTILINE)
        if delegate:
            delegates[name] = delegate[1]
        elif not known[name]:
            known[name] = {"CompositeImplicitAutograd"}
        for made in re.findall(r"^  autogen: (.*)$", entry, flags=re.MULTILINE):
            known |= {one.strip(): {"CompositeExplicitAutograd"} for one in made.split(",")}
    return known | {name: known[delegate] for name, delegate in delegates.items()}


def has_form_on_cuda(operator: Any) -> bool:
    """Of an overload of `torch.ops.aten`; True where nothing is known."""
    known = table()
    name = operator._schema.name.removeprefix("aten::") + (
        f".{operator._schema.overload_name}" if operator._schema.overload_name else ""
    )
    return known is None or bool(known.get(name, ANY_DEVICE) & ANY_DEVICE)
