"""A run on disk after each release, so that a killed fit can go on."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from skfedcal._files import write_whole
from skfedcal.exceptions import CheckpointError

_FORMAT = "skfedcal-checkpoint-1"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a run stands.

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
        arrays.update({f"total.{i}.{k}": v for k, v in record["total"].items()})
    buffer = io.BytesIO()
    arrays["header"] = np.asarray(json.dumps(header))
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # stubs: one array each
    write_whole(path, lambda stream: stream.write(buffer.getvalue()))


def load(path: str | os.PathLike[str], digest: str) -> Checkpoint:
    """Read a checkpoint of the run with this fingerprint.

    Raises
    ------
    CheckpointError
        If the file is damaged or belongs to another run.
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
        raise CheckpointError(f"{path} has the unknown format {header['format']!r}.")
    if header["fingerprint"] != digest:
        raise CheckpointError(
            f"{path} belongs to another fit (other parameters, clients, classes or "
            "seed). Delete it, or pass another checkpoint path."
        )
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
    for name, value in state_fields(template).items():
        array = saved[name]
        values[name] = array if isinstance(value, np.ndarray) else type(value)(array)
    return type(template)(**values)


def _plain(value: Any) -> Any:
    return (
        value.tolist() if isinstance(value, (np.ndarray, np.generic)) else repr(value)
    )
