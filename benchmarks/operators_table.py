"""`docs/reference/operators.md` from what `trust_operators.py` found: operators that are right in a residual, and not.

python benchmarks/operators_table.py benchmarks/results/operators.json > docs/reference/operators.md
"""

import json
import re
import sys
from typing import Any

RIGHT, REWRITTEN, REFUSED, BARE = (
    "right",
    "right by rewriting",
    "refused with a sentence",
    "refused by PyTorch's error",
)
BAD = ("WRONG", "CRASHED", "slow")


def kind(counts: dict[str, int]) -> str:
    """An operator is what its worst check was."""
    for name in (*BAD, BARE, REFUSED, REWRITTEN, RIGHT):
        if counts.get(name):
            if name == REFUSED and (counts.get(RIGHT) or counts.get(REWRITTEN)):
                return "partly"
            return name
    return "none"


def cell(text: str, length: int = 260) -> str:
    text = re.sub(r"\S*/(\w+\.py)", r"\1", re.sub(r"\s+", " ", text)).replace("|", "\\|")
    return text if len(text) <= length else text[:length] + " …"


def table(title: str, entries: list[tuple[str, dict[str, Any]]], column: str, names: tuple[str, ...]) -> list[str]:
    if not entries:
        return []
    lines = [f"## {title}", "", f"| operator | checks | {column} |", "|---|---|---|"]
    for name, entry in entries:
        said = next((entry["what"][key] for key in names if key in entry["what"]), "")
        checks = ", ".join(f"{n} {key}" for key, n in entry["counts"].items() if key != "no case")
        lines.append(f"| `{name}` | {checks} | {cell(said)} |")
    return [*lines, ""]


def again(found: dict[str, Any]) -> str:
    """Which operators have been checked again since, in words."""
    names = [f"`{name}`" for name in found.get("again", ())]
    return f" ({', '.join(names)} were checked again after changes of the library)" if names else ""


def document(found: dict[str, Any]) -> str:
    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, entry in found["operators"].items():
        groups.setdefault(kind(entry["counts"]), []).append((name, entry))
    lines = [
        "# Operators in residuals",
        "",
        "<!-- Written by benchmarks/operators_table.py; do not edit. -->",
        "",
        f"Every differentiable operator of PyTorch {found['torch']} (the table of OpInfo) was put into a residual of",
        "its own, on random samples of its inputs in float32, float64 and complex: as a single problem, as a batch, as",
        "a batch whose steps are recorded, and for the derivative of a converged batch. Each result was compared with",
        "plain reverse mode of `torch.autograd` in float64, one problem at a time.",
        f"There were {found['checks']} checks, seed {found['seed']}{again(found)}:",
        "",
        "| outcome | checks |",
        "|---|---|",
        *[f"| {name} | {count} |" for name, count in found["counts"].items() if name != "no case"],
        "",
        "`not differentiable there` means that plain autograd and central differences differ as well: at a kink, a",
        "jump, a choice of signs. Names are those of OpInfo: `linalg_inv` is `torch.linalg.inv`, and",
        "`nn_functional_glu` is `torch.nn.functional.glu`.",
        "",
    ]
    for name in BAD:
        lines += table(f"Known not to work: {name.lower()}", groups.get(name, []), "what was found", (name,))
    lines += table("Right by rewriting", groups.get(REWRITTEN, []), "what is replaced", (REWRITTEN,))
    lines += table("Refused", groups.get(REFUSED, []), "what is said", (REFUSED,))
    lines += table("Refused in some forms, right in others", groups.get("partly", []), "what is said", (REFUSED,))
    lines += table("Refused by an error of PyTorch", groups.get(BARE, []), "what it says", (BARE,))
    right = ", ".join(f"`{name}`" for name, _ in groups.get(RIGHT, []))
    lines += ["## Right as written", "", right + ".", ""]
    rest = groups.get("none", [])
    if rest:
        lines += table("No case", rest, "why", ("no case", "not differentiable there"))
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        sys.stdout.write(document(json.load(file)))
