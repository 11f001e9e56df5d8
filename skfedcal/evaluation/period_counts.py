"""Counts of many periods: what a monitor holds, and the file that it is kept in.

- Settings that all periods have in common.
- Histogram of one period, or of several together.
- The file: written before a result is shown, read again after a crash.
"""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from skfedcal._files import as_path, file_lock
from skfedcal._json import check_format, member, read_file, write_file
from skfedcal._params import check_choice, check_integer
from skfedcal._version import __version__
from skfedcal.evaluation.collect import Statistic
from skfedcal.evaluation.grid import ScoreGrid
from skfedcal.evaluation.histogram import ScoreHistogram, read_report, write_report
from skfedcal.evaluation.noise import NoiseModel, is_depth, split_levels
from skfedcal.exceptions import CheckpointError, PrivacyWarning, SimulatedPrivacyWarning
from skfedcal.federation.checkpoint import fingerprint
from skfedcal.methods.score_curves.rounds import LAW_FIELDS, LAW_KINDS, added_laws
from skfedcal.privacy.events import PrivacyReport
from skfedcal.privacy.models import (
    CentralDP,
    DistributedDP,
    SecureAggregation,
    check_model,
)

if TYPE_CHECKING:
    from skfedcal._typing import InputType, PathLike
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel

Array = NDArray[Any]

_FORMAT, _VERSION = "skfedcal-monitor", 1
_MODELS = {cls.__name__: cls for cls in (SecureAggregation, CentralDP, DistributedDP)}


@dataclass(frozen=True, slots=True)
class Period:
    """What one period released; without totals if it was interrupted."""

    name: str
    n_clients: int = 0
    restart: bool = False
    totals: Array | None = None
    laws: Array | None = None


class PeriodCounts:
    """Released counts of the periods of one run; base of `CalibrationMonitor`.

    A copy is the object itself: two of them could release one period twice.
    """

    periods: int
    kind: Literal["top", "binary"]
    levels: tuple[int, ...]
    space: Literal["both", "prob", "logit"]
    max_examples_per_client: int | None
    watch: tuple[str, ...]
    false_alarm_rate: float
    ci: float
    classes: Any
    pos_label: Hashable | None
    input_type: InputType
    ledger: PrivacyLedger
    runner: FederatedRunner | None
    random_state: int | None
    privacy: SecureAggregation | CentralDP | DistributedDP
    privacy_: PrivacyReport | None
    # Labels of the columns, once the first period has fixed them.
    _labels: list[Hashable]
    # Most rows of a client in a period.
    _limit: int | None
    _periods: list[Period]
    # Name of the run in the ledger, salt of the choice of rows, and whether clients are
    # being asked.
    _run_id: str
    _salt: int
    _asking: bool
    _path: Path | None
    _written: str
    _busy: threading.Lock

    def __init__(self, **settings: object) -> None:
        raise NotImplementedError

    @property
    def n_periods_(self) -> int:
        """Periods that are over."""
        return len(self._periods)

    @property
    def names_(self) -> list[str]:
        """Names of the periods that are over."""
        return [one.name for one in self._periods]

    def histogram(self, periods: int | slice | None = None) -> ScoreHistogram:
        """Counts of one period, or of several together.

        Parameters
        ----------
        periods : int, slice or None, default=None
            Number of the period from 0 (-1 is the last); a slice; None is all of them.

        Returns
        -------
        ScoreHistogram
            With every metric; further answers cost nothing.
        """
        chosen = [self._periods[i] for i in self._chosen(periods)]
        totals = np.sum([np.asarray(one.totals) for one in chosen], axis=0)
        laws = reduce(
            lambda first, second: np.stack(list(map(added_laws, first, second))),
            [np.asarray(one.laws) for one in chosen],
        )
        n_clients = max(one.n_clients for one in chosen)
        by_client = self.privacy.private and self.privacy.unit == "client"
        assert self.privacy_ is not None
        return ScoreHistogram(
            split_levels(totals, self.levels, 2),
            NoiseModel.from_rows(self.levels, laws),
            ScoreGrid(self.levels[-1], self.space),
            kind=self.kind,
            classes=["wrong", "right"] if self.kind == "top" else self._ordered(),
            weighting="example",
            n_clients=n_clients,
            privacy=self.privacy_,
            population="clients" if by_client and n_clients > 1 else "rows",
            max_examples=self._limit and self._limit * len(chosen),
        )

    def save(self, path: PathLike) -> None:
        """Keep the monitor in a file from now on; every update writes it.

        Parameters
        ----------
        path : str or path-like
            A new file. It holds released counts and public settings, and no secret:
            noise is not stored.
        """
        path = as_path(path)
        if self._path is not None:
            raise ValueError(
                f"This monitor is kept in {self._path}. A second file would allow two "
                "releases of one period for one payment."
            )
        if path.exists():
            raise FileExistsError(
                f"{path} exists. Continue it by CalibrationMonitor.load({str(path)!r})."
            )
        self._path = path
        self._write()

    @classmethod
    def load(
        cls,
        path: PathLike,
        *,
        ledger: PrivacyLedger | None = None,
        runner: FederatedRunner | None = None,
    ) -> Self:
        """Continue a monitor from its file.

        A period in which the last process was killed is over, without a result: its
        noise may have been drawn, and is not drawn again. Never continue an old copy of
        the file: periods would be released twice for one payment.

        Parameters
        ----------
        path : str or path-like
            File of `save`, or of the parameter `path`.
        ledger : PrivacyLedger, default=None
            The ledger that was debited; the debit is not repeated. None: all periods
            have been paid already.
        runner : FederatedRunner, default=None
            Engine.

        Returns
        -------
        CalibrationMonitor
        """
        path = as_path(path)
        content = check_format(
            read_file(path), str(path), "a monitor of skfedcal", _FORMAT, _VERSION
        )
        try:
            out = cls._restored(content, ledger, runner)
        except (
            KeyError, TypeError, ValueError, AttributeError, ArithmeticError,
        ) as error:  # fmt: skip
            raise ValueError(f"{path} is not a monitor of skfedcal: {error}") from error
        out._path, out._written = path, content["content"]
        with out._held():
            out._end_interrupted()
        return out

    def _statistic(self) -> Statistic:
        with quiet_periods(bool(getattr(self, "_periods", ()))):
            statistic = Statistic(
                self.privacy,
                self.ledger,
                self.runner,
                self.random_state,
                type(self).__name__,
            )
        runner = statistic.runner
        if runner.checkpoint is not None or runner.cohort != "full":
            raise ValueError(
                f"runner={runner!r}: all clients take part in every period of a "
                "monitor, and it has a file of its own. Leave cohort and checkpoint "
                "out."
            )
        return statistic

    def _ordered(self) -> list[Hashable]:
        """Labels of a binary monitor, the negative one first."""
        first, second = self._labels
        turned = self.pos_label is not None and self.pos_label == first
        return [second, first] if turned else [first, second]

    def _released(self) -> bool:
        return any(one.totals is not None for one in self._periods)

    def _chosen(self, periods: int | slice | None) -> list[int]:
        """Numbers of the periods that have a result."""
        everyone = range(len(self._periods))
        if periods is None:
            periods = slice(None)
        if isinstance(periods, slice):
            numbers = list(everyone[periods])
        else:
            number = check_integer(
                "periods", periods, -len(everyone), len(everyone) - 1
            )
            numbers = [everyone[number]]
        numbers = [i for i in numbers if self._periods[i].totals is not None]
        if not numbers:
            raise ValueError(
                f"periods={periods!r}: none of these has a result; "
                f"{len(everyone)} of {self.periods} periods are over."
            )
        return numbers

    def _end_interrupted(self) -> None:
        """Leave a period behind in which clients were asked and nothing was stored.

        Its noise may have been drawn, and is never drawn a second time.
        """
        if not self._asking:
            return
        name = f"period {len(self._periods) + 1}"
        warnings.warn(
            f"{name} was interrupted. It is paid for and has no result; the next "
            "update is the period after it.",
            PrivacyWarning,
            stacklevel=4,
        )
        self._periods.append(Period(name))
        self._asking = False
        self._write()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the file of the monitor, which must be as this object wrote it."""
        if not self._busy.acquire(blocking=False):
            raise CheckpointError("This monitor is being updated by another thread.")
        try:
            if self._path is None:
                yield
                return
            with file_lock(self._path):
                found = read_file(self._path) if self._path.exists() else {}
                if found.get("content") != self._written:
                    raise CheckpointError(
                        f"{self._path} was changed by another process or removed. "
                        "Continue by CalibrationMonitor.load."
                    )
                yield
        except BlockingIOError as error:
            raise CheckpointError(
                f"{self._path} is in use by another process."
            ) from error
        finally:
            self._busy.release()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise pickle.PicklingError(
            "A CalibrationMonitor cannot be pickled: a copy could release a period a "
            "second time for one payment. Use save and load."
        )

    def _write(self) -> None:
        if self._path is None:
            return
        content = self._content()
        self._written = content["content"] = _digest(content)
        write_file(self._path, content, indent=None)

    def _content(self) -> dict[str, Any]:
        classes = self._labels
        if not classes and self.classes is not None:
            classes = np.asarray(self.classes).tolist()
        model = {"model": type(self.privacy).__name__}
        return {
            "format": _FORMAT,
            "format_version": _VERSION,
            "skfedcal": __version__,
            "settings": {
                "privacy": model | self.privacy.get_params(),
                "periods": self.periods,
                "kind": self.kind,
                "levels": list(self.levels),
                "space": self.space,
                "max_examples_per_client": self.max_examples_per_client,
                "watch": list(self.watch),
                "false_alarm_rate": self.false_alarm_rate,
                "ci": self.ci,
                "classes": classes or None,
                "pos_label": self.pos_label,
                "input_type": self.input_type,
                "random_state": self.random_state,
            },
            "run_id": self._run_id,
            "salt": str(self._salt),
            "started": bool(self._labels),
            "asking": self._asking,
            "privacy": None if self.privacy_ is None else write_report(self.privacy_),
            "periods": [
                {
                    "name": one.name,
                    "n_clients": one.n_clients,
                    "restart": one.restart,
                    "totals": None if one.totals is None else one.totals.tolist(),
                    "laws": None if one.laws is None else one.laws.tolist(),
                }
                for one in self._periods
            ],
        }

    @classmethod
    def _restored(cls, content: dict[str, Any], ledger: Any, runner: Any) -> Self:
        if content.get("content") != _digest(content):
            raise ValueError("it was edited or damaged, its hash does not match")
        settings = dict(member(content, "settings", dict, "the file"))
        model = dict(member(settings, "privacy", dict, "settings"))
        kind = check_choice("model", model.pop("model", None), tuple(_MODELS))
        settings["privacy"] = _MODELS[kind](**model)
        with quiet_periods(True):
            out = cls(**settings, ledger=ledger, runner=runner)
        out._run_id = member(content, "run_id", str, "the file")
        out._salt = int(member(content, "salt", str, "the file"))
        out._asking = member(content, "asking", bool, "the file")
        if member(content, "started", bool, "the file"):
            out._labels = list(settings["classes"])
        if content["privacy"] is not None:
            out.privacy_ = read_report(content["privacy"])
        listed = member(content, "periods", list, "the file")
        out._periods = [_read_period(one, out.levels) for one in listed]
        if len(listed) > out.periods or (out._released() and out.privacy_ is None):
            raise ValueError("its periods do not match its settings")
        return out


def read_model(
    eps: float | None, delta: float | None, privacy: PrivacyModel | None
) -> SecureAggregation | CentralDP | DistributedDP:
    """Privacy model of all periods together."""
    check_model(privacy)
    if privacy is not None and (eps is not None or delta is not None):
        raise ValueError(
            f"Both eps={eps!r}, delta={delta!r} and privacy={privacy!r} are given; put "
            "the budget into the privacy object."
        )
    if privacy is None and eps is None and delta is not None:
        raise ValueError(f"delta={delta!r} is given without eps; set eps.")
    if privacy is None:
        privacy = SecureAggregation() if eps is None else CentralDP(eps, delta)
    if not isinstance(privacy, SecureAggregation | CentralDP | DistributedDP):
        raise ValueError(
            f"privacy={privacy!r}: a monitor adds Gaussian noise to sums. Pass "
            "CentralDP, DistributedDP or None."
        )
    privacy.validate()
    return privacy


def check_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """Give increasing depths of buckets, or raise ValueError."""
    try:
        found = tuple(levels)
        good = (
            found and all(map(is_depth, found)) and found == tuple(sorted(set(found)))
        )
    except TypeError:
        good = False
    if not good:
        raise ValueError(f"levels={levels!r}: pass increasing depths, such as (2, 6).")
    return tuple(map(int, found))


def _read_period(values: dict[str, Any], levels: tuple[int, ...]) -> Period:
    name = member(values, "name", str, "a period")
    n_clients = member(values, "n_clients", int, name)
    restart = member(values, "restart", bool, name)
    if values["totals"] is None:
        return Period(name, n_clients, restart)
    totals = np.array(values["totals"], dtype=np.float64)
    laws = np.array(values["laws"], dtype=np.float64)
    n_cells = 2 * sum(2**bits for bits in levels)
    if totals.shape != (n_cells,) or laws.shape != (len(levels), len(LAW_FIELDS)):
        raise ValueError(f"{name} does not have the counts of its levels")
    if not (np.abs(totals) < 1e100).all() or not all(map(isfinite, laws.flat)):
        raise ValueError(f"{name} has counts that are not finite")
    if not np.isin(laws[:, 0], (0, LAW_KINDS.index("additive"))).all():
        raise ValueError(f"{name} has an unknown kind of noise")
    if (laws < 0).any() or (laws > 1e100).any():
        raise ValueError(f"{name} has noise of a negative variance")
    return Period(name, n_clients, restart, totals, laws)


def _digest(content: dict[str, Any]) -> str:
    body = {name: value for name, value in content.items() if name != "content"}
    return fingerprint(content=body)


@contextmanager
def quiet_periods(quiet: bool) -> Iterator[None]:
    """Do not repeat in every period what the first one has said."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", PrivacyWarning)
            warnings.simplefilter("ignore", SimulatedPrivacyWarning)
        yield
