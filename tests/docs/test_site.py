"""The site: it is built without a warning, every link in it leads somewhere, and a fault would be noticed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import check_site
import public_names
import pytest

ROOT = Path(__file__).resolve().parents[2]


def page(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f'<html><body><input name="q">{body}</body></html>')


def test_a_site_that_is_whole_has_no_faults(tmp_path):
    page(tmp_path, "a.html", '<h1 id="top">A</h1><a href="b.html#part">B</a><a href="#top">up</a>')
    page(tmp_path, "b.html", '<p id="part"></p><a href="https://example.org/nowhere">away</a><img src="a.png">')
    (tmp_path / "a.png").write_bytes(b"")
    assert check_site.faults_of(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="c.html">C</a>', "a.html: c.html leads nowhere"),
        ('<a href="b.html#other">B</a>', "a.html: b.html#other leads nowhere"),
        ('<a href="#other">B</a>', "a.html: #other leads nowhere"),
        ('<img src="missing.png">', "a.html: missing.png leads nowhere"),
        ('<script src="https://cdn.example.org/x.js">', "a.html loads https://cdn.example.org/x.js from elsewhere"),
    ],
)
def test_a_fault_is_named(tmp_path, body, fault):
    page(tmp_path, "a.html", body)
    page(tmp_path, "b.html", "")
    assert check_site.faults_of(tmp_path) == [fault]


def test_a_page_without_a_search_box_is_named(tmp_path):
    (tmp_path / "a.html").write_text("<html></html>")
    assert check_site.faults_of(tmp_path) == ["a.html has no search box"]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_lists_all_public_names(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    pytest.importorskip("furo")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-c", "docs", "-W", "--keep-going", "--quiet", "-d", str(tmp_path / "d")]
    done = subprocess.run([*command, ".", str(site)], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert check_site.faults_of(site) == []
    listing = (site / "docs" / "reference" / "index.html").read_text("utf-8")
    listed = set(re.findall(r'href="[^"#]*#(mslsq[\w.]*)"', listing)) | set(
        re.findall(r'href="#module-(\S+?)"', listing)
    )
    modules = public_names.public_modules()
    names = {public_names.shortest(module, name) for module in modules for name in public_names.names_of(module)}
    assert names - {name for name in names if name in modules} <= listed
