"""Result of a comparison, in several output formats."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

from skfedcal._files import write_whole
from skfedcal.experiments._results import ResultTable, Run
from skfedcal.experiments.comparison._check import check_comparison, parse
from skfedcal.experiments.comparison._clients import DIFFERENCES
from skfedcal.experiments.comparison._notes import N_DEVIATIONS, notes_of

# Entry of a key that does not concern a row.
NO_VALUE = "-"

# Columns and how they are shown; those in SPREAD with their deviation over seeds.
COLUMNS = {
    "cwECE": ".2%",
    "floor": ".2%",
    "ECE": ".2%",
    "NLL": ".3f",
    "Brier": ".3f",
    "acc change": "+.2%",
    "gap closed": ".0%",
    "eps spent": ".3g",
    "rounds": ".0f",
    "bytes": ".0f",
    "client seconds": ".2g",
}
SPREAD = ("cwECE", "ECE", "NLL", "acc change")

# The error is a mean over classes, most of which a row is far from: more digits.
MANY_CLASSES = 50

# The paper marks results whose accuracy drops by more.
ACCURACY_DROP = 0.01

# What missing or wrong entries of a comparison from a file make of it.
DAMAGE = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError)

FORMAT = "skfedcal-comparison"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of `compare`.

    Parameters
    ----------
    runs : list of dict
        One per row of the table and seed, with all that was measured.
    settings : dict
        What all runs share.
    varied : tuple of str, default=()
        Columns of what was varied.
    refused : tuple of str, default=()
        Methods that could not be fitted, and why.

    See Also
    --------
    compare : Makes one.

    Examples
    --------
    >>> from skfedcal import compare, make_federation
    >>> fed = make_federation(n_clients=50, n_samples=3000, n_test=2000, random_state=0)
    >>> result = compare(
    ...     fed.clients, (fed.test_logits, fed.test_labels), methods=["temp"],
    ...     eps=[None], seeds=1, progress=False,
    ... )
    >>> print(result.to_markdown().splitlines()[0][:32])
    | method | eps | cwECE % | floor
    """

    runs: Sequence[Run]
    settings: Mapping[str, Any]
    varied: tuple[str, ...] = ()
    refused: tuple[str, ...] = field(default=())

    @property
    def table(self) -> ResultTable:
        """Rows by method and eps, base and central oracle first."""
        keys = ("method", "eps", *self.varied)
        columns = dict(COLUMNS)
        if self.settings.get("n_classes", 0) >= MANY_CLASSES:
            columns |= {"cwECE": ".3%", "floor": ".3%"}
        table = ResultTable(
            "Calibration by method and privacy",
            keys,
            columns,
            self._with_gap(),
            self.settings,
            SPREAD,
        )
        dropped = {
            tuple(row[key] for key in keys)
            for row in table.rows
            if row["acc change"] < -ACCURACY_DROP
        }
        return ResultTable(
            table.title,
            keys,
            columns,
            table.runs,
            self.settings,
            SPREAD,
            {"cwECE": dropped},
        )

    @property
    def client_table(self) -> ResultTable:
        """How far clients differ, by beta and number of clients if these vary.

        Classes of a client; variance over clients of the temperatures that they would
        fit alone, and of their classwise error with it; mean distance of these
        temperatures from that of all rows.
        """
        keys = tuple(name for name in self.varied if name in ("beta", "clients"))
        runs = [
            {**{name: run[name] for name in (*keys, "seed")}, **run["clients differ"]}
            for run in self.runs
            if "clients differ" in run
        ]
        return ResultTable(
            "How far clients differ", keys, DIFFERENCES, runs, self.settings
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per row: keys, means over seeds, ``sd_`` of each and ``n_runs``."""
        return self.table.rows

    def to_text(self, width: int | None = None) -> str:
        """Return the table and what to know about it.

        Parameters
        ----------
        width : int, default=None
            Letters of a line; a wider table is cut into two. None never cuts.
        """
        notes = self.notes
        if width is not None:
            notes = [textwrap.fill(note, max(width, 40)) for note in notes]
        return "\n".join([self.table.to_text(width), "", *notes])

    def to_markdown(self) -> str:
        """Return the table in Markdown, and the notes."""
        notes = "\n".join(f"- {note}" for note in self.notes)
        return f"{self.table.to_markdown()}\n\n{notes}\n"

    def to_csv(self) -> str:
        """Return one line per row, with means and deviations."""
        return self.table.to_csv()

    def to_latex(self) -> str:
        """Return a LaTeX tabular."""
        return self.table.to_latex()

    def to_json(self) -> str:
        """Return all runs; `from_json` reads them."""
        found = json.loads(self.table.to_json())
        for name in ("title", "keys", "values"):
            del found[name]
        record = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "varied": list(self.varied),
            "refused": list(self.refused),
            **found,
        }
        return json.dumps(record, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """Read what `to_json` wrote.

        Parameters
        ----------
        text : str
            JSON.
        """
        record = parse(text)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError("This JSON is not a comparison written by `to_json`.")
        if record.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"The comparison has format version {record.get('format_version')!r}; "
                f"this release reads {FORMAT_VERSION}."
            )
        try:
            found = cls(
                list(record["runs"]),
                dict(record["settings"]),
                tuple(record["varied"]),
                tuple(record["refused"]),
            )
            check_comparison(found.runs, found.settings, found.varied, found.refused)
        except DAMAGE as error:
            raise ValueError(f"The comparison is damaged: {error}.") from error
        return found

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a report in one file that needs no network.

        Parameters
        ----------
        path : str or path-like
            File to write; replaced as a whole or not at all.
        """
        from skfedcal.experiments.report import html_report

        page = html_report(self).encode("utf-8")
        write_whole(Path(path), lambda stream: stream.write(page))

    @property
    def notes(self) -> list[str]:
        """Sentences that belong to the table."""
        return notes_of(self)

    def __str__(self) -> str:
        """Return the same as `to_text`."""
        return self.to_text()

    def __repr__(self) -> str:
        methods = ", ".join(self.settings.get("methods", ()))
        return f"Comparison({len(self.runs)} runs of {methods})"

    def _with_gap(self) -> list[dict[str, Any]]:
        """Runs with the share of the gap to the central oracle that they close."""
        ends: dict[tuple, dict[str, Run]] = {}
        for run in self.runs:
            if run["method"] in ("base", "central"):
                ends.setdefault(self._place(run), {})[run["method"]] = run
        return [{**run, "gap closed": self._gap(run, ends)} for run in self.runs]

    def _gap(self, run: Run, ends: Mapping[tuple, Mapping[str, Run]]) -> float:
        found = ends.get(self._place(run), {})
        if len(found) < 2:
            return nan
        base, central = found["base"], found["central"]
        whole = base["cwECE"] - central["cwECE"]
        if whole <= N_DEVIATIONS * base["floor_sd"]:
            return nan
        return float((base["cwECE"] - run["cwECE"]) / whole)

    def _place(self, run: Run) -> tuple:
        """Seed and what else decides the split of a run."""
        split = [run[name] for name in self.varied if name in ("beta", "clients")]
        return (run["seed"], *split)
