"""federated_report: every metric of a classifier from one release."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from skfedcal.evaluation.functions import Source, from_clients
from skfedcal.evaluation.intervals import Estimate, check_level

if TYPE_CHECKING:
    from skfedcal.evaluation.multiclass import Tables
    from skfedcal.evaluation.rounds import Part
    from skfedcal.privacy.events import PrivacyReport

Entry = Estimate | dict[str, Estimate]

_COLUMNS = ("precision", "recall", "f1-score", "support", "roc auc")


@dataclass(frozen=True, eq=False, repr=False)
class ClassificationReport:
    """Metrics of one release, as of scikit-learn's ``classification_report``.

    Made by `federated_report`. ``report["macro avg"]["recall"]`` and
    ``report["log loss"]`` are `Estimate` objects; printing it gives the table.

    Attributes
    ----------
    entries : dict
        By label, as text, and name: 'accuracy', 'macro avg' and others.
    n_labels : int
        Number of leading entries that are classes.
    confusion : list of lists of Estimate, or None
        Numbers of rows by label and predicted class; None where only their margins
        were released, and for more than 100 classes (`federated_confusion_matrix`).
    privacy_ : PrivacyReport
        Privacy guarantee of the release, which holds for all entries together.

    Examples
    --------
    >>> from skfedcal import federated_report, make_federation
    >>> fed = make_federation(n_clients=20, n_samples=2000, n_classes=3, random_state=0)
    >>> report = federated_report(fed.clients)
    >>> print(f"{report['accuracy']:.3f}, {report['macro avg']['f1-score']:.3f}")
    0.803, 0.803
    """

    entries: dict[str, Entry]
    n_labels: int
    confusion: list[list[Estimate]] | None
    privacy_: PrivacyReport = field(repr=False)

    def __getitem__(self, name: str) -> Entry:
        if name not in self.entries:
            raise KeyError(f"{name!r}; entries are {list(self.entries)}")
        return self.entries[name]

    def to_dict(self, *, intervals: bool = False) -> dict[str, object]:
        """Entries as plain values, with the keys of scikit-learn's ``output_dict``.

        Parameters
        ----------
        intervals : bool, default=False
            Give each number as the dictionary of ``Estimate.to_dict``.

        Returns
        -------
        dict
        """

        def plain(value: Entry) -> Any:
            if isinstance(value, dict):
                return {name: plain(part) for name, part in value.items()}
            return value.to_dict() if intervals else float(value)

        return {name: plain(value) for name, value in self.entries.items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClassificationReport):
            return NotImplemented
        return repr(self.to_dict()) == repr(other.to_dict())

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        rows = self._rows()
        wide = max(len(name) for name, _ in rows)
        head = " " * wide + "".join(f"{name:>11}" for name in self._columns())
        lines = [head, ""]
        for i, (name, cells) in enumerate(rows):
            if i == self.n_labels:
                lines.append("")
            line = f"{name:>{wide}}" + "".join(f"{cell:>11}" for cell in cells)
            lines.append(line.rstrip())
        lines.append("")
        for name, found in self._numbers():
            lines.append(f"{name:>{wide + 6}} {_short(found)} {_interval(found)}")
        return "\n".join([*lines, "", self._guarantee()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the tables for notebooks; intervals are the titles of cells."""
        head = "".join(f"<th>{escape(n)}</th>" for n in ("", *self._columns()))
        body = []
        for name, value in self.entries.items():
            if not isinstance(value, dict):
                continue
            cells = "".join(
                f'<td title="{_interval(value[c])}">{_short(value[c], c)}</td>'
                if c in value
                else "<td></td>"
                for c in self._columns()
            )
            body.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
        numbers = "".join(
            f"<tr><th>{escape(name)}</th><td>{_short(found)}</td>"
            f"<td>{_interval(found)}</td></tr>"
            for name, found in self._numbers()
        )
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
            f"</table><table><tbody>{numbers}</tbody></table>"
            f"<p>{escape(self._guarantee())}</p>"
        )

    def _columns(self) -> tuple[str, ...]:
        first = next(iter(self.entries.values()))
        assert isinstance(first, dict)
        return tuple(name for name in _COLUMNS if name in first)

    def _rows(self) -> list[tuple[str, list[str]]]:
        return [
            (name, [_short(value[c], c) if c in value else "" for c in self._columns()])
            for name, value in self.entries.items()
            if isinstance(value, dict)
        ]

    def _numbers(self) -> list[tuple[str, Estimate]]:
        return [
            (name, value)
            for name, value in self.entries.items()
            if isinstance(value, Estimate)
        ]

    def _guarantee(self) -> str:
        report = self.privacy_
        if not report.private:
            return "Exact sums, without a privacy guarantee."
        text = (
            f"All numbers together: eps={report.eps:g}, delta={report.delta:.3g}, "
            f"unit {report.unit}, {report.adjacency}."
        )
        return text if report.secure else f"{text} Simulated: seeded noise."


def _short(found: Estimate, column: str = "") -> str:
    return f"{found:.0f}" if column == "support" else f"{found:.3f}"


def _interval(found: Estimate) -> str:
    return f"[{found.low:.3f}, {found.high:.3f}]"


@from_clients("kind")
def federated_report(
    source: Source, *, n_bins: int = 15, debias: bool = True, ci: float = 0.95
) -> ClassificationReport:
    """Every metric of a classifier from one release and one budget.

    The counterpart of scikit-learn's ``classification_report``: precision, recall, F1
    and support of each class and their averages, accuracy and balanced accuracy, and
    metrics of scores: area under the ROC curve, average precision, log loss, Brier
    score and calibration errors. Clients are asked once; under noise the tables of
    predictions and of scores share eps, scores with the larger part, and under
    `LocalDP` every client reports on one table.

    Parameters
    ----------
    n_bins : int, default=15
        Bins of calibration errors.
    debias : bool, default=True
        Subtract the bias that sampling and noise add to calibration errors.
    ci
    {shared}

    Returns
    -------
    ClassificationReport

    Examples
    --------
    >>> from skfedcal import federated_report, make_federation
    >>> fed = make_federation(n_clients=20, n_samples=2000, n_classes=3, random_state=0)
    >>> report = federated_report(fed.clients)
    >>> print(f"{report['roc auc']:.3f}, {report['2']['recall']:.3f}")
    0.938, 0.815
    """
    check_level(ci)
    several = source.n_classes > 2
    parts: tuple[Part, ...] = ("margins", "scores", "top")
    tables = source.tables(*(parts if several else ("confusion", "binary")))
    return report_of(tables, n_bins, debias, ci)


# Most classes whose confusion matrix is part of a report, with an interval per cell.
_MATRIX_CLASSES = 100


def report_of(
    tables: Tables, n_bins: int, debias: bool, ci: float
) -> ClassificationReport:
    """Answers of tables of predictions and scores."""
    entries = _predictions(tables, ci)
    n_labels = len(tables.classes)
    entries |= _scores(tables, entries, n_bins, debias, ci)
    matrix = None
    if "confusion" in tables.counts and n_labels <= _MATRIX_CLASSES:
        matrix = tables.predictions().matrix(None, ci)
    return ClassificationReport(entries, n_labels, matrix, tables.privacy_)


def _predictions(tables: Tables, ci: float) -> dict[str, Entry]:
    found = tables.predictions()
    names = {"precision": "precision", "recall": "recall", "f1-score": "f1"}
    each = {name: found.score(metric, None, ci) for name, metric in names.items()}
    support = found.support(ci)
    out: dict[str, Entry] = {}
    for i, label in enumerate(tables.classes.tolist()):
        out[str(label)] = {
            **{name: values[i] for name, values in each.items()},  # type: ignore[index]
            "support": support[i],
        }
    for average in ("macro", "weighted"):
        out[f"{average} avg"] = {
            name: found.score(metric, average, ci)  # type: ignore[misc]
            for name, metric in names.items()
        }
    out["accuracy"] = found.accuracy(ci)
    out["balanced accuracy"] = found.balanced_accuracy(ci=ci)
    return out


def _scores(
    tables: Tables, entries: dict[str, Entry], n_bins: int, debias: bool, ci: float
) -> dict[str, Entry]:
    """Metrics of scores; areas of single classes are added to `entries`."""
    if "binary" in tables.counts:
        hist = tables.binary()
        return {
            "roc auc": hist.roc_auc(ci=ci),
            "average precision": hist.average_precision(ci=ci),
            "log loss": hist.log_loss(ci=ci),
            "brier": hist.brier(ci=ci),
            "ece": hist.ece(n_bins, debias=debias, ci=ci),
        }
    found = tables.scores()
    areas = found.area("ovr", None, ci)
    for label, area in zip(tables.classes.tolist(), areas, strict=True):
        entries[str(label)]["roc auc"] = area  # type: ignore[index]
    for average in ("macro", "weighted"):
        entries[f"{average} avg"]["roc auc"] = found.area("ovr", average, ci)  # type: ignore[index]
    return {
        "roc auc": found.area("ovr", "macro", ci),
        "average precision": found.average_precision("macro", ci),
        "log loss": found.log_loss(ci),
        "brier": found.brier(ci),
        "ece": tables.top().ece(n_bins, debias=debias, ci=ci),
        "classwise ece": found.cwece(n_bins, debias, ci),
    }
