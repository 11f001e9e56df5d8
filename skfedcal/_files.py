"""Write a file as a whole or not at all, and keep others off it meanwhile."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows: two processes on one file are not noticed there
    fcntl = None  # type: ignore[assignment]


def write_whole(
    path: str | os.PathLike[str], write: Callable[[BinaryIO], object]
) -> None:
    """Let `write` fill a draft beside `path`, then rename it.

    After a crash or an error the file is the old one or the new one, and on disk.
    """
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(draft, "xb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    if os.name == "posix":  # the rename itself is safe only with its folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a lock beside `path`; BlockingIOError if another process has it."""
    path = Path(os.path.realpath(path))
    lock = path.with_name(f".{path.name}.lock")
    with _open_locked(lock):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _open_locked(lock: Path) -> BinaryIO:
    while True:
        stream = open(lock, "ab")  # noqa: SIM115  # closed by the caller
        try:
            if fcntl is not None:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file between the two lines above: a
            # lock on a file that has no name keeps nobody off.
            if os.path.samestat(os.fstat(stream.fileno()), lock.stat()):
                return stream
        except FileNotFoundError:
            pass
        except BaseException:
            stream.close()
            raise
        stream.close()
