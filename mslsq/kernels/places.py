"""Folders that a library may be loaded from, and made in.

The code of a library runs as the present user as soon as it is loaded: no other user may be able to put one there.
"""

import os
import stat
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

ROOM = 2**24
"""Bytes that must be free where a library is compiled: the objects of one instruction set take 3 MB."""

MACOS_ADMINS = 80
"""Group of the users who may become root by `sudo`; Homebrew's folders are theirs."""


def cache_folder() -> Path:
    """Where libraries that are compiled on demand are kept: $MSLSQ_CACHE_DIR, else `mslsq` in $XDG_CACHE_HOME or
    ~/.cache. OSError where there is no such place."""
    named = os.environ.get("MSLSQ_CACHE_DIR")
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))  # relative: to be ignored, by the XDG specification
    try:
        if named:
            return Path(named).expanduser().absolute()
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "mslsq"
    except RuntimeError as error:  # a container's user: no HOME, and no entry in the list of users
        raise FileNotFoundError("this user has no home folder (HOME is not set)") from error


def objection(folder: Path, files: Collection[Path] = (), owners: Collection[int] = ()) -> str | None:
    """Why another user could have put these files into the folder, or could exchange them; None where that cannot be.

    The files and the folder, and all folders above them, have to belong to this user, to root or to one of `owners`.
    Others may write to none of them, but to sticky folders above (/tmp): they can add files there, not exchange any.
    OSError where a file does not exist.
    """
    if not hasattr(os, "geteuid"):
        return None  # Windows: a profile's folders are private, and modes say nothing
    trusted = {0, os.geteuid(), *owners}
    itself = [path.resolve(strict=True) for path in (*files, folder)]
    for path in dict.fromkeys([*itself, *(parent for one in itself for parent in one.parents)]):
        found = path.stat()
        if found.st_uid not in trusted:
            return f"{path} belongs to another user (number {found.st_uid}, this is {os.geteuid()})"
        others = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _harmless_group(found))
        if others and (path in itself or not found.st_mode & stat.S_ISVTX):
            mode = stat.S_IMODE(found.st_mode)
            return f"others may write to {path} (mode {mode:04o}; if that is not wanted: chmod go-w '{path}')"
    return None


def make_private(folder: Path, room: int = ROOM) -> Path:
    """Make a folder, and those above it that are missing, for this user alone. OSError where that cannot be done, or
    where another user could put files into it, or it is no place to load a library from, or `room` bytes are not
    free."""
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)  # each by itself: parents=True makes the upper ones with the umask
    if reason := objection(folder):
        raise PermissionError(reason)
    if hasattr(os, "ST_NOEXEC") and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise PermissionError(f"no code may be run from {folder} (its file system is mounted with noexec)")
    with tempfile.TemporaryFile(dir=folder) as probe:  # read-only, full, over a quota: found here, not after compiling
        probe.write(bytes(room))
        probe.flush()
        os.fsync(probe.fileno())
    return folder


def _harmless_group(found: os.stat_result) -> bool:
    """Is the group that may write root's own, or the owner's private one (the umask of Debian and Fedora is 002)?"""
    if found.st_gid == 0 or (sys.platform == "darwin" and found.st_gid == MACOS_ADMINS):
        return True
    import grp  # not on Windows
    import pwd

    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    alone = set(group.gr_mem) <= {owner.pw_name}
    return alone and group.gr_name == owner.pw_name and owner.pw_gid == found.st_gid
