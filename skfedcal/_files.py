"""Write a file as a whole or not at all."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


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
