"""What the scripts share: options checked by name, and what makes no sense as a message and an exit code."""

import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape

from mslsq.replacing import NotWrittenError

NOTHING_DONE, NO_SENSE, LEFT_OUT, NOT_WRITTEN, INTERRUPTED = 1, 2, 3, 4, 130
"""Exit codes beside 0, done: nothing was; the command makes no sense; something was left out (with strict=true); a file
could not be written; Ctrl-C."""

console = Console(soft_wrap=True, highlight=False)
errors = Console(stderr=True, soft_wrap=True, highlight=False)


class NonsenseError(ValueError):
    """The command line asks for something that makes no sense."""


def check_names(config: dict[str, Any], known: Mapping[str, Sequence[str]]) -> None:
    """`+modle=affine` is accepted by Hydra as something new; here it is a misspelling, with the nearest name.

    `known` are the options by section, "" being the top.
    """
    for section, options in known.items():
        names = config[section] if section else config
        if not isinstance(names, dict):
            raise NonsenseError(f"{section}={names!r}; it has the options {', '.join(options)}.")
        prefix = f"{section}." if section else ""
        for name in names:
            if name not in options:
                near = get_close_matches(name, options, 1)
                hint = f" Did you mean {prefix}{near[0]}?" if near else ""
                raise NonsenseError(f"there is no option {prefix}{name}.{hint} Options: {', '.join(options)}.")


def attempt(run: Callable[[dict[str, Any], Path], int], settings: DictConfig, folder: Path) -> int:
    """The exit code of `run(config, folder)`; what makes no sense becomes a message instead of a traceback."""
    config: Any = OmegaConf.to_container(settings, resolve=True)
    try:
        return run(config, folder)
    except NotWrittenError as error:
        errors.print(f"[red]error:[/] {escape(str(error.filename))} {escape(str(error.strerror))}.")
        errors.print(f"What is in {escape(str(folder))} is whole. Make room, or choose another hydra.run.dir.")
        return NOT_WRITTEN
    except (ValueError, OSError) as error:
        errors.print("[red]error:[/]", escape(str(error)))
        return NO_SENSE
    except KeyboardInterrupt:
        errors.print("[red]interrupted:[/] nothing more is written.")
        return INTERRUPTED


def exit_with(run: Callable[[dict[str, Any], Path], int], settings: DictConfig) -> None:
    """The same in Hydra's run directory; ends the process with the code where it is not 0."""
    code = attempt(run, settings, Path(HydraConfig.get().runtime.output_dir))
    if code:
        sys.exit(code)
