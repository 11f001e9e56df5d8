"""Parameters of privacy: of estimators, and of functions that have them too."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils import check_random_state

from skfedcal._params import FrozenParams, as_number
from skfedcal._sklearn_compat import CountsClones, Interval, StrOptions
from skfedcal.exceptions import SimulatedPrivacyWarning
from skfedcal.privacy.entropy import Entropy, OSEntropy, SeededEntropy
from skfedcal.privacy.ledger import PrivacyLedger
from skfedcal.privacy.models import (
    CentralDP,
    PrivacyModel,
    SecureAggregation,
    check_model,
)

if TYPE_CHECKING:
    from skfedcal._typing import Seed

# Beyond these a step of the lattice is no longer a normal number.
CLIP_RANGE = Interval(Real, 1e-50, 1e50, closed="both")


class PrivacyMixin(CountsClones):
    """Adds `eps`, `delta`, `clip`, `privacy`, `ledger` and `random_state`."""

    eps: float | None
    delta: float | None
    privacy: PrivacyModel | None
    ledger: PrivacyLedger | None
    random_state: Seed

    _privacy_constraints = {
        "eps": [Interval(Real, 0, None, closed="neither"), None],
        "delta": [Interval(Real, 0, 1, closed="neither"), None],
        "clip": [CLIP_RANGE, StrOptions({"auto"})],
        "privacy": "no_validation",  # by `_privacy_model`
        "ledger": [PrivacyLedger, None],
        "random_state": ["random_state"],
    }

    def set_params(self, **params: object) -> Self:
        """Set parameters; ``privacy__eps`` and the like replace the frozen object.

        Parameters
        ----------
        **params : dict
            Parameters by name.

        Returns
        -------
        self : object
            The estimator.
        """
        plain = {k: v for k, v in params.items() if "__" not in k}
        super().set_params(**plain)  # type: ignore[misc]
        nested: dict[str, Any] = {}
        for key, value in params.items():
            name, _, inner = key.partition("__")
            if not inner:
                continue
            holder = getattr(self, name, None)
            if isinstance(holder, FrozenParams):
                setattr(self, name, holder.set_params(**{inner: value}))
            else:
                nested[key] = value
        super().set_params(**nested)  # type: ignore[misc]
        return self

    def _privacy_model(self) -> PrivacyModel:
        """Read `eps`, `delta` and `privacy`, checked."""
        model = self.privacy
        if model is not None:
            check_model(model)
            if self.eps is not None or self.delta is not None:
                raise ValueError(
                    f"Both eps={self.eps!r}, delta={self.delta!r} and privacy={model!r}"
                    " are given; put the budget into the privacy object."
                )
        elif self.eps is None or as_number("eps", self.eps) == np.inf:
            if self.delta is not None:
                raise ValueError(
                    f"delta={self.delta!r} is given without eps, so nothing would be "
                    "private; set eps, or leave delta out."
                )
            model = SecureAggregation()
        else:
            model = CentralDP(eps=self.eps, delta=self.delta)
        model.validate()
        return model

    def _entropy(self, model: PrivacyModel) -> Entropy:
        """Source of noise and sampling; warn if the noise could be repeated."""
        return make_entropy(self.random_state, private=model.private, stacklevel=5)


def make_entropy(random_state: Seed, *, private: bool, stacklevel: int) -> Entropy:
    """Source of noise and sampling; warn if the noise could be repeated."""
    if random_state is None:
        return OSEntropy()
    if private:
        warnings.warn(
            f"random_state={random_state!r} makes the noise repeatable: this "
            "fit is a simulation and guarantees nothing. Use random_state=None for "
            "a release.",
            SimulatedPrivacyWarning,
            stacklevel=stacklevel,
        )
    if isinstance(random_state, (int, np.integer)):
        return SeededEntropy(int(random_state))
    return SeededEntropy(int(check_random_state(random_state).randint(2**31)))
