"""Which folders a library may be loaded from: those in which no other user can put one."""

import os
from pathlib import Path

import pytest

import mslsq.kernels.places as places

AS_ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A file in a folder in a folder."""
    path = tmp_path / "outer" / "inner" / "library.so"
    path.parent.mkdir(parents=True, mode=0o755)
    path.write_bytes(b"")
    path.chmod(0o755)
    return path


def objection(library: Path, **options) -> str | None:
    return places.objection(library.parent, [library], **options)


def test_there_is_no_objection_to_a_file_that_only_its_owner_can_write(library):
    assert objection(library) is None


@pytest.mark.parametrize("level", [0, 1, 2], ids=["the file", "its folder", "the folder above"])
def test_what_others_may_write_is_named_with_the_remedy(library, level):
    place = (library, *library.parents)[level]
    place.chmod(0o757)
    assert f"write to {place} (mode 0757" in (objection(library) or "")
    assert f"chmod go-w '{place}'" in (objection(library) or "")


def test_a_sticky_folder_may_be_above_a_folder_of_ones_own_but_not_hold_the_file(library):
    library.parents[1].chmod(0o1777)
    assert objection(library) is None
    library.parent.chmod(0o1777)
    assert "others may write" in (objection(library) or "")


@pytest.mark.parametrize("level", [0, 1, 2], ids=["the file", "its folder", "the folder above"])
@AS_ROOT
def test_what_belongs_to_another_user_is_named(library, level):
    place = (library, *library.parents)[level]
    os.chown(place, 12345, -1)
    assert f"{place} belongs to another user (number 12345" in (objection(library) or "")
    assert objection(library, owners=[12345]) is None


@AS_ROOT
def test_a_group_may_write_where_it_is_the_owners_own(library, monkeypatch):
    """Debian and Fedora give every user a group of that name, and new files to be written by it."""
    import grp
    import pwd

    owner = pwd.struct_passwd(("ann", "x", 12345, 12345, "", "/", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: owner)
    os.chown(library, 12345, 12345)
    library.chmod(0o775)
    for name, members, harmless in (("ann", [], True), ("ann", ["bob"], False), ("staff", [], False)):
        group = grp.struct_group((name, "x", 12345, members))
        monkeypatch.setattr(grp, "getgrgid", lambda number, group=group: group)
        assert (objection(library, owners=[12345]) is None) == harmless


def test_a_link_is_as_safe_as_what_it_points_to(library, tmp_path):
    link = tmp_path / "link" / "library.so"
    link.parent.mkdir(mode=0o700)
    link.symlink_to(library)
    assert objection(link) is None
    library.parent.chmod(0o757)
    assert str(library.parent) in (objection(link) or "")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "HOME/.cache/mslsq"),
        ({"XDG_CACHE_HOME": ""}, "HOME/.cache/mslsq"),
        ({"XDG_CACHE_HOME": "relative/cache"}, "HOME/.cache/mslsq"),  # the XDG specification: to be ignored
        ({"XDG_CACHE_HOME": "/some where/cache"}, "/some where/cache/mslsq"),
        ({"XDG_CACHE_HOME": "/cache", "MSLSQ_CACHE_DIR": "/my own"}, "/my own"),
        ({"MSLSQ_CACHE_DIR": "~/kernels"}, "HOME/kernels"),
        ({"MSLSQ_CACHE_DIR": "kernels"}, "HERE/kernels"),
    ],
)
def test_the_cache_is_where_the_variables_say(variables, expected, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "MSLSQ_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    replaced = expected.replace("HOME", str(tmp_path / "home")).replace("HERE", str(tmp_path))
    assert places.cache_folder() == Path(replaced)


def test_what_is_made_is_for_this_user_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        folder = places.make_private(tmp_path / "a" / "b c" / "d")
    finally:
        os.umask(before)
    made = (folder, *folder.parents)[:3]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 3
    assert not list(folder.iterdir())
