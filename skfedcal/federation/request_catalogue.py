"""One valid request for every algorithm, trust model and unit that fit together.

A dishonest server starts from a request that a site answers and changes it. The
catalogue is used by the audit of a site and by the property test of its boundary; an
honest run does not need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Arrays, Sums
from skfedcal.federation.endpoint import Request
from skfedcal.federation.reading import Reading
from skfedcal.federation.runner import FederatedRunner
from skfedcal.methods import registry
from skfedcal.privacy.entropy import OSEntropy
from skfedcal.privacy.models import (
    CentralDP,
    DistributedDP,
    LocalDP,
    SecureAggregation,
    SourceDP,
)

MODELS = ("exact", "central", "shared", "own", "reports", "one-hot")
UNITS = ("client", "example")


@dataclass(frozen=True, slots=True)
class Schema:
    """What is public of the rows of a site.

    classes: Labels, in the order of the columns.
    n_columns: Columns of scores or features.
    kind ('scores', 'logits', 'proba', 'features'): What the file calls them.
    """

    classes: tuple[Any, ...]
    n_columns: int
    kind: str = "scores"

    def reading(self, name: str) -> Reading | None:
        """How the algorithm of this name reads the rows; None if it cannot."""
        algorithm = registry.algorithms()[name]
        if algorithm.rows == "features":
            if self.kind not in ("scores", "features"):
                return None
            return Reading(self.classes, n_columns=self.n_columns, rows="features")
        if self.kind == "features" or self.n_columns not in (
            len(self.classes),
            len(self.classes) - 1,
        ):
            return None
        if algorithm.n_classes not in (None, len(self.classes)):
            return None
        input_type: Any = "proba" if self.kind == "proba" else "logits"
        return Reading(self.classes, input_type, self.n_columns, algorithm.rows)


@dataclass(frozen=True, slots=True)
class Entry:
    """A valid request and what it stands for."""

    algorithm: str
    model: str
    unit: str
    request: Request

    @property
    def name(self) -> str:
        """Text for tables."""
        return f"{self.algorithm}, {self.model}, {self.unit}"


def catalogue(
    schema: Schema,
    *,
    n_clients: int = 3,
    n_rows: int = 1000,
    eps: float = 1.0,
    max_colluders: int = 0,
    algorithms: Sequence[str] | None = None,
    models: Sequence[str] = MODELS,
    units: Sequence[str] = UNITS,
    later_rounds: bool = True,
) -> list[Entry]:
    """Valid requests for all combinations that the library itself would send.

    schema: What the rows of the site are.
    n_clients, n_rows: Public numbers of sites, and of rows of all of them.
    eps: Of each request.
    max_colluders: As the policy of the site demands.
    algorithms, models, units: Which of them; None is all.
    later_rounds: Whether to ask the second round of algorithms that broadcast something
        else in it, too.
    """
    found = []
    for name in algorithms or registry.algorithms():
        reading = schema.reading(name)
        if reading is None:
            continue
        for algorithm in examples_of(name, schema):
            for model in models:
                for unit in units:
                    plain = _request(
                        algorithm, model, unit, schema, n_clients, n_rows, eps,
                        max_colluders,
                    )  # fmt: skip
                    if plain is None:
                        continue
                    first = replace(plain, reading=reading)
                    found.append(Entry(name, model, unit, first))
                    if later_rounds and model == "exact":
                        found += _later(name, first, schema)
    return found


def examples_of(name: str, schema: Schema) -> Iterator[Any]:
    """Algorithms of a name, with the parameters of their cases, for these rows."""
    algorithm = registry.algorithms()[name]
    cls: Any = algorithm.load()
    known = {f.name for f in fields(cls)}
    for case in algorithm.cases:
        chosen = dict(case)
        if "family" in chosen:
            chosen["family"] = registry.load_object(
                registry.FAMILIES[chosen["family"]]
            )()
        if "inner" in chosen:
            chosen["inner"] = next(iter(examples_of(chosen["inner"], schema)))
        if "n_features" in known and algorithm.rows == "features":
            chosen["n_features"] = schema.n_columns
        if "n_classes" in known:
            chosen["n_classes"] = len(schema.classes)
        if "input_type" in known and schema.kind == "proba":
            chosen["input_type"] = "proba"
        made = cls(**chosen)
        if getattr(made, "scores", None) == "binary" and len(schema.classes) > 2:
            made = replace(made, scores="top")
        yield made


def _model(name: str, unit: Any, n_clients: int, eps: float, max_colluders: int) -> Any:
    if name == "exact":
        return SecureAggregation() if unit == "client" else None
    if name == "central":
        return CentralDP(eps, unit=unit)
    if name == "shared":
        return DistributedDP(
            eps,
            unit=unit,
            n_min=n_clients,
            mode="faithful",
            max_colluders=max_colluders,
        )
    if name == "own":
        source = SourceDP(eps, mode="faithful")
        return source if source.unit == unit else None
    if unit != "client":
        return None
    return LocalDP(eps, mode="faithful" if name == "reports" else "fast")


def _request(
    algorithm: Any,
    model_name: str,
    unit: str,
    schema: Schema,
    n_clients: int,
    n_rows: int,
    eps: float,
    max_colluders: int,
) -> Request | None:
    """First request of a run; None where the library refuses the combination."""
    n_classes = len(schema.classes)
    width = schema.n_columns
    clients = FederatedDataset(
        np.zeros((n_rows, width)),
        np.zeros(n_rows, dtype=np.int64),
        np.linspace(0, n_rows, n_clients + 1).astype(np.int64),
        list(range(n_clients)),
        n_classes,
    )
    try:
        model = _model(model_name, unit, n_clients, eps, max_colluders)
        if model is None:
            return None
        if unit == "example" and getattr(algorithm, "by_place", False):
            return None
        plan = FederatedRunner().release_plan(algorithm, clients, model.unit)
        mechanism = model.mechanism(
            plan, entropy=OSEntropy(), ledger=None, split="split", label="audit"
        )
        mechanism.open("run")
        broadcast = algorithm.broadcast(algorithm.init(n_classes))
        codec = mechanism.codec(algorithm.spec(broadcast))
        return Request(
            algorithm,
            broadcast,
            codec,
            mechanism.unit,
            mechanism.randomizer(codec, 0),
            None,
            mechanism.n_min,
            n_clients=n_clients,
            n_units=n_rows if unit == "example" else n_clients,
            claim=mechanism.event,
            run="run",
            max_colluders=mechanism.max_colluders,
        )
    except (TypeError, ValueError):
        return None


def _later(name: str, first: Request, schema: Schema) -> Iterator[Entry]:
    """Second round of the same run, where it asks something else."""
    algorithm = first.algorithm
    if algorithm.n_rounds < 2:
        return
    state = algorithm.init(len(schema.classes))
    broadcast = algorithm.broadcast(state)
    total = Sums(_example_sums(algorithm, broadcast, schema))
    try:
        state = algorithm.update(state, total, first.n_clients)
        after = algorithm.broadcast(state)
        spec = algorithm.spec(after)
    except (TypeError, ValueError, ArithmeticError):
        return
    blocks = {n: replace(_code(first), spec=block) for n, block in spec.items()}
    codec = replace(first.codec, blocks=blocks)
    request = replace(first, broadcast=after, codec=codec, round_index=1)
    yield Entry(name, "exact", "client", request)


def _code(request: Request) -> Any:
    return replace(next(iter(request.codec.blocks.values())), step=None)


def _example_sums(
    algorithm: Any, broadcast: Arrays, schema: Schema
) -> Mapping[str, Any]:
    """Sums over some made-up rows, so that a second round exists."""
    rng = np.random.default_rng(0)
    n_classes = len(schema.classes)
    width = schema.n_columns if schema.kind == "features" else n_classes
    if getattr(algorithm, "n_features", None) is not None:
        width = schema.n_columns
    rows = rng.normal(size=(60, width))
    labels = rng.integers(0, n_classes, 60)
    clients = FederatedDataset(rows, labels, np.array([0, 60]), ["example"], n_classes)
    values = algorithm.query(broadcast, clients)
    return {
        key: value.dense().sum(axis=0) if hasattr(value, "dense") else value.sum(axis=0)
        for key, value in values.items()
    }
