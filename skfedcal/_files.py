"""Atomic writes of files, and a lock against other processes."""

import errno
import os
import re
import secrets
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows: two processes on one file are not noticed there
    fcntl = None  # type: ignore[assignment]


# What a disk may say; other errors of a writer are its own.
_DISK = {
    errno.ENOSPC,
    getattr(errno, "EDQUOT", errno.ENOSPC),  # not on Windows
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
}

# What `write_whole` calls a draft, after the name of the file.
_DRAFT = re.compile(r"\.[0-9a-f]{16}\.tmp$")


def as_path(path: Any, what: str = "path") -> Path:
    """Path of a file; refuses numbers, which `open` would take for open files."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"{what}={path!r} is of type {type(path).__name__}; pass the path of a "
            "file."
        )
    text = os.fspath(path)
    if not isinstance(text, str) or "\0" in text:
        raise ValueError(
            f"{what}={path!r} is not a valid file path; pass a string without null "
            "characters."
        )
    return Path(text)


def write_whole(
    path: str | os.PathLike[str], write: Callable[[BinaryIO], object]
) -> None:
    """Let `write` fill a temporary file next to `path`, then rename it.

    After a crash or an error the file is the old one or the new one, and on disk.
    """
    path = Path(os.path.realpath(as_path(path)))
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with _naming(path):
            with open(draft, "xb") as stream:
                write(stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(draft, path)
    finally:
        with suppress(OSError):  # where there was none to write
            draft.unlink(missing_ok=True)
    if os.name == "posix":  # the rename itself is safe only with its folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def file_lock(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a lock file next to `path`; BlockingIOError if another process has it.

    Temporary files that a killed process has left are removed.
    """
    path = Path(os.path.realpath(as_path(path)))
    lock = path.with_name(f".{path.name}.lock")
    with _naming(path):
        stream = _open_locked(lock)
    with stream:
        try:
            if fcntl is not None:  # else a draft may belong to a living holder
                _remove_drafts(path)
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the target file in an OSError of the disk; the error type is kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        text = f"Cannot write the file: {error.strerror or error}"
        raise OSError(error.errno, text, str(path)) from error


def _remove_drafts(path: Path) -> None:
    remove_drafts(path.parent, {path.name})


def remove_drafts(folder: Path, names: Container[str]) -> None:
    """Remove what killed writers of files with these names have left behind."""
    for draft in folder.iterdir():
        ending = _DRAFT.search(draft.name)
        if ending is None or ending.end() != len(draft.name):
            continue
        if draft.name[0] == "." and draft.name[1 : ending.start()] in names:
            draft.unlink(missing_ok=True)


def _open_locked(lock: Path) -> BinaryIO:
    while True:
        stream = open(lock, "ab")  # noqa: SIM115  # closed by the caller
        try:
            if fcntl is not None:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file between the two lines above: a
            # lock on a file that has no name excludes no one.
            if os.path.samestat(os.fstat(stream.fileno()), lock.stat()):
                return stream
        except FileNotFoundError:
            pass
        except BaseException:
            stream.close()
            raise
        stream.close()
