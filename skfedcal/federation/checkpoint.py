"""Checkpoints: a run is saved after each release, so that a killed fit can resume."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from skfedcal._files import write_whole
from skfedcal.exceptions import CheckpointError

_FORMAT = "skfedcal-checkpoint-3"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a run after a round.

    `state` holds the fields of the algorithm's state, `records` those of the history.
    """

    run_id: str
    key: int
    round_index: int
    finished: bool
    state: Mapping[str, Any]
    records: list[dict[str, Any]]


def fingerprint(**parts: Any) -> str:
    """Digest of everything public that makes two runs the same run."""
    text = json.dumps(parts, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()


def save(path: str | os.PathLike[str], digest: str, checkpoint: Checkpoint) -> None:
    """Write atomically: after a crash the file is the old one or the new one."""
    header = {
        "format": _FORMAT,
        "fingerprint": digest,
        "run_id": checkpoint.run_id,
        "key": str(checkpoint.key),
        "round_index": checkpoint.round_index,
        "finished": checkpoint.finished,
        "records": [
            {k: v for k, v in record.items() if k != "total"}
            for record in checkpoint.records
        ],
    }
    arrays = {f"state.{k}": np.asarray(v) for k, v in checkpoint.state.items()}
    for i, record in enumerate(checkpoint.records):
        arrays.update(
            {f"total.{i}.{k}": np.asarray(v) for k, v in record["total"].items()}
        )
    header["content"] = content_hash(header, arrays)
    buffer = io.BytesIO()
    arrays["header"] = np.asarray(json.dumps(header))
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # stubs: one array each
    write_whole(path, lambda stream: stream.write(buffer.getvalue()))


def content_hash(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """Digest of everything in the file, so that a changed value is noticed."""
    body = {k: v for k, v in header.items() if k != "content"}
    parts = {
        name: [
            array.dtype.str,
            array.shape,
            hashlib.sha256(array.tobytes()).hexdigest(),
        ]
        for name, array in arrays.items()
    }
    return fingerprint(header=body, arrays=parts)


def load(path: str | os.PathLike[str], digest: str) -> Checkpoint:
    """Read a checkpoint of the run with this fingerprint.

    Raises CheckpointError: If the file is damaged or belongs to another run.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays.pop("header")))
        known = header["format"] == _FORMAT
    except Exception as error:  # a damaged archive fails in a dozen ways
        raise CheckpointError(
            f"{path} is not a readable checkpoint: {error}"
        ) from error
    if not known:
        raise CheckpointError(
            f"{path} has the unknown format {header['format']!r}; this version of "
            f"skfedcal reads {_FORMAT!r}. Use the version that wrote it, or delete the "
            "file to start again, which is debited again."
        )
    if header.get("content") != content_hash(header, arrays):
        raise CheckpointError(
            f"{path} was edited or damaged: its content does not match its hash. Put "
            "the file back as it was written, or delete it to start again, which is "
            "debited again."
        )
    if header["fingerprint"] != digest:
        raise CheckpointError(
            f"{path} belongs to another fit (other parameters, clients, classes or "
            "seed). Delete it, or pass another checkpoint path."
        )
    return _read(header, arrays)


def _read(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Checkpoint:
    totals: list[dict[str, Any]] = [{} for _ in header["records"]]
    state = {}
    for name, value in arrays.items():
        kind, _, rest = name.partition(".")
        if kind == "state":
            state[rest] = value
        else:
            index, _, block = rest.partition(".")
            totals[int(index)][block] = value
    records = [
        {**record, "total": total}
        for record, total in zip(header["records"], totals, strict=True)
    ]
    return Checkpoint(
        header["run_id"],
        int(header["key"]),
        header["round_index"],
        header["finished"],
        state,
        records,
    )


def state_fields(state: Any) -> dict[str, Any]:
    """Fields of a state dataclass by name."""
    return {f.name: getattr(state, f.name) for f in fields(state)}


def restore_state(template: Any, saved: Mapping[str, Any]) -> Any:
    """Build a state like `template` from saved arrays."""
    values = {}
    expected = state_fields(template)
    if missing := sorted(expected.keys() - saved.keys()):
        raise CheckpointError(
            f"The checkpoint has no {missing}: it was written by another version of "
            "skfedcal. Use that version, or delete the file to start again, which is "
            "debited again."
        )
    for name, value in expected.items():
        array = saved[name]
        values[name] = array if isinstance(value, np.ndarray) else type(value)(array)
    return type(template)(**values)


def _plain(value: Any) -> Any:
    """JSON value of what a fingerprint covers, to the last bit.

    Not the text of a dataclass or of an array, which leaves out defaults or numbers.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__, **state_fields(value)}
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return repr(value)
