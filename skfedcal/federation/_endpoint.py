"""What a client answers: the only code that touches rows and builds a message.

`respond` is called with one client at a site and with thousands in a simulation. Needs
numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from skfedcal.algorithms._base import Arrays, FederatedAlgorithm
from skfedcal.data._dataset import FederatedDataset
from skfedcal.privacy._codec import Codec, Integers

# Numbers of one chunk of clients before they are summed (float64: 16 MB).
_CHUNK_VALUES = 1 << 21


@dataclass(frozen=True, slots=True)
class Request:
    """One question to every client of a cohort.

    Parameters
    ----------
    algorithm : FederatedAlgorithm
        Whose `query` is asked.
    broadcast : mapping of str to ndarray
        What the server tells the clients.
    codec : Codec
        How answers are clipped and written.
    unit : {'client', 'example'}
        Whether a client's rows are bounded together or one by one.
    """

    algorithm: FederatedAlgorithm[Any]
    broadcast: Arrays
    codec: Codec
    unit: Literal["client", "example"] = "client"

    @property
    def n_bytes(self) -> int:
        """Size of what a client receives."""
        return sum(np.asarray(v).nbytes for v in self.broadcast.values())


@dataclass(frozen=True, slots=True)
class PartialSum:
    """Integer sum of the encoded answers of some clients; sums of sums are sums.

    `n_units` counts what was bounded one by one: clients, or their rows. `seconds` is
    the time that clients computed; only a simulation measures it, as it tells of a
    client's rows.
    """

    total: Mapping[str, Integers]
    n_clients: int
    n_units: int
    seconds: float = 0.0

    def __add__(self, other: PartialSum) -> PartialSum:
        total = {name: value + other.total[name] for name, value in self.total.items()}
        return PartialSum(
            total,
            self.n_clients + other.n_clients,
            self.n_units + other.n_units,
            self.seconds + other.seconds,
        )


def respond(request: Request, clients: FederatedDataset) -> PartialSum:
    """Encode what each client sends and add it up."""
    units = clients.by_row() if request.unit == "example" else clients
    size = sum(code.spec.size for code in request.codec.blocks.values())
    chunk = max(1, _CHUNK_VALUES // max(size, 1))
    total = request.codec.zeros()
    for start in range(0, len(units), chunk):
        part = units
        if len(units) > chunk:
            part = units.slice(start, min(start + chunk, len(units)))
        values = request.algorithm.query(request.broadcast, part)
        if any(len(value) != len(part) for value in values.values()):
            # A second row of a client would not be under its bound.
            raise ValueError("A query must return one row for each client.")
        for name, rows in request.codec.encode(values).items():
            total[name] += rows.sum(axis=0)
    return PartialSum(total, len(clients), len(units))
