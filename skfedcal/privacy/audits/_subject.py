"""What is audited: anything that is fitted on clients through the door."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from skfedcal.data._arrays import read_array
from skfedcal.privacy._entropy import SeededEntropy
from skfedcal.privacy._ledger import PrivacyLedger
from skfedcal.privacy._models import PrivacyModel, check_model
from skfedcal.privacy._report import PrivacyReport
from skfedcal.privacy.audits._canaries import Pair, ordinary
from skfedcal.privacy.audits._tap import Neighbour, Tape, tapped


@dataclass
class Subject:
    """An estimator or a function, its clients, and where the canary is.

    Attributes
    ----------
    fit_once : callable
        ``fit_once(clients, privacy=..., random_state=...)`` returns what was fitted.
    model : privacy model
        The claim.
    others : list of (logits, labels)
        Clients among which the canary hides.
    n_classes : int
        Columns of their logits.
    seed : int or None
        Of all fits.
    """

    fit_once: Callable[..., Any]
    model: PrivacyModel
    others: list[Pair]
    n_classes: int
    seed: int | None

    @classmethod
    def of(
        cls,
        subject: Any,
        clients: Sequence[Pair] | None,
        privacy: PrivacyModel | None,
        seed: int | None,
    ) -> Self:
        """Read what a user wants to have audited."""
        estimator = hasattr(subject, "get_params")
        if estimator and privacy is not None:
            raise ValueError(
                f"{type(subject).__name__} has a privacy of its own; pass `privacy` "
                "with a function only."
            )
        if estimator and not hasattr(subject, "_privacy_model"):
            raise TypeError(
                f"{type(subject).__name__} has no privacy to audit. Pass a calibrator "
                "of this library, of a meta-estimator the one inside it."
            )
        if not estimator and not callable(subject):
            raise TypeError(
                f"{subject!r} is neither an estimator nor a function of clients."
            )
        check_model(privacy)
        model = subject._privacy_model() if estimator else privacy
        if model is None or not model.private:
            raise ValueError(
                "There is no claim to audit. Pass an estimator with eps=... or "
                "privacy=CentralDP(...), or a function and `privacy`."
            )
        model.validate()
        if clients is None:
            classes = getattr(subject, "classes", None)
            clients = ordinary(4 if classes is None else len(classes))
        others = _read_clients(clients)
        n_classes = others[0][0].shape[1]
        fit_once = _refitted(subject, n_classes) if estimator else subject
        return cls(fit_once, model, others, n_classes, seed)

    def fit(
        self,
        pairs: list[Pair],
        key: tuple[int, ...],
        *,
        neighbour: Neighbour = "none",
        assumed: Neighbour = "zero",
        blind: bool = False,
        secret: bool = False,
        ledger: PrivacyLedger | None = None,
    ) -> tuple[Any, Tape]:
        """Whole fit, listened to at the door; the canary is the last unit.

        `key` names the seed of this fit; `secret` takes noise from the operating
        system whatever the seed is.
        """
        n_units = len(pairs)
        if self.model.unit == "example":
            n_units = sum(len(labels) for _, labels in pairs)
        tape = Tape(n_units - 1, neighbour, assumed, blind)
        if ledger is not None:
            tape.ledger = ledger
        state = None
        # Two blind fits are compared: weights to start from must not differ.
        if blind or (self.seed is not None and not secret):
            words = SeededEntropy(self.seed or 0, *key).uint64(1)
            state = int(words[0] >> np.uint64(33))
        fitted = self.fit_once(
            pairs, privacy=tapped(self.model, tape), random_state=state
        )
        if not tape.rounds:
            raise ValueError(
                f"{self.fit_once!r} released nothing through the `privacy` it was "
                "given; an audit cannot hear it."
            )
        return fitted, tape


def _read_clients(clients: Any) -> list[Pair]:
    """Pairs of arrays; the fits check their values."""
    pairs = list(clients) if isinstance(clients, list | tuple) else []
    if len(pairs) < 2 or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
    ):
        raise ValueError(
            "An audit needs two clients at least; pass a list of (logits, labels)."
        )
    others = []
    for i, (rows, labels) in enumerate(pairs):
        logits = read_array(rows, f"The logits of client {i}", np.float64)
        codes = read_array(labels, f"The labels of client {i}")
        if logits.ndim != 2 or codes.shape != logits.shape[:1]:
            raise ValueError(
                f"Client {i} has logits of shape {logits.shape} and labels of shape "
                f"{codes.shape}; pass a matrix, and one label for each row."
            )
        columns = np.arange(logits.shape[1])
        if codes.dtype.kind not in "iuf" or not np.isin(codes, columns).all():
            raise ValueError(f"The labels of client {i} are no column numbers.")
        others.append((logits, codes.astype(np.int64)))
    if len({rows.shape[1] for rows, _ in others}) > 1:
        raise ValueError("The logits of the clients differ in their columns.")
    return others


def report_of(fitted: Any) -> PrivacyReport:
    """What a fit says that it guarantees."""
    if isinstance(fitted, list | tuple) and fitted:  # such as one number per class
        fitted = fitted[0]
    report = getattr(fitted, "privacy_", getattr(fitted, "privacy", None))
    if not isinstance(report, PrivacyReport):
        raise TypeError(
            f"{type(fitted).__name__} has no PrivacyReport as `privacy_` or `privacy`."
        )
    return report


def state_of(fitted: Any) -> Any:
    """All that a fit leaves behind."""
    if isinstance(fitted, list | tuple):
        return [state_of(part) for part in fitted]
    if isinstance(fitted, float) and hasattr(fitted, "to_dict"):
        return {"value": fitted.to_dict(), "privacy": fitted.privacy}  # type: ignore[attr-defined]
    if not hasattr(fitted, "get_params"):
        return fitted
    params = fitted.get_params(deep=False)
    return {name: v for name, v in vars(fitted).items() if name not in params}


def _refitted(estimator: Any, n_classes: int) -> Callable[..., Any]:
    """Fit a clone with another privacy; no ledger of the user is debited."""
    from skfedcal._sklearn_compat import copy_to_fit

    own = copy_to_fit(estimator)
    params = {
        "eps": None,
        "delta": None,
        "ledger": None,
        "classes": np.arange(n_classes),
        "input_type": "logits",
        "runner": _plain(own.runner),
    }
    known = own.get_params(deep=False)
    own.set_params(**{name: v for name, v in params.items() if name in known})

    def fit_once(clients: list[Pair], *, privacy: Any, random_state: Any) -> Any:
        fitted = copy_to_fit(own).set_params(privacy=privacy, random_state=random_state)
        return fitted.fit(clients)

    return fit_once


def _plain(runner: Any) -> Any:
    """Same rounds, asked for in this process and in order."""
    if runner is None:
        return None
    if runner.cohort != "full":
        raise ValueError(
            f"cohort={runner.cohort!r}: an audit needs rounds in which everybody takes "
            "part. Pass FederatedRunner(cohort='full')."
        )
    return runner.set_params(
        backend=None, n_jobs=None, checkpoint=None, resume=False, secure=False
    )
