"""What an item is (a table or figure of a paper), and how one is run.

Contract for a module ``paper_NNN.py``: it defines ``ITEMS``, a tuple of `PaperItem`.
It is imported by name, so that nothing else has to list it; heavy imports (numpy,
scikit-learn, torch) stand in its functions, so that ``--list`` is quick. The function
of an item takes a `Setting` and returns a `PaperResult`:

- `table` is a long `ResultTable`: one run per row and seed. Where a paper's method is
  compared with others, the key "kind" is one of `KINDS`; the numbers that the paper
  itself prints are rows of kind "paper" (with ``"seed": 0``), given only where the
  data set is the same.
- `columns` and `value` say which key becomes the columns of the printed table, and
  which measured value it shows: the paper's own layout. None prints `table` as it is.
- `panels` say what a figure draws, one `Panel` per part (a, b, c).
- `claims` are the orderings that the paper states, made by `below` and `best`. The
  line "ordering agrees: yes, because ... / no, because not ..." is made from them, with
  the numbers that were compared; of a reading it says how far the readings differ.
  `PaperItem.agrees` is what the guide says about this line; a test compares it with a
  quick run.

Whatever takes long goes through ``setting.cached(settings, work)`` (plain numbers in
lists and dicts), or through ``compare(..., store=setting.store)``: an interrupted run
continues. ``setting.pick(quick, usual, full)`` chooses sizes; a quick run takes less
than 60 s on two cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import Any, Literal, TypeVar

from skfedcal._files import as_path
from skfedcal.experiments.results import ResultTable

Value = TypeVar("Value")

# Modules of this package by the word of the command line (several: with blanks between
# them), and titles.
PAPERS = {
    "000": (
        "paper_000 calibration_figures calibration_readings",
        "Private Federated Multiclass Post-hoc Calibration",
    ),
    "001": ("paper_001", "Federated Calibration and Evaluation of Binary Classifiers"),
    "002": ("paper_002", "Privacy Preserving Recalibration under Domain Shift"),
    "003": (
        "paper_003",
        "Uncertainty Estimation and Calibration Measurement in Federated Learning for "
        "Image Classification",
    ),
    "004": (
        "paper_004",
        "Federated Learning with Feature Calibration and Client Re-sampling (FL-FCR)",
    ),
    "leaderboard": ("leaderboard", "Methods by budget, clients and classes"),
}

PRINTED, AMPLIFIED, OURS = "as printed", "amplified", "ours"
# The numbers of the paper itself; its method as printed; the same with the privacy
# that sampled cohorts add; the defaults of this library.
KINDS = ("paper", PRINTED, AMPLIFIED, OURS)

Size = Literal["quick", "usual", "full"]


@dataclass(frozen=True, slots=True)
class Setting:
    """How items are run.

    size: "quick" takes below a minute, "full" has the sizes of the paper.
    data: Folder with real data sets or files of logits; None is data that come with
        scikit-learn.
    store: Folder for finished parts; None stores nothing.
    n_jobs: Processes; "auto" is one per core, and one for few cells of a comparison.
    progress: Called with a line of text now and then.
    """

    size: Size = "usual"
    data: Path | None = None
    store: Path | None = None
    n_jobs: int | Literal["auto"] = 1
    progress: Callable[[str], object] = field(default=lambda _: None)

    def pick(self, quick: Value, usual: Value, full: Value) -> Value:
        """Value for the size of this run."""
        return {"quick": quick, "usual": usual, "full": full}[self.size]

    def cached(self, settings: Mapping[str, Any], work: Callable[[], Any]) -> Any:
        """Return what `work` gives, from the store if it was done before."""
        from skfedcal.experiments.store import CellStore

        return CellStore(self.store).cached(settings, work)


@dataclass(frozen=True, slots=True)
class Claim:
    """An ordering that a paper states, whether it holds here, and the numbers."""

    text: str
    holds: bool
    because: str


def below(
    text: str,
    first: tuple[str, float],
    second: tuple[str, float],
    *,
    slack: float = 0.0,
    form: str = ".4g",
) -> Claim:
    """Claim that the first of two named values is below the second (plus slack)."""
    (name, value), (other, limit) = first, second
    shown = f"{name} {value:{form}}, {other} {limit:{form}}"
    return Claim(text, value < limit + slack, shown)


def best(
    text: str,
    name: str,
    values: Mapping[str, float],
    *,
    slack: float = 0.0,
    form: str = ".4g",
    highest: bool = False,
) -> Claim:
    """Claim that `name` has the smallest of several values; nan is left out.

    highest: The largest one instead, as of accuracies.
    """
    sign = -1 if highest else 1
    others = {k: v for k, v in values.items() if k != name and not isnan(v)}
    other = min(others, key=lambda key: sign * others[key])
    shown = f"{name} {values[name]:{form}}, {other} {others[other]:{form}}"
    return Claim(text, sign * values[name] < sign * others[other] + slack, shown)


@dataclass(frozen=True, slots=True)
class Panel:
    """Part of a figure: lines of `y` over `x`, one for each entry of the key `line`.

    title: Text above, such as "(a) cwECE by rounds".
    x, y, line: Names of a key, a value and a key (or None: one line) of the table.
    where: Entries of other keys that rows must have.
    kind: "line", "bar" or "scatter" (then `x` is a value too).
    log: Whether x is on a log scale.
    """

    title: str
    x: str
    y: str
    line: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    kind: Literal["line", "bar", "scatter"] = "line"
    log: bool = False


@dataclass(frozen=True, slots=True)
class PaperResult:
    """What running an item gave.

    Parameters
    ----------
    table : ResultTable
        All that was measured, in long form.
    claims : sequence of Claim
        Orderings of the paper, and whether they hold here.
    columns, value : str, default=None
        Key whose entries become columns, and the value that is shown there: the layout
        of the paper. None shows `table` as it is.
    panels : sequence of Panel, default=()
        Parts of a figure.
    notes : sequence of str, default=()
        What a reader has to know: data, sizes, what differs from the paper.
    name : str, default=""
        Paper, kind and number; set by `reproduce`.

    Examples
    --------
    >>> from skfedcal.experiments import ResultTable
    >>> from skfedcal.papers import PaperResult
    >>> from skfedcal.papers.items import below
    >>> runs = [{"method": "a", "seed": 0, "error": 0.5}]
    >>> table = ResultTable("Errors", ["method"], {"error": ".2f"}, runs)
    >>> claim = below("a is below 1", ("a", 0.5), ("1", 1.0))
    >>> print(PaperResult(table, [claim]).to_text())
    Errors
    method  error
    ------  -----
    a        0.50
    ordering agrees: yes, because: a is below 1 (a 0.5, 1 1)
    """

    table: ResultTable
    claims: Sequence[Claim] = ()
    columns: str | None = None
    value: str | None = None
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = ()
    name: str = ""

    @property
    def layout(self) -> ResultTable:
        """The table in the layout of the paper."""
        if self.columns is None or self.value is None:
            return self.table
        wide = self.table.pivot(self.columns, self.value)
        mark = f"{self.columns}="
        runs = [{k.removeprefix(mark): v for k, v in run.items()} for run in wide.runs]
        values = {name.removeprefix(mark): form for name, form in wide.values.items()}
        return replace(wide, title=self.table.title, values=values, runs=runs)

    @property
    def agrees(self) -> bool:
        """Whether all orderings of the paper hold here."""
        return all(claim.holds for claim in self.claims)

    @property
    def verdict(self) -> str:
        """Line about the orderings, with numbers; empty if the paper states none."""
        if not self.claims:
            return ""
        what = "readings differ" if " reading " in self.name else "ordering agrees"
        failed = [claim for claim in self.claims if not claim.holds]
        answer = "no, because not" if failed else "yes, because"
        shown = [f"{claim.text} ({claim.because})" for claim in failed or self.claims]
        return f"{what}: {answer}: {'; '.join(shown)}"

    def to_text(self, width: int | None = None) -> str:
        """Return table, notes and verdict as text."""
        return "\n".join([self.layout.to_text(width), *self._words()])

    def to_markdown(self) -> str:
        """Return title, table, notes and verdict in Markdown."""
        parts = [f"### {self.layout.title}", self.layout.to_markdown(), *self._words()]
        return "\n\n".join(parts)

    def to_latex(self) -> str:
        """Return the ``tabular``, with title, notes and verdict as comments."""
        words = [f"% {text}" for text in (self.layout.title, *self._words())]
        return "\n".join([*words, self.layout.to_latex()])

    def to_csv(self) -> str:
        """Return the long table: keys, means and deviations."""
        return self.table.to_csv()

    def to_json(self) -> str:
        """Return all runs; claims and notes are among the settings."""
        claims = [[c.text, c.holds, c.because] for c in self.claims]
        extra = {"name": self.name, "claims": claims, "notes": list(self.notes)}
        settings = {**self.table.settings, **extra}
        return replace(self.table, settings=settings).to_json()

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write the figure; the name ends in .png, .svg or .pdf. Needs matplotlib.

        Parameters
        ----------
        path : str or path-like
            File to write.
        """
        from skfedcal.papers.drawing import draw

        draw(self, path)

    def _words(self) -> list[str]:
        notes = [f"note: {text}" for text in self.notes]
        return [*notes, self.verdict] if self.claims else notes


@dataclass(frozen=True, slots=True)
class PaperItem:
    """A table or figure of a paper, and the function that makes it.

    Parameters
    ----------
    paper : str
        Word of the paper, such as "000".
    kind : {"table", "figure", "reading"}
        A reading is a place that can be read in two ways, with the measured effect.
    number : str
        Number in the paper, such as "3"; of a reading its section, such as "B.7".
    title : str
        What it is, in a few words.
    shows : str
        What the paper says that it shows, in one sentence.
    run : callable
        Takes a `Setting` and returns a `PaperResult`.
    agrees : bool or None, default=True
        Whether a quick run on the data of scikit-learn shows the paper's orderings;
        None where the paper states none.
    because : str, default=""
        Why it does not.
    parts : str, default=""
        Letters of its parts in the paper.

    Examples
    --------
    >>> from skfedcal.papers import find_items
    >>> item, = find_items("000", tables=["8"])
    >>> item.name, item.title
    ('000 table 8', 'classes of a client by label skew')
    """

    paper: str
    kind: Literal["table", "figure", "reading"]
    number: str
    title: str
    shows: str
    run: Callable[[Setting], PaperResult]
    agrees: bool | None = True
    because: str = ""
    parts: str = ""

    @property
    def name(self) -> str:
        """Paper, kind and number."""
        return f"{self.paper} {self.kind} {self.number}"

    @property
    def command(self) -> str:
        """Command that makes it."""
        return f"skfedcal reproduce {self.paper} --{self.kind} {self.number}"


def make_items(paper: str, entries: Iterable[tuple[Any, ...]]) -> tuple[PaperItem, ...]:
    """Items of a paper, from kind, number, title, claim, function and `because`.

    The last is None where the paper states no ordering, and empty where a quick run
    shows it. Letters of parts may follow.
    """
    found = []
    for kind, number, title, shows, run, because, *parts in entries:
        agrees = None if because is None else not because
        words = because or "", *parts
        found.append(PaperItem(paper, kind, number, title, shows, run, agrees, *words))
    return tuple(found)


def find_items(
    paper: str | None = None,
    *,
    tables: Sequence[str] = (),
    figures: Sequence[str] = (),
    readings: Sequence[str] = (),
) -> list[PaperItem]:
    """Return items of the papers; without numbers, all of a paper, or of all.

    Parameters
    ----------
    paper : str, default=None
        Word of a paper, such as "000"; None is all.
    tables, figures, readings : sequence of str, default=()
        Numbers of these; "2a" is the figure that has this part.

    Returns
    -------
    list of PaperItem

    Examples
    --------
    >>> from skfedcal.papers import find_items
    >>> [item.name for item in find_items("000", figures=["2a"])]
    ['000 figure 2']
    """
    if paper is not None and not (isinstance(paper, str) and paper in PAPERS):
        raise ValueError(f"paper={paper!r} is not known; pass one of {list(PAPERS)}.")
    given = {"tables": tables, "figures": figures, "readings": readings}
    for name, numbers in given.items():
        if not isinstance(numbers, list | tuple):
            raise TypeError(f"{name}={numbers!r}: pass a list of numbers.")
    words = list(PAPERS) if paper is None else [paper]
    known = [item for word in words for item in _items_of(word)]
    wanted = [
        *(("table", number) for number in tables),
        *(("figure", number) for number in figures),
        *(("reading", number) for number in readings),
    ]
    if not wanted:
        return known
    found = []
    for kind, number in wanted:
        chosen = [item for item in known if _is_wanted(item, kind, number)]
        if not chosen:
            own = [item for item in known if item.kind == kind]
            names = [
                f"{'' if paper else f'{i.paper} '}{i.number}"
                f"{f' (a to {i.parts[-1]})' if i.parts else ''}"
                for i in own
            ]
            raise ValueError(
                f"{kind} {number!r} is not known. The {kind}s of "
                f"{paper or 'all papers'} are: {', '.join(names) or 'none'}."
            )
        found += [item for item in chosen if item not in found]
    return found


def _items_of(word: str) -> tuple[PaperItem, ...]:
    found: tuple[PaperItem, ...] = ()
    for name in PAPERS[word][0].split():
        found += import_module(f"skfedcal.papers.{name}").ITEMS
    return found


def _is_wanted(item: PaperItem, kind: str, number: str) -> bool:
    names = [item.number, *(f"{item.number}{part}" for part in item.parts)]
    return item.kind == kind and str(number) in names


def reproduce(
    paper: str,
    *,
    table: str | None = None,
    figure: str | None = None,
    size: Size = "usual",
    data: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    n_jobs: int = 1,
    progress: Callable[[str], object] | None = None,
) -> PaperResult:
    """Run one table or figure of a paper, as ``skfedcal reproduce`` does.

    Parameters
    ----------
    paper : str
        Word of the paper, such as "000".
    table, figure : str, default=None
        Number of one of these.
    size : {"quick", "usual", "full"}, default="usual"
        Quick takes below a minute; full has the sizes of the paper.
    data : str or path-like, default=None
        Folder with real data sets in their usual layouts, or with files of logits.
        None is data that come with scikit-learn.
    store : str or path-like, default=None
        Folder for finished parts; an interrupted run continues from them.
    n_jobs : int, default=1
        Processes.
    progress : callable, default=None
        Called with a line of text now and then.

    Returns
    -------
    PaperResult

    Examples
    --------
    >>> from skfedcal.papers import reproduce
    >>> result = reproduce("000", table="8", size="quick")
    >>> result.verdict
    'ordering agrees: yes, because: less skew, more classes of a client (3.6 at beta =
    0.1 to 10 of IID rows)'
    """
    if (table is None) == (figure is None):
        raise ValueError("Pass the number of one table or of one figure.")
    if not isinstance(size, str) or size not in ("quick", "usual", "full"):
        raise ValueError(f"size must be 'quick', 'usual' or 'full', got {size!r}.")
    numbers = {"tables": [table]} if table is not None else {"figures": [figure]}
    items = find_items(paper, **{k: [str(n) for n in v] for k, v in numbers.items()})
    return run_item(
        items[0],
        Setting(
            size,
            None if data is None else check_folder(data),
            None if store is None else as_path(store, "store"),
            n_jobs,
            progress or (lambda _: None),
        ),
    )


def run_item(item: PaperItem, setting: Setting) -> PaperResult:
    """Run an item; its result has the item's name."""
    return replace(item.run(setting), name=item.name)


def check_folder(path: str | os.PathLike[str]) -> Path:
    """Return a folder that exists."""
    folder = as_path(path, "data")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder. Pass one that holds data.")
    return folder
