"""What a comparison found, in the forms that people want it in."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

from skfedcal._files import write_whole
from skfedcal._json import check_format, dump, parse
from skfedcal.experiments.comparison.cells import DIFFERENCES
from skfedcal.experiments.results import ResultTable, Run

# Squares of numbers up to this are numbers too.
LARGEST = 1e100

NUMBERS = (
    "accuracy", "balanced", "cwECE", "floor", "floor_sd", "ECE", "NLL", "Brier",
    "acc change", "NLL gain", "NLL gain error", "confidence",
)  # fmt: skip
COUNTS = ("n_clients", "n_rows", "n_test")
COSTS = ("rounds", "bytes", "client seconds", "eps spent", "delta", "noise")
BINS = ("n", "confidence", "hits")
VARIED = ("beta", "n_rounds", "bins", "clip", "clients")


def check_comparison(
    runs: Sequence[Any], settings: Mapping[str, Any], varied: Any, refused: Any
) -> None:
    """Raise ValueError that names what is missing or invalid."""
    _need(all(isinstance(text, str) for text in refused), "refused")
    _need(set(varied) <= set(VARIED), "varied")
    _check_settings(settings)
    for run in runs:
        _need(isinstance(run, Mapping), "runs")
        check_result(run)
        _need(isinstance(run.get("method"), str), "method")
        _need(_is_eps(run.get("eps")), "eps")
        _need(_is_count(run.get("seed"), 0), "seed")
        for name in varied:
            value = run.get(name)
            _need(isinstance(value, str) or _is_number(value), name)
    methods = [run["method"] for run in runs]
    _need("base" in methods and set(methods) - {"base", "central"}, "runs")
    for run in runs:
        known = run["method"] in ("base", "central")
        _need((run["eps"] == "-") == known, "eps")


def check_result(result: Mapping[str, Any]) -> None:
    """Raise ValueError unless these are the measurements of one cell."""
    for name in NUMBERS:
        _need(_is_number(result.get(name)), name)
    _need(0 <= result["accuracy"] <= 1, "accuracy")
    for name in COUNTS:
        _need(_is_count(result.get(name), 1), name)
    for name in COSTS:
        value = result.get(name)
        _need(value is None or (_is_number(value) and value >= 0), name)
    _need(isinstance(result.get("used"), bool), "used")
    if result.get("eps spent") is not None:
        _need(result.get("delta") is not None, "delta")
        _need(result.get("noise") is not None, "noise")
        _need(isinstance(result.get("simulated"), bool), "simulated")
        for name in ("unit", "accountant"):
            _need(isinstance(result.get(name), str), name)
    _need(_is_texts(result.get("warnings", [])), "warnings")
    _check_bins(result.get("reliability"))
    if "clients differ" in result:
        found = result["clients differ"]
        same = isinstance(found, Mapping) and set(found) == set(DIFFERENCES)
        _need(same and all(map(_is_number, found.values())), "clients differ")


def _check_bins(bins: Any) -> None:
    """Counts by bin, of which each row is in one."""
    _need(isinstance(bins, Mapping), "reliability")
    parts = [bins.get(name) for name in BINS]
    _need(all(isinstance(part, list) and part for part in parts), "reliability")
    _need(len({len(part) for part in parts}) == 1, "reliability")
    for values in zip(*parts, strict=True):
        _need(all(map(_is_number, values)), "reliability")
        n, confidence, hits = values
        _need(n == 0 or n >= 1, "reliability")
        _need(0 <= hits <= n and 0 <= confidence <= n * (1 + 1e-6), "reliability")


def _check_settings(settings: Mapping[str, Any]) -> None:
    for name in ("version", "oracle"):
        _need(isinstance(settings.get(name), str), name)
    for name in ("clients dealt", "test given"):
        _need(isinstance(settings.get(name), bool), name)
    _need(_is_texts(settings.get("methods")), "methods")
    _need(isinstance(settings.get("seeds"), list), "seeds")
    _need(_is_count(settings.get("n_classes"), 2), "n_classes")
    vary = settings.get("vary", {})
    _need("vary" in settings and isinstance(vary, Mapping), "vary")
    _need(not settings["clients dealt"] or _is_number(settings.get("beta")), "beta")
    betas = vary.get("beta", [])
    _need(isinstance(betas, list) and all(map(_is_number, betas)), "vary")


def _need(holds: object, name: str) -> None:
    if not holds:
        raise ValueError(f"{name!r} is missing or has an invalid value")


def _is_number(value: Any) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and abs(value) <= LARGEST  # false for nan


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= least


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_eps(value: Any) -> bool:
    if value in ("-", "none"):
        return True
    try:
        return isinstance(value, str) and 0 < float(value) <= LARGEST
    except ValueError:
        return False


# Below this many clients one client is a large part of every sum.
FEW_CLIENTS = 50

# An error this many deviations above its floor is told from it.
N_DEVIATIONS = 2.0


def notes_of(comparison: Comparison) -> list[str]:
    """What to know about the rows, the columns and the privacy."""
    return [
        data_note(comparison),
        "base: logits as they are. central: "
        f"{comparison.settings['oracle']} on all rows in one place, without noise. "
        "floor: cwECE of a perfect model on as many rows. gap closed: share of the way "
        "from base to central, in cwECE. bytes and client seconds: of one client that "
        "takes part in all rounds.",
        *_star_note(comparison),
        *unchanged_input_notes(comparison),
        *fit_warnings(comparison),
        *(f"Left out: {text}" for text in comparison.refused),
        privacy_note(comparison),
    ]


def data_note(comparison: Comparison) -> str:
    """Say whose rows they are."""
    settings, first = comparison.settings, comparison.runs[0]
    clients = spread_text(comparison, "n_clients")
    how = ""
    if settings["clients dealt"]:
        how = (
            " The rows have no clients of their own: they were assigned to clients "
            "with label skew (Dirichlet, beta = "
            f"{_varied(comparison, 'beta', settings['beta'])})."
        )
    test = "given" if settings["test given"] else "held out, a new split for each seed"
    seeds = len(settings["seeds"])
    return (
        f"Calibrated on {spread_text(comparison, 'n_rows')} rows of {clients} clients, "
        f"measured on {spread_text(comparison, 'n_test')} rows ({test}); "
        f"{settings['n_classes']} classes, base accuracy "
        f"{100 * first['accuracy']:.1f} %, {seeds} seed{'s' * (seeds != 1)}.{how}"
    )


def privacy_note(comparison: Comparison) -> str:
    """Say what eps protects, and that this is a simulation."""
    private = [run for run in comparison.runs if run.get("eps spent") is not None]
    if not private:
        return "No noise was added: the sums are exact, and nothing is private."
    deltas = sorted({run["delta"] for run in private})
    units = sorted({run["unit"] for run in private})
    return (
        f"eps: budget of one whole {' or '.join(units)} for one fit, delta = "
        f"{', '.join(f'{delta:g}' for delta in deltas)}. "
        + (
            "All noise is seeded, so this is a simulation without a privacy guarantee."
            if all(run["simulated"] for run in private)
            else "The noise came from the operating system."
        )
    )


def unchanged_input_notes(comparison: Comparison) -> Iterator[str]:
    """Name private fits that were not distinguishable from noise and were not used."""
    counts: dict[str, dict[str, list[bool]]] = {}
    for run in comparison.runs:
        here = counts.setdefault(run["eps"], {})
        here.setdefault(run["method"], []).append(not run["used"])
    found = []
    for eps, methods in counts.items():
        kept = [
            f"{name} {sum(flags)} of {len(flags)}"
            for name, flags in methods.items()
            if any(flags)
        ]
        if kept:
            found.append(f"at eps {eps}: {', '.join(kept)}")
    if found:
        yield (
            "Input left unchanged, because the calibration was not distinguishable "
            f"from noise, in runs {'; '.join(found)}."
        )


def fit_warnings(comparison: Comparison) -> list[str]:
    """Warnings of the fits, each once."""
    texts = {
        f"{run['method']}: {text}": text
        for run in comparison.runs
        for text in run.get("warnings", ())
    }
    found = []
    for text in dict.fromkeys(texts.values()):
        names = [name.partition(":")[0] for name, own in texts.items() if own == text]
        found.append(f"{', '.join(names)}: {text}")
    return found


def spread_text(comparison: Comparison, name: str) -> str:
    """Return a number that all runs share, or its range."""
    found = sorted({run[name] for run in comparison.runs})
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _star_note(comparison: Comparison) -> Iterator[str]:
    if any(comparison.table.stars.values()):
        yield "*: accuracy drops by more than 1 % of the test rows."


def _varied(comparison: Comparison, name: str, value: Any) -> str:
    values = comparison.settings["vary"].get(name, [value])
    return ", ".join(f"{entry:g}" for entry in values)


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
        found = parse(self.table.to_json(), "The table")
        for name in ("title", "keys", "values"):
            del found[name]
        record = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "varied": list(self.varied),
            "refused": list(self.refused),
            **found,
        }
        return dump(record, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """Read what `to_json` wrote.

        Parameters
        ----------
        text : str
            JSON.
        """
        what = "a comparison written by `to_json`"
        record = parse(text, "The text")
        check_format(record, "The text", what, FORMAT, FORMAT_VERSION)
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
