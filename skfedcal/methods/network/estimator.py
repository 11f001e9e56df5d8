"""Federated training of a small network on logits."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.utils import check_random_state

from skfedcal._docs import documented
from skfedcal._params import as_number
from skfedcal._sklearn_compat import Interval
from skfedcal.methods.base import BaseCalibrator
from skfedcal.methods.network.rounds import MLPAveraging
from skfedcal.methods.scaling.estimator import keep_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skfedcal._typing import ArrayLike, InputType, Seed
    from skfedcal.contract import Array, FederatedAlgorithm
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.methods.base import FitSetting
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel


@documented
class FedMLPCalibrator(BaseCalibrator):
    """Recalibrate logits by a small network trained with federated averaging.

    Parameters
    ----------
    eps
    hidden : tuple of int, default=(64, 64)
        Widths of the hidden layers.
    epochs : int, default=3
        Epochs of a client in each round.
    batch_size : int, default=32
        Rows of one step, at most 2**20.
    learning_rate : float, default=0.01
        Step length.
    server_learning_rate : float, default=1.0
        Factor of the mean change that the server adds in a round.
    order_preserving : bool, default=True
        The network gives positive factors of the gaps between sorted logits, so that
        the ranking of the classes never changes. False adds its output to the logits.
    delta
    clip : float or 'auto', default='auto'
        L2 bound on the change of all parameters that one client sends; a number also
        clips without `eps`. 'auto' is 0.5 under `eps`.
    if_improves : bool, default=True
        With `eps`, return the input unchanged if the change of the parameters cannot be
        distinguished from noise (`improves_`).
    hold_back, privacy, ledger, classes, input_type
    runner : FederatedRunner, default=None
        Rounds (by default 12, or 3 under `eps`), cohorts, engine and checkpoint.
    random_state : int, RandomState instance or None, default=None
        Seed of the first weights, which every client knows; None is 0. None draws
        noise and cohorts from the operating system. A seed makes the fit reproducible,
        and a simulation without a privacy guarantee.

    Attributes
    ----------
    coefs_ : list of ndarray of shape (n_in, n_out)
        Weights of each layer.
    intercepts_ : list of ndarray of shape (n_out,)
        Biases of each layer.
    classes_
    improves_ : bool
        With `eps`, whether the change of the parameters can be distinguished from
        noise; without it False if `hold_back` found harm.
    comparison_
    n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedTempCalibrator : One number instead of thousands; far better under `eps`.

    Notes
    -----
    Rows are shifted to mean 0. With z sorted, ``z_1 >= ... >= z_c``, the calibrated
    logit of the i-th class is ``sum_{j >= i} m_j (z_j - z_{j+1})`` up to a constant,
    where ``m = softplus(network(z))`` is taken at the class of rank j and is at least
    1e-6 [2]_. The map starts as the identity. In a round every client runs stochastic
    gradient descent from the server's parameters (gradients longer than 10 are
    shortened), in an order of rows that depends on their number only, and the server
    adds the mean of the changes.

    At 10 classes the network has 5514 parameters. Noise falls on each of them, so that
    under `eps` it takes many thousands of clients to gain anything.

    References
    ----------
    .. [1] Peng et al., "FedCal: Achieving Local and Global Calibration in Federated
       Learning via Aggregated Parameterized Scaler", ICML 2024.
    .. [2] Rahimi et al., "Intra Order-preserving Functions for Calibration of
       Multi-Class Neural Networks", NeurIPS 2020.

    Examples
    --------
    >>> from skfedcal import FedMLPCalibrator, make_federation
    >>> fed = make_federation(n_clients=20, n_samples=1000, random_state=0)
    >>> cal = FedMLPCalibrator().fit(fed.clients)
    >>> [weights.shape for weights in cal.coefs_]
    [(10, 64), (64, 64), (64, 10)]
    >>> bool((cal.predict(fed.test_logits) == fed.test_logits.argmax(axis=1)).all())
    True
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "hidden": [tuple, list],
        "epochs": [Interval(Integral, 1, 10**5, closed="both")],
        "batch_size": [Interval(Integral, 1, 2**20, closed="both")],
        "learning_rate": [Interval(Real, 0, 1e6, closed="right")],
        "server_learning_rate": [Interval(Real, 0, 1e6, closed="right")],
        "order_preserving": ["boolean"],
    }
    _fitted_names = ("coefs_", "intercepts_")

    def __init__(
        self,
        eps: float | None = None,
        *,
        hidden: Sequence[int] = (64, 64),
        epochs: int = 3,
        batch_size: int = 32,
        learning_rate: float = 0.01,
        server_learning_rate: float = 1.0,
        order_preserving: bool = True,
        delta: float | None = None,
        clip: float | Literal["auto"] = "auto",
        if_improves: bool = True,
        hold_back: bool = False,
        privacy: PrivacyModel | None = None,
        ledger: PrivacyLedger | None = None,
        classes: ArrayLike | None = None,
        input_type: InputType = "logits",
        runner: FederatedRunner | None = None,
        random_state: Seed = None,
    ) -> None:
        self.eps = eps
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.server_learning_rate = server_learning_rate
        self.order_preserving = order_preserving
        self.delta = delta
        self.clip = clip
        self.if_improves = if_improves
        self.hold_back = hold_back
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any]:
        if setting.unit == "example":
            raise ValueError(
                "FedMLPCalibrator has no sensitivity bound for one example; use "
                "unit='client', or FedTempCalibrator."
            )
        clip = None if self.clip == "auto" else float(self.clip)
        if setting.private and clip is None:
            clip = 0.5
        seed = self.random_state
        if seed is None:
            seed = 0
        elif not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(2**31)
        return MLPAveraging(
            hidden=self._widths(),
            epochs=int(self.epochs),
            batch_size=int(self.batch_size),
            learning_rate=as_number("learning_rate", self.learning_rate),
            order_preserving=bool(self.order_preserving),
            clip=clip,
            seed=int(seed),
            n_rounds=3 if setting.private else 12,
            server_rate=as_number("server_learning_rate", self.server_learning_rate),
        )

    def _widths(self) -> tuple[int, ...]:
        if not all(isinstance(n, Integral) and int(n) >= 1 for n in self.hidden):
            raise ValueError(
                f"hidden={self.hidden!r} must hold the widths of the hidden layers, "
                "whole numbers from 1."
            )
        return tuple(int(n) for n in self.hidden)

    def _shapes(self) -> list[tuple[int, int]]:
        from skfedcal.methods.network.rounds import layer_shapes

        return layer_shapes(len(self.classes_), self._widths())

    def _set_state(self, state: Any) -> None:
        from skfedcal.methods.network.rounds import split_layers

        layers = split_layers(state.params, self._shapes())
        self.coefs_ = [layer[:-1].copy() for layer in layers]
        self.intercepts_ = [layer[-1].copy() for layer in layers]
        self._gain = state.improves

    def _improves(self) -> bool:
        return self._gain

    def _check_restored(self) -> None:
        shapes = [
            (w.shape, b.shape)
            for w, b in zip(self.coefs_, self.intercepts_, strict=True)
        ]
        if shapes != [((n - 1, m), (m,)) for n, m in self._shapes()]:
            raise ValueError("coefs_ or intercepts_ have wrong shapes")
        for values in (*self.coefs_, *self.intercepts_):
            if values.dtype != np.float64 or not np.isfinite(values).all():
                raise ValueError("coefs_ or intercepts_ are not finite numbers")

    def _rounded(self, values: Array, logits: Array) -> Array:
        return keep_ranks(values, logits) if self.order_preserving else values
