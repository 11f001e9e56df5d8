"""Settings of a comparison, and the cells that they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from numbers import Integral, Real
from typing import Any

from skfedcal._params import as_number
from skfedcal._sklearn_compat import copy_to_fit
from skfedcal._version import __version__
from skfedcal.experiments.comparison._cells import BASE, CENTRAL, Cell
from skfedcal.experiments.comparison._check import LARGEST
from skfedcal.experiments.comparison._named import changed, whole
from skfedcal.experiments.comparison._result import NO_VALUE
from skfedcal.experiments.comparison._rows import N_CLIENTS, Rows
from skfedcal.federation import FederatedRunner

# What decides how rows are dealt, and therefore what the base and the oracle are.
OF_SPLIT = ("beta", "clients")

# Column of what is varied, where its name is that of something measured.
COLUMN = {"rounds": "n_rounds"}


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a comparison, and the cells that they make."""

    rows: Rows
    methods: Mapping[str, Any]
    oracle: Any
    eps: Sequence[float | None]
    seeds: Sequence[int]
    vary: Mapping[str, Sequence[Any]]
    sizes: Mapping[str, Any]
    delta: float | None
    class_prior: Any
    runner: FederatedRunner
    n_bins: int

    def check(self) -> None:
        """Refuse settings that no cell could have."""
        if not 0 < self.sizes["test_size"] < 1:
            raise ValueError(f"test_size={self.sizes['test_size']} is not in (0, 1).")
        if not 0 < self.sizes["beta"] < inf:
            raise ValueError(f"beta={self.sizes['beta']} is not a number above 0.")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"delta={self.delta} is not in (0, 1).")
        whole("n_bins", self.n_bins)
        if not isinstance(self.runner, FederatedRunner):
            raise TypeError(
                f"runner must be a FederatedRunner or None, got {self.runner!r}."
            )
        if "beta" in self.vary and self.rows.clients is not None:
            raise ValueError(
                "vary='beta' deals rows to clients, but these have clients already. "
                "Pass (logits, labels) without client_ids."
            )
        for point in self.points(OF_SPLIT):
            split = self.rows.partition(**self._split(point, self.seeds[0]))
            if len(split.test_labels) < 2 or not len(split.labels):
                raise ValueError(
                    f"{len(split.labels)} rows to fit and {len(split.test_labels)} to "
                    "test are too few; pass more, or another test_size."
                )

    def points(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return combinations of the varied values, eps left out."""
        chosen = {
            name: values
            for name, values in self.vary.items()
            if name != "eps" and (names is None or name in names)
        }
        return [
            dict(zip(chosen, values, strict=True))
            for values in product(*chosen.values())
        ]

    def cells(self) -> Iterator[Cell]:
        """All cells: base and oracle first, then by budget, method and seed."""
        for method, estimator in ((BASE, None), (CENTRAL, self._configured_oracle())):
            for point in self.points(OF_SPLIT):
                for seed in self.seeds:
                    yield self._cell(method, estimator, NO_VALUE, point, seed)
        budgets = self.vary.get("eps", self.eps)
        for eps, (name, method) in product(budgets, self.methods.items()):
            seen = set()
            for point in self.points():
                estimator, shown = self._at(method, point)
                mark = tuple(shown.values())
                if mark in seen:  # `vary` changes nothing for this method
                    continue
                seen.add(mark)
                for seed in self.seeds:
                    yield self._cell(
                        name,
                        self._configured(estimator, eps, seed, point),
                        budget_text(eps),
                        point,
                        seed,
                        shown,
                    )

    def _at(self, method: Any, point: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the method with bins and clip of a point, and what it has of it."""
        shown = dict(point)
        for name in ("bins", "clip"):
            if name in point:
                other = changed(method, name, point[name])
                if other is None:
                    shown[name] = NO_VALUE
                else:
                    method = other
        return method, shown

    def _configured_oracle(self) -> Any:
        return copy_to_fit(self.oracle).set_params(
            eps=None, classes=range(len(self.rows.classes)), random_state=0
        )

    def _configured(
        self, estimator: Any, eps: float | None, seed: int, point: Mapping[str, Any]
    ) -> Any:
        params: dict[str, Any] = {
            "eps": eps,
            "classes": list(range(len(self.rows.classes))),
            "random_state": seed,
            "runner": replace(
                self.runner, n_rounds=point.get("rounds", self.runner.n_rounds)
            ),
        }
        if self.delta is not None and eps is not None:
            params["delta"] = self.delta
        if self.class_prior is not None and "class_prior" in estimator.get_params():
            params["class_prior"] = self.class_prior
        return copy_to_fit(estimator).set_params(**params)

    def _cell(
        self,
        method: str,
        estimator: Any,
        eps: str,
        point: Mapping[str, Any],
        seed: int,
        shown: Mapping[str, Any] | None = None,
    ) -> Cell:
        varied = [name for name in self.vary if name != "eps"]
        shown = point if shown is None else shown
        labels = {
            "method": method,
            "eps": eps,
            **{COLUMN.get(n, n): shown.get(n, NO_VALUE) for n in varied},
            "seed": int(seed),
        }
        return Cell(
            method, estimator, labels, self._split(point, seed), int(self.n_bins)
        )

    def _split(self, point: Mapping[str, Any], seed: int) -> dict[str, Any]:
        return {
            "seed": int(seed),
            "n_clients": point.get("clients", self.sizes["n_clients"]),
            "beta": point.get("beta", self.sizes["beta"]),
            "test_size": self.sizes["test_size"],
        }

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of what is varied."""
        return tuple(COLUMN.get(name, name) for name in self.vary if name != "eps")

    def settings(self) -> dict[str, Any]:
        """What a reader needs to run it again."""
        dealt = self.rows.clients is None
        return {
            "version": __version__,
            "methods": list(self.methods),
            "eps": list(self.vary.get("eps", self.eps)),
            "seeds": list(self.seeds),
            "vary": dict(self.vary),
            "delta": self.delta,
            "n_classes": len(self.rows.classes),
            "clients dealt": dealt,
            "n_clients": self.sizes["n_clients"] or (N_CLIENTS if dealt else None),
            "beta": self.sizes["beta"] if dealt else None,
            "test given": self.rows.test is not None,
            "test_size": None
            if self.rows.test is not None
            else self.sizes["test_size"],
            "class_prior": None if self.class_prior is None else str(self.class_prior),
            "runner": repr(self.runner),
            "oracle": type(self.oracle).__name__.removesuffix("Calibrator"),
            "n_bins": int(self.n_bins),
        }


def budget_text(eps: float | None) -> str:
    """Budget as a key of a row: short, but two budgets never look the same."""
    if eps is None:
        return "none"
    short = f"{eps:g}"
    return short if float(short) == eps else repr(float(eps))


def read_budgets(eps: Any) -> list[float | None]:
    """Return budgets, None for no noise."""
    if isinstance(eps, Real) or eps is None:
        eps = [eps]
    if not isinstance(eps, Iterable) or getattr(eps, "ndim", 1) == 0:
        raise TypeError(f"eps={eps!r}: pass a list of numbers above 0, or None.")
    found: list[float | None] = []
    for value in eps:
        number = None if value is None else as_number("eps", value)
        # What is above hides nothing, and has no square.
        if number is not None and not 0 < number <= LARGEST:
            raise ValueError(
                f"eps has {value!r}; pass finite numbers above 0, or None for no noise."
            )
        found.append(number)
    if not found or len(set(found)) < len(found):
        raise ValueError(f"eps={eps!r} must have entries, each once.")
    return found


def read_seeds(seeds: Any) -> list[int]:
    """Return a list of seeds."""
    listed = isinstance(seeds, Iterable) and getattr(seeds, "ndim", 1) > 0
    if isinstance(seeds, bool) or not (isinstance(seeds, Integral) or listed):
        raise TypeError(f"seeds must be a number or a list, got {seeds!r}.")
    found = list(range(seeds)) if isinstance(seeds, Integral) else list(seeds)
    whole = all(isinstance(s, Integral) and 0 <= int(s) < 2**32 for s in found)
    if not found or not whole or len(set(found)) < len(found):
        raise ValueError(
            f"seeds={seeds!r}: pass a number above 0, or a list of whole numbers from "
            "0, each once."
        )
    return [int(seed) for seed in found]
