"""ScoreHistogram: the one statistic that answers everything about binary scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal.algorithms._class_scores import ClassScoreCounts
from skfedcal.evaluation import _persist
from skfedcal.evaluation._calibration_errors import CalibrationErrors
from skfedcal.evaluation._collect import Statistic
from skfedcal.evaluation._counting import collect_counts
from skfedcal.evaluation._grid import ScoreGrid
from skfedcal.evaluation._inputs import Clients, check_choices
from skfedcal.evaluation._levels import release_levels, split_levels
from skfedcal.evaluation._noise import NoiseModel
from skfedcal.evaluation._ranking import RankingAnswers
from skfedcal.evaluation._thresholds import ThresholdAnswers
from skfedcal.federation._history import RoundHistory

if TYPE_CHECKING:
    from skfedcal.data._dataset import FederatedDataset
    from skfedcal.federation._remote import RemoteDataset
    from skfedcal.federation._run import RoundRecord
    from skfedcal.federation._runner import FederatedRunner
    from skfedcal.privacy._ledger import PrivacyLedger
    from skfedcal.privacy._models import PrivacyModel
    from skfedcal.privacy._report import PrivacyReport

Array = NDArray[Any]


class ScoreHistogram(ThresholdAnswers, RankingAnswers, CalibrationErrors):
    """Joint counts of labels and score buckets over all clients.

    Made by `fit`, `merge` or `from_json`. Every answer is an `Estimate`: a float with
    a confidence interval and its parts.

    Parameters
    ----------
    totals : sequence of ndarray of shape (2, 2**bits)
        Released counts of each level, negatives first.
    noise : NoiseModel
        Law of the noise of each level.
    grid : ScoreGrid
        The buckets of the last level.
    kind : {'binary', 'top'}
        Score of the positive class, or of the top label against being right.
    classes : sequence of length 2
        Labels of the two rows of counts.
    weighting : {'example', 'client'}
        What counts 1.
    n_clients : int
        Clients that were asked.
    privacy : PrivacyReport
        What the release guarantees.
    history : sequence of RoundRecord, default=()
        Rounds of the run.

    Attributes
    ----------
    counts_ : ndarray of shape (2, n_buckets)
        Unbiased counts of negatives and positives; noise is not clipped away.
    n_examples_ : float
        Sum of the counts.
    n_clients_ : int
        Clients that were asked.
    noise_ : NoiseModel
        Law of the noise of each level.
    privacy_ : PrivacyReport
        What the release guarantees.
    history_ : list of RoundRecord
        Rounds of the run.

    Notes
    -----
    A row falls into one of ``2 * 2**height`` cells, so that a client with one row has
    an L1 norm of 1. Levels that were noised apart are made consistent by weighted
    least squares. The variance of an answer is that of its gradient in the counts:
    ``sum_c x_c (g_c - mean)^2`` for sampling, with unclipped counts, and the exact
    variance of the least squares fit for privacy; where clients randomise their own
    reports, a sandwich of both. Examples are taken to be independent; with
    ``weighting='client'`` the sampling error is an upper bound.

    References
    ----------
    Cormode and Markov, "Federated Calibration and Evaluation of Binary Classifiers",
    VLDB 2023, sections 3 and 4.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import ScoreHistogram
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(4000)
    >>> labels = (rng.random(4000) < scores).astype(int)
    >>> hist = ScoreHistogram.fit(scores, labels, client_ids=np.arange(4000) % 50,
    ...                           input_type="proba")
    >>> print(f"{hist.roc_auc():.3f}, {hist.accuracy(0.4):.3f}")
    0.827, 0.739
    >>> hist.roc_auc().se_privacy
    0.0
    """

    def __init__(
        self,
        totals: Sequence[Array],
        noise: NoiseModel,
        grid: ScoreGrid,
        *,
        kind: str,
        classes: Sequence[Any],
        weighting: str,
        n_clients: int,
        privacy: PrivacyReport,
        history: Sequence[RoundRecord] = (),
    ) -> None:
        self.totals = tuple(np.asarray(total, dtype=np.float64) for total in totals)
        self.grid = grid
        self.kind = kind
        self.classes = list(classes)
        self.weighting = weighting
        self.noise_ = noise
        self.counts_ = noise.estimate(self.totals)
        self.n_examples_ = float(self.counts_.sum())
        self.n_clients_ = n_clients
        self.privacy_ = privacy
        self.history_ = RoundHistory(history)

    @classmethod
    def fit(
        cls,
        clients: Any,
        y: Any = None,
        *,
        client_ids: Any = None,
        privacy: PrivacyModel | None = None,
        height: int | Literal["auto"] = "auto",
        levels: Sequence[int] | Literal["auto"] = "auto",
        space: Literal["both", "prob", "logit"] = "both",
        kind: Literal["binary", "top"] = "binary",
        max_examples_per_client: int | None = None,
        weighting: Literal["example", "client"] = "example",
        classes: Any = None,
        pos_label: Any = None,
        input_type: str = "logits",
        ledger: PrivacyLedger | None = None,
        runner: FederatedRunner | None = None,
        random_state: Any = None,
    ) -> ScoreHistogram:
        """Collect the counts of all clients.

        Parameters
        ----------
        clients : list of (scores, labels) pairs, list of arrays, or array-like
            In the forms that ``fit`` of a calibrator takes. Scores have one column
            (of the positive class) or one per class.
        y : array-like of shape (n_samples,), or list of these, default=None
            Labels; omitted when `clients` is a list of pairs.
        client_ids : array-like of shape (n_samples,), default=None
            Client that owns each row; with a list of clients, one name per client.
        privacy : privacy model, default=None
            What the release shall guarantee; None is `SecureAggregation`: exact sums.
        height : int or 'auto', default='auto'
            There are ``2**height`` buckets. 'auto' is 10; under `LocalDP` 5 up to
            eps=2, else 6 (with ``space='prob'`` 4, then 5 below eps=4, then 6).
        levels : sequence of int or 'auto', default='auto'
            Depths that are released, the last one being `height`. 'auto' is every
            fourth, such as (2, 6, 10), under noise, and `height` alone without. Under
            `LocalDP` each depth, and every client reports on one of them, which is
            dealt to it at random.
        space : {'both', 'prob', 'logit'}, default='both'
            Scale on which buckets have equal width: probability; log-odds from -16 to
            16; or the mean of the two, which is fine enough both for scores near 0 or
            1 and for those between.
        kind : {'binary', 'top'}, default='binary'
            Scores of the positive of two classes; or the largest probability of any
            number of classes, where a row is positive if it is of that class.
        max_examples_per_client : int, default=None
            Rows of a client that count, chosen by a hash of their place at the
            client. None is all; under a guarantee for whole clients it is 1, as
            the noise grows with it.
        weighting : {'example', 'client'}, default='example'
            Every row counts 1, or the rows of a client add up to 1.
        classes : array-like of shape (2,), default=None
            Labels in the order of the columns; None takes them from `y`.
        pos_label : label, default=None
            Label of the positive class, which one column of scores is of; None is the
            second of the classes.
        input_type : {'logits', 'log_proba', 'proba'}, default='logits'
            What scores are; never guessed. One column of 'logits' holds log-odds.
        ledger : PrivacyLedger, default=None
            Account that pays before noise is drawn.
        runner : FederatedRunner, default=None
            Engine and cohorts.
        random_state : int, RandomState instance or None, default=None
            None takes noise from the operating system; a seed makes the result
            repeatable, and a simulation.

        Returns
        -------
        ScoreHistogram
        """
        statistic = Statistic(privacy, ledger, runner, random_state, cls.__name__)
        check_choices(space=space, kind=kind, weighting=weighting)
        depths = release_levels(statistic.model, height, levels, space)
        grid = ScoreGrid(depths[-1], space)
        given = Clients(
            clients, y, client_ids, classes, input_type, private=statistic.private
        )
        common: Any = {"space": space, "input_type": input_type}
        if kind == "top":
            if pos_label is not None:
                raise ValueError(
                    f"pos_label={pos_label!r}: with kind='top' a row is positive if "
                    "its most probable class is right. Leave pos_label out."
                )
            data, columns = given.several()
            labels: list[Any] = ["wrong", "right"]
            scores = ClassScoreCounts(
                depths, scores="top", n_classes=len(columns), **common
            )
        else:
            data, positive, labels = given.binary(pos_label)
            scores = ClassScoreCounts(depths, positive=positive, **common)
        statistic.assumptions = given.assumptions
        return cls._collected(
            statistic, data, labels, grid, scores, max_examples_per_client, weighting
        )

    @classmethod
    def _fit_at(
        cls,
        threshold: float,
        clients: Any,
        y: Any = None,
        *,
        client_ids: Any = None,
        privacy: PrivacyModel | None = None,
        max_examples_per_client: int | None = None,
        weighting: Literal["example", "client"] = "example",
        classes: Any = None,
        pos_label: Any = None,
        input_type: str = "logits",
        ledger: PrivacyLedger | None = None,
        runner: FederatedRunner | None = None,
        random_state: Any = None,
    ) -> ScoreHistogram:
        """Count the rows on either side of one threshold: exact, with least noise.

        The two buckets are [0, 1/2) and [1/2, 1]; scores from `threshold` on are in the
        second. Parameters are those of `fit`.
        """
        statistic = Statistic(privacy, ledger, runner, random_state, cls.__name__)
        check_choices(weighting=weighting)
        given = Clients(
            clients, y, client_ids, classes, input_type, private=statistic.private
        )
        data, positive, labels = given.binary(pos_label)
        scores = ClassScoreCounts(
            (1,),
            space="prob",
            input_type=input_type,  # type: ignore[arg-type]
            positive=positive,
            cut=float(threshold),
        )
        statistic.assumptions = given.assumptions
        return cls._collected(
            statistic, data, labels, ScoreGrid(1, "prob"), scores,
            max_examples_per_client, weighting,
        )  # fmt: skip

    @classmethod
    def _collected(
        cls,
        statistic: Statistic,
        data: FederatedDataset | RemoteDataset,
        labels: Sequence[Any],
        grid: ScoreGrid,
        scores: ClassScoreCounts,
        max_examples: int | None,
        weighting: str,
    ) -> ScoreHistogram:
        found = collect_counts(statistic, data, scores, max_examples, weighting)
        return cls(
            split_levels(found.state.totals, scores.levels, 2),
            NoiseModel.from_rows(scores.levels, found.state.laws),
            grid,
            kind=scores.scores,
            classes=labels,
            weighting=weighting,
            n_clients=found.n_clients,
            privacy=found.report,
            history=found.history,
        )

    def merge(self, other: ScoreHistogram) -> ScoreHistogram:
        """Histogram of the clients of both.

        Parameters
        ----------
        other : ScoreHistogram
            Of the same grid, classes and kind of noise. Its clients are others: one
            that is in both is counted twice and pays twice.

        Returns
        -------
        ScoreHistogram
        """
        return type(self)(**_persist.merged(self, other))

    def to_json(self) -> str:
        """Everything but the history as JSON, exact to the last bit.

        Returns
        -------
        str
        """
        return _persist.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> ScoreHistogram:
        """Restore a histogram from the text of `to_json`.

        Parameters
        ----------
        text : str
            JSON; nothing in it is executed.

        Returns
        -------
        ScoreHistogram
        """
        return cls(**_persist.from_json(text))

    def __repr__(self) -> str:
        noise = "exact" if self.noise_.exact else f"eps={self.privacy_.eps:g}"
        return (
            f"ScoreHistogram({self.n_examples_:.0f} {self.weighting}s of "
            f"{self.n_clients_} clients, {self.grid.n_buckets} buckets in "
            f"{self.grid.space}, {noise})"
        )
