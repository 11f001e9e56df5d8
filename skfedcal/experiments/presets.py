"""Configurations of "Private Federated Multiclass Post-hoc Calibration", as printed.

A preset fixes what the paper fixes: solver, local training, clips, weighting, division
of the noise, accountant, rounds, cohort, and that every result is used. `compare`, the
command line, ``skfedcal reproduce`` and tests take the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from skfedcal.federation import FederatedRunner
    from skfedcal.methods.base import BaseCalibrator

# Rounds and clients of a round in Tables 2 and 3.
ROUNDS, COHORT, DELTA = 12, 10, 1e-5


@dataclass(frozen=True, slots=True)
class Preset:
    """A method with all that a paper prints about it.

    Parameters
    ----------
    name : str
        Name in tables of the paper.
    estimator : str
        Name of the class.
    params : dict
        Its parameters.
    private_params : dict, default={}
        Parameters under `eps` only, such as clips.
    amplified : bool, default=False
        Whether cohorts are Poisson samples whose randomness is credited to privacy, as
        the last sentence of Appendix B.1 allows, instead of cohorts of a fixed size
        without credit.
    n_rounds, cohort_size : int
        Rounds, and clients of a round.

    Examples
    --------
    >>> from skfedcal.experiments import printed
    >>> preset = printed()["FedTemp"]
    >>> preset.build(eps=1.0).privacy
    CentralDP(eps=1.0, delta=1e-05, accountant='zcdp')
    >>> preset.runner()
    FederatedRunner(n_rounds=12, cohort='independent', cohort_size=10)
    """

    name: str
    estimator: str
    params: Mapping[str, Any]
    private_params: Mapping[str, Any] = field(default_factory=dict)
    amplified: bool = False
    n_rounds: int = ROUNDS
    cohort_size: int = COHORT

    @property
    def label(self) -> str:
        """Name of the row in a table."""
        return f"{self.name}, {'amplified' if self.amplified else 'as printed'}"

    def runner(
        self, n_rounds: int | None = None, cohort_size: int | None = None
    ) -> FederatedRunner:
        """Return the schedule, or one with other numbers.

        Parameters
        ----------
        n_rounds, cohort_size : int, default=None
            Rounds, and clients of a round; None takes those of the paper.
        """
        from skfedcal.federation import FederatedRunner

        return FederatedRunner(
            self.n_rounds if n_rounds is None else n_rounds,
            "poisson" if self.amplified else "independent",
            self.cohort_size if cohort_size is None else cohort_size,
        )

    def build(
        self, eps: float | None = None, delta: float | None = None, **params: Any
    ) -> BaseCalibrator:
        """Return the calibrator.

        Parameters
        ----------
        eps, delta : float, default=None
            Budget; a `delta` of None is 1e-5.
        **params : dict
            Other parameters, such as `classes` and `random_state`.
        """
        import skfedcal
        from skfedcal.privacy import CentralDP
        from skfedcal.privacy.accounting import require_pld

        given: dict[str, Any] = {"runner": self.runner(), **self.params}
        if eps is not None:
            if self.amplified:  # else the noise would be that of all clients
                require_pld(f"The preset {self.label!r}")
            given["privacy"] = CentralDP(
                eps,
                delta=DELTA if delta is None else delta,
                accountant="auto" if self.amplified else "zcdp",
            )
            given |= self.private_params
        made: BaseCalibrator = getattr(skfedcal, self.estimator)(**{**given, **params})
        return made

    def get_params(self) -> dict[str, Any]:
        """Return the parameters of the calibrator."""
        return self.build().get_params(deep=False)

    def with_params(self, **params: Any) -> Self:
        """Return a preset with other parameters of the calibrator.

        Parameters
        ----------
        **params : dict
            Such as ``clip=(10, 50)``; used with and without `eps`.
        """
        return replace(
            self,
            params={**self.params, **params},
            private_params={**self.private_params, **params},
        )


# Every result is used: the paper has no rule that refuses one.
_ALWAYS = {"if_improves": False}
# Appendix A.6: a client solves its problem by at most 50 steps.
_LOCAL = {**_ALWAYS, "solver": "average", "local_iter": 50}
# Section 4: 2^7 bins of equal width, plain frequencies.
_BINS = {**_ALWAYS, "bins": "frequency", "space": "prob"}
# Section 5, RQ3: C = 0.5, and C = [10, 50]; Lemma B.7 for each histogram.
_CLIP = {"clip": 0.5}
_CLIPS = {"clip": (10, 50), "clip_per_class": True, "noise": "each"}

_PRINTED = (
    Preset("FedTemp", "FedTempCalibrator", {**_ALWAYS, "solver": "average"}, _CLIP),
    # Converged L-BFGS steps of clients with one class end at infinity.
    Preset(
        "FedOPVector", "FedOPVectorCalibrator", {**_LOCAL, "local_solver": "gd"}, _CLIP
    ),
    Preset("FedCal", "FedMLPCalibrator", _ALWAYS, _CLIP),
    Preset("FedBBQ", "FedBBQCalibrator", _BINS, _CLIPS),
    Preset("FedBBQ-all", "FedBBQCalibrator", {**_BINS, "weighting": "all"}, _CLIPS),
    Preset(
        "FedBBQ-changed",
        "FedBBQCalibrator",
        {**_BINS, "weighting": "changed"},
        _CLIPS,
    ),
    Preset("FedBin", "FedBinCalibrator", {**_ALWAYS, "prior_weight": 1e-9}, _CLIPS),
    Preset("FedVector", "FedVectorCalibrator", _LOCAL, _CLIP),
    Preset("FedMatrix", "FedMatrixCalibrator", _LOCAL, _CLIP),
)


def printed(*, amplified: bool = False) -> dict[str, Preset]:
    """Return the methods of the paper as it prints them, by name.

    Parameters
    ----------
    amplified : bool, default=False
        Take Poisson cohorts and the tight accountant, which lowers the noise at
        ``eps=1`` from 14.0 to 1.8 times the bound (12 rounds of 10 of 100 clients).

    Returns
    -------
    dict of str to Preset

    References
    ----------
    .. [1] "Private Federated Multiclass Post-hoc Calibration", Section 5 and Appendices
       A.3 and B.

    Examples
    --------
    >>> from skfedcal import compare, make_federation
    >>> from skfedcal.experiments import printed
    >>> fed = make_federation(n_clients=50, n_samples=3000, n_test=2000, random_state=0)
    >>> methods = printed(amplified=True)
    >>> result = compare(
    ...     fed.clients, (fed.test_logits, fed.test_labels),
    ...     methods=[methods["FedTemp"], methods["FedBBQ"]], eps=[3], seeds=1,
    ...     progress=False,
    ... )
    >>> [row["method"] for row in result.rows]
    ['base', 'central', 'FedTemp, amplified', 'FedBBQ, amplified']
    """
    return {p.name: replace(p, amplified=bool(amplified)) for p in _PRINTED}
