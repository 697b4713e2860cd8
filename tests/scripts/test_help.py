"""`--help` of every script: each option with its comment, from one source, and the exit codes."""

import ast
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

hydra = pytest.importorskip("hydra")
pytest.importorskip("rich")
command_line = pytest.importorskip("command_line")
import help_page  # noqa: E402
import schemas  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {"align": schemas.Align, "solve": schemas.Solve, "train": schemas.Train}


def docstring(name: str) -> str:
    return ast.get_docstring(ast.parse((ROOT / "scripts" / f"{name}.py").read_text("utf-8"))) or ""


def names_of(schema, prefix=""):
    for option in fields(schema):
        yield prefix + option.name
        if is_dataclass(option.type):
            yield from names_of(option.type, f"{prefix}{option.name}.")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_option_has_its_line_and_none_lacks_a_comment(name):
    options = help_page.options_of(name)
    assert sorted(option.name for option in options) == sorted(names_of(SCRIPTS[name]))
    assert [option.name for option in options if len(option.comment) < 4] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_defaults_that_are_shown_are_those_of_the_configuration(name):
    from omegaconf import OmegaConf

    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        settings = hydra.compose(name)
    for option in help_page.options_of(name):
        if not option.is_section:
            assert OmegaConf.create(f"x: {option.default}").x == OmegaConf.select(settings, option.name), option.name


@pytest.mark.parametrize("name", SCRIPTS)
def test_examples_and_every_exit_code_are_explained(name):
    text = docstring(name)
    assert f"python scripts/{name}.py" in text
    for code in ("0 done", "1 ", "2 the command is not valid", "4 a file could not", "5 a job of a sweep", "130 "):
        assert code in " ".join(text.split())


def test_a_script_shows_its_own_experiments():
    found = {name: [experiment for experiment, _ in help_page.experiments_of(name, TASKS[name])] for name in SCRIPTS}
    assert {"multiscale", "scale_sync"} <= set(found["align"])
    assert found["solve"] == ["bundle_adjustment", "pose_graph"]
    assert found["train"] == ["learned_alignment", "learned_features", "pose_graph_weights"]


TASKS = {
    "align": ["align", "scale_sync", "dem"],
    "solve": ["pose_graph", "bundle_adjustment"],
    "train": ["learned_alignment", "learned_features", "pose_graph_weights"],
}


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_printed_and_nothing_runs(monkeypatch, capsys, flag):
    monkeypatch.setattr(sys, "argv", ["align.py", "model=se2", flag])
    command_line.start(lambda: pytest.fail("it ran"), docstring("align"), "align", TASKS["align"])
    page = capsys.readouterr().out
    for part in ("maps=[]", "bundled.count=3", "+experiment=multiscale", "--cfg job", "-sc install=bash", "resume="):
        assert part in page
    assert max(map(len, page.splitlines())) <= 135
