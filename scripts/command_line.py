"""What the scripts share: options checked by their schema, and errors as a message and an exit code."""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import schemas
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.markup import escape

from mslsq.replacing import NotWrittenError
from mslsq.validation import suggestion

NOTHING_DONE, NOT_VALID, LEFT_OUT, NOT_WRITTEN, INTERRUPTED = 1, 2, 3, 4, 130
"""Exit codes beside 0, done: nothing was; the command is not valid; something was left out (with strict=true); a file
could not be written; Ctrl-C."""

CONFIGURATION_ERRORS = (HydraException, OmegaConfBaseException)
"""What Hydra raises for an override that the schema does not allow."""

schemas.register()

console = Console(soft_wrap=True, highlight=False)
errors = Console(stderr=True, soft_wrap=True, highlight=False)


class CommandError(ValueError):
    """The command line asks for something that cannot be done."""


def check_names(settings: DictConfig, prefix: str = "") -> None:
    """Every option is one of the schema, and all are there.

    Hydra refuses `modle=affine` itself, but it adds what `+modle=affine` names to any schema and takes what `~model`
    names out of it.
    """
    schema = OmegaConf.get_type(settings)
    known = _names_of(schema)
    for name in settings:
        if name not in known:
            raise CommandError(_unknown(f"{prefix}{name}", schema))
        if OmegaConf.is_dict(settings[name]):
            check_names(settings[name], f"{prefix}{name}.")
    for name in known:
        if name not in settings:
            raise CommandError(f"the option {prefix}{name} is needed: do not take it out.")


def _names_of(schema: Any) -> list[str]:
    return [option.name for option in fields(schema)] if is_dataclass(schema) else []


def _unknown(full_name: str, schema: Any) -> str:
    section, dot, name = full_name.rpartition(".")
    known = _names_of(schema)
    return f"there is no option {full_name}.{suggestion(name, known, section + dot)} Options: {', '.join(known)}."


def refuse(error: Exception) -> int:
    """An override that the schema does not allow, in one line instead of Hydra's several; the exit code."""
    errors.print("[red]error:[/]", escape(_explained(error)))
    return NOT_VALID


def _explained(error: Exception) -> str:
    if isinstance(error, MissingConfigException):
        near = suggestion((error.missing_cfg_file or "").rpartition("/")[2], error.options or ())
        return f"{str(error).partition('Config search path')[0].strip()}{near}"
    cause = next((one for one in _causes(error) if isinstance(one, OmegaConfBaseException)), None)
    if cause is None:
        return str(error)
    if cause.object_type is not None and cause.key not in _names_of(cause.object_type):
        return _unknown(str(cause.full_key), cause.object_type)
    return f"{cause.full_key}: {str(cause).partition(chr(10))[0]}."


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def attempt(run: Callable[[dict[str, Any], Path], int], settings: DictConfig, folder: Path) -> int:
    """The exit code of `run(config, folder)`; what is not valid becomes a message instead of a traceback."""
    try:
        check_names(settings)
        config: Any = OmegaConf.to_container(settings, resolve=True)
        return run(config, folder)
    except NotWrittenError as error:
        errors.print(f"[red]error:[/] {escape(str(error.filename))} {escape(str(error.strerror))}.")
        errors.print(f"What is in {escape(str(folder))} is whole. Make room, or choose another hydra.run.dir.")
        return NOT_WRITTEN
    except (ValueError, OSError) as error:
        errors.print("[red]error:[/]", escape(str(error)))
        return NOT_VALID
    except KeyboardInterrupt:
        errors.print("[red]interrupted:[/] nothing more is written.")
        return INTERRUPTED


def exit_with(run: Callable[[dict[str, Any], Path], int], settings: DictConfig) -> None:
    """The same in Hydra's run directory; ends the process with the code where it is not 0."""
    code = attempt(run, settings, Path(HydraConfig.get().runtime.output_dir))
    if code:
        sys.exit(code)


def start(main: Callable[[], None]) -> None:
    """Run a command that Hydra has decorated; ends the process with `NOT_VALID` where its options are refused."""
    # Hydra prints such errors itself otherwise, without the nearest name, and ends the process with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        main()
    except CONFIGURATION_ERRORS as error:
        sys.exit(refuse(error))
