"""What the scripts share: `--help`, options checked by their schema, and errors as a message and an exit code."""

import io
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import schemas
from help_page import help_page
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.markup import escape
from sweeping import INTERRUPTED, SWEEP, conclude, errors, recorded
from sweeping import console as console

from mslsq.replacing import NotWrittenError, remove_unfinished
from mslsq.validation import suggestion

NOTHING_DONE, NOT_VALID, LEFT_OUT, NOT_WRITTEN = 1, 2, 3, 4
"""Exit codes beside 0, done: nothing was; the command is not valid; something was left out (with strict=true); a file
could not be written. (A sweep's own are in `sweeping`.)"""

CONFIGURATION_ERRORS = (HydraException, OmegaConfBaseException)
"""What Hydra raises for an override that the schema does not allow."""

schemas.register()
OmegaConf.register_new_resolver("resumed_or", lambda resume, folder: folder if resume is None else resume, replace=True)


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


@contextmanager
def ended_when_told() -> Iterator[None]:
    """SIGTERM, by which schedulers end a job, ends the run inside as Ctrl-C does: no unfinished file is left. Processes
    that are forked from it end at once, as a `multiprocessing.Pool` expects, which waits for that."""
    own = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == own:
            signal.default_int_handler(number, frame)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def in_words(work: Callable[[], int], advice: str = "") -> int:
    """The exit code of `work()`; what is not valid becomes a message instead of a traceback.

    Args:
        advice: what to try where a file cannot be written.
    """
    try:
        return work()
    except NotWrittenError as error:
        errors.print(f"[red]error:[/] {escape(str(error.filename))} {escape(str(error.strerror))}.")
        if advice:
            errors.print(advice)
        return NOT_WRITTEN
    except (ValueError, OSError) as error:
        errors.print("[red]error:[/]", escape(str(error)))
        return NOT_VALID
    except KeyboardInterrupt:
        errors.print("[red]interrupted:[/] nothing more is written.")
        return INTERRUPTED


def attempt(run: Callable[[dict[str, Any], Path], int], settings: DictConfig, folder: Path) -> int:
    """The exit code of `run(config, folder)`, in words where it is not 0."""

    def checked() -> int:
        check_names(settings)
        config: Any = OmegaConf.to_container(settings, resolve=True)
        remove_unfinished(folder)
        return run(config, folder)

    whole = f"What is in {escape(str(folder))} is whole. Make room, or choose another hydra.run.dir."
    return in_words(checked, whole)


def exit_with(run: Callable[[dict[str, Any], Path], int], settings: DictConfig) -> int:
    """The same in Hydra's run directory; ends the process with the code where it is not 0.

    A job of a sweep returns it instead, so that the others run; Ctrl-C ends all of them, with the table.
    """
    about = HydraConfig.get()
    folder = Path(about.runtime.output_dir)
    if about.mode != RunMode.MULTIRUN:
        code = attempt(run, settings, folder)
        if code in (INTERRUPTED, NOT_WRITTEN):
            say_how_to_go_on(settings, folder)
        if code:
            sys.exit(code)
        return code
    overrides, begin = list(about.overrides.task), time.time()
    try:
        recorded(folder, overrides, begin, None)
        code = attempt(run, settings, folder)
    except NotWrittenError as error:
        errors.print(f"[red]error:[/] {escape(str(error.filename))} {escape(str(error.strerror))}.")
        return NOT_WRITTEN
    except Exception:  # a fault of one job: the others run
        errors.print(escape(traceback.format_exc()))
        code = NOTHING_DONE
    recorded(folder, overrides, begin, code, settings.get("resume") is not None)
    if code == INTERRUPTED:
        conclude(Path(about.sweep.dir))
        say_how_to_go_on(settings, Path(about.sweep.dir))
        sys.exit(INTERRUPTED)
    return code


def say_how_to_go_on(settings: DictConfig, folder: Path) -> None:
    """After Ctrl-C or a full disk, where the script can, and has noted what the run, or the sweep, is of."""
    noted = (folder / "manifest.json").exists() or (folder / SWEEP).exists()
    if noted and OmegaConf.get_type(settings) is schemas.Align:
        errors.print(f"resume={escape(str(folder))} goes on from here.")


def start(
    main: Callable[[], None],
    docstring: str,
    name: str,
    tasks: Sequence[str],
    complete: Callable[[list[str]], list[str]] = list,
) -> None:
    """Run a command that Hydra has decorated; ends the process with `NOT_VALID` where its options are refused.

    Args:
        main: the decorated function.
        docstring: of the script: purpose, examples, exit codes.
        name: of the script's file in `configs/`, without its suffix.
        tasks: the values of its option `task`.
        complete: makes the whole command line of the one that was given.
    """
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(help_page(docstring, name, tasks, min(shutil.get_terminal_size((120, 24)).columns, 120)), end="")
        return
    # Hydra prints such errors itself otherwise, without the nearest name, and ends the process with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    for stream in (sys.stdout, sys.stderr):  # a file's name need not be Unicode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.argv[1:] = complete(sys.argv[1:])
        with ended_when_told():
            main()
    except (*CONFIGURATION_ERRORS, ValueError) as error:  # ValueError: flags that contradict each other, resume
        sys.exit(refuse(error))
    except OSError as error:  # Hydra makes the folder of a run before anything else
        said = f"{error.filename or 'a file'}: {error.strerror or error}"
        errors.print(f"[red]error:[/] {escape(said)}. Choose another hydra.run.dir, or hydra.sweep.dir.")
        sys.exit(NOT_WRITTEN)
    except KeyboardInterrupt:
        errors.print("[red]interrupted:[/] nothing more is written.")
        sys.exit(INTERRUPTED)
