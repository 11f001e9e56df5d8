"""Class bias and temperature under noise, from label-shift-aware residuals.

A client whose labels are skewed has residuals ``onehot - p`` that say more about its
skew than about the model. It knows its own label frequencies, though: measured against
``softmax(z / T + b + log(own / prior))``, its residual carries the model's fault and
not its skew, is several times shorter, and so loses less to the clip and the noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from skfedcal import _logits
from skfedcal.algorithms._base import (
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
)
from skfedcal.algorithms._bias_moments import BIAS_BOUND
from skfedcal.algorithms._temperature_private import PrivateState, TemperaturePosterior
from skfedcal.data._dataset import Block, FederatedDataset

# Public constants; how they were chosen is in the user guide (study).
# Bound on the length of a client's mean residual.
RESIDUAL_CLIP = 0.04
# Unit and least value of the mean of 1 - sum p^2, which gives the curvature. A client
# is clipped as a whole, so that their ratio, which is the step, is not.
_GINI_UNIT, _GINI_FLOOR = 0.45, 0.036
# A client with this many rows counts fully, one with fewer in proportion.
_FULL_ROWS = 10
# Pseudo-rows per class in a client's own label frequencies.
_SMOOTHING = 0.5
# Rows of a usual client: how far chance in its labels moves the optimum. What decides
# whether to use the result reckons with fewer.
_USUAL_ROWS, _FEWER_ROWS = 50, 25
# Standard deviations by which the slope at T = 1 must differ from 0.
_STANDS_OUT = 1.2
# The root mean square of the biases is taken to be log-uniform between these.
_SPREADS = np.geomspace(0.1, 1.0, 60)
# Noise matters more in c residuals than in two numbers for the temperature; more of
# the budget goes to the latter where T turns out to be far from 1.
_RESIDUAL_WEIGHT, _FAR, _MAX_WEIGHT = 2.0, 0.25, 64.0
# Share of the budget that measures label frequencies; their least value and their usual
# standard deviation, both over 1 / c.
_PRIOR_SHARE, _LEAST_PRIOR, _USUAL_SPREAD = 0.2, 0.1, 0.3


@dataclass(frozen=True, slots=True)
class BiasState(PrivateState):
    """Posterior of bias and temperature after some releases.

    `weighted / precision` is the estimate of the bias before it is shrunk, `length`
    its squared length, `variance` that of its entries, with that of the labels, and
    `scatter` the same if clients have few rows; `gini` and `gini_precision` add up the
    releases of the curvature. `prior` are the class frequencies of the population,
    empty where residuals are not adjusted or the frequencies are yet to be measured;
    `doubt` is the variance of their logarithm, which the bias takes over.
    """

    bias: Array = field(default_factory=lambda: np.empty(0))
    weighted: Array = field(default_factory=lambda: np.empty(0))
    precision: float = 0.0
    length: float = 0.0
    variance: float = np.inf
    scatter: float = np.inf
    shrinkage: float = 0.0
    gini: float = 0.0
    gini_precision: float = 0.0
    prior: Array = field(default_factory=lambda: np.empty(0))
    doubt: float = 0.0

    @property
    def bias_improves(self) -> bool:
        """Whether the estimate is longer than noise and chance would make it.

        By three standard deviations of its squared length.
        """
        n_free = len(self.bias) - 1
        return self.length > self.scatter * (n_free + 3 * float(np.sqrt(2 * n_free)))

    @property
    def bias_is_noise(self) -> bool:
        """Whether the estimate is short even for noise; shrinkage does the rest."""
        return self.length <= (len(self.bias) - 1) * self.variance / 2

    @property
    def improves(self) -> bool:
        """Whether to use the result.

        The temperature has a part of the budget only, so that less is asked of it than
        where it stands alone. Noise passes in a third of fits; what it does is small.
        """
        return self.evidence > _STANDS_OUT or self.bias_improves


@dataclass(frozen=True, slots=True)
class BiasTemperaturePosterior:
    """Posterior mean of bias and temperature from noisy residuals and slopes.

    In each round a client sends two blocks: its mean residual with one number for the
    curvature, and slope and curvature of its loss in ``log(1 / T)`` at the plain
    probabilities, as in `TemperaturePosterior`. The server turns each release into a
    Newton estimate of the bias with known variance, averages them, and shrinks the
    average by the posterior mean under a normal prior whose spread it learns from the
    average itself.

    Parameters
    ----------
    prior : tuple of float, default=()
        Class frequencies of the population; empty leaves residuals unadjusted.
    private_prior : bool, default=False
        Spend the first round on label frequencies and adjust by these.
    clip : float, default=RESIDUAL_CLIP
        Bound on the length of a client's mean residual.
    n_rounds : int, default=5
        Releases.
    """

    prior: tuple[float, ...] = ()
    private_prior: bool = False
    clip: float = RESIDUAL_CLIP
    n_rounds: int = 5

    @property
    def shares(self) -> tuple[float, ...]:
        """Parts of the budget, where the first round is of another kind."""
        if not self.private_prior:
            return ()
        rest = self.n_rounds - 1
        return (_PRIOR_SHARE, *[(1 - _PRIOR_SHARE) / rest] * rest)

    def n_values(self, n_classes: int) -> int:
        """Most numbers of a round."""
        return n_classes + 3

    def init(self, n_classes: int) -> BiasState:
        zero = np.zeros(n_classes)
        return BiasState(bias=zero, weighted=zero, prior=np.array(self.prior))

    def broadcast(self, state: BiasState) -> Arrays:
        return {
            "log_beta": np.asarray(state.log_beta),
            "clip": np.asarray(state.clip),
            "bias": state.bias,
            "prior": state.prior,
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        n_classes = len(broadcast["bias"])
        if self._asks_labels(broadcast):
            return {"labels": BlockSpec((n_classes,), clip=1.0)}
        far = abs(float(broadcast["log_beta"])) / _FAR
        weight = min(max(far**2, 1.0), _MAX_WEIGHT)
        return {
            "residual": BlockSpec((n_classes + 1,), clip=1.0, weight=_RESIDUAL_WEIGHT),
            "slopes": BlockSpec((2,), clip=1.0, weight=weight),
        }

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        if len(self.prior) not in (0, n_classes):
            raise ValueError(f"prior has {len(self.prior)} entries of {n_classes}")
        form = {"log_beta": Field(), "clip": Field(), "bias": Field((n_classes,))}
        return tuple({**form, "prior": Field((size,))} for size in (0, n_classes))

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        counts = label_counts(clients)
        rows = clients.sizes[:, None]
        if self._asks_labels(broadcast):
            return {"labels": counts / np.maximum(rows, _FULL_ROWS)}
        n_classes = clients.n_classes
        offset = _offsets(counts, broadcast["prior"])
        sums = np.zeros((len(clients), n_classes + 3))
        for block in clients.blocks():
            sums[block.clients] += _row_sums(broadcast, block, offset)
        sums[:, :n_classes] += counts
        # One divisor for a residual and its curvature: small clients must not bend
        # the step.
        own = sums[:, : n_classes + 1] / np.maximum(rows, _FULL_ROWS)
        own /= np.array([self.clip] * n_classes + [_GINI_UNIT])
        full = np.maximum(rows, self._temperature.full_rows)
        slopes = sums[:, n_classes + 1 :] / full
        # Curvature in log(beta) from that in beta, and both in units of their clips.
        slopes[:, 1] += slopes[:, 0]
        slopes /= np.array([float(broadcast["clip"]), self._temperature.curvature_clip])
        return {"residual": own, "slopes": slopes}

    def update(self, state: BiasState, total: Sums, n_clients: int) -> BiasState:
        if "labels" in total:
            noise = total.noise.get("labels", 0.0) / n_clients
            prior, doubt = _estimated_prior(total["labels"] / n_clients, noise)
            return replace(state, prior=prior, doubt=doubt)
        noise = max(total.noise.get("residual", 0.0), 1e-9) / n_clients
        mean = total["residual"] / n_clients
        state = self._add_residual(state, mean, noise, n_clients)
        return self._temperature.update(state, total, n_clients)

    def done(self, state: BiasState) -> bool:
        return self._temperature.done(state)

    @property
    def _temperature(self) -> TemperaturePosterior:
        return TemperaturePosterior(n_rounds=self.n_rounds - self.private_prior)

    def _asks_labels(self, broadcast: Arrays) -> bool:
        return self.private_prior and not broadcast["prior"].size

    def _add_residual(
        self, state: BiasState, mean: Array, noise: float, n_clients: int
    ) -> BiasState:
        """Add one release to the estimate of the bias, and shrink it anew."""
        n_free = len(state.bias) - 1
        gini_precision = state.gini_precision + (noise * _GINI_UNIT) ** -2
        gini = state.gini + mean[-1] * _GINI_UNIT * (noise * _GINI_UNIT) ** -2
        # The mean eigenvalue of the curvature where the biases add up to 0.
        curvature = max(gini / gini_precision, _GINI_FLOOR) / n_free
        root = state.bias + centred(mean[:-1]) * self.clip / curvature
        np.clip(root, -BIAS_BOUND, BIAS_BOUND, out=root)
        weight = (noise * self.clip / curvature) ** -2
        weighted, precision = state.weighted + weight * root, state.precision + weight
        raw = centred(weighted / precision)
        doubt = 1 / precision + state.doubt
        length, row = float(raw @ raw), 1 / (n_clients * curvature)
        variance = doubt + row / _USUAL_ROWS
        shrinkage = shrinkage_factor(length, n_free, variance)
        return replace(
            state,
            bias=shrinkage * raw,
            weighted=weighted,
            precision=precision,
            length=length,
            variance=variance,
            scatter=doubt + row / _FEWER_ROWS,
            shrinkage=shrinkage,
            gini=gini,
            gini_precision=gini_precision,
        )


def shrinkage_factor(length: float, n_free: int, variance: float) -> float:
    """Posterior mean of ``s^2 / (s^2 + variance)`` for biases of spread s.

    `length` is the squared length of their estimate, with `n_free` free numbers.
    """
    total = _SPREADS**2 + variance
    log_weight = -n_free / 2 * np.log(total) - length / 2 / total
    weight = np.exp(log_weight - log_weight.max())
    return float(weight @ (_SPREADS**2 / total) / weight.sum())


def label_counts(clients: FederatedDataset) -> Array:
    """Rows of each client by class."""
    owner = np.repeat(np.arange(len(clients)), clients.sizes)
    start, stop = clients.offsets[0], clients.offsets[-1]
    cell = owner * clients.n_classes + clients.labels[start:stop]
    shape = (len(clients), clients.n_classes)
    counts = np.bincount(cell, minlength=shape[0] * shape[1])
    return counts.reshape(shape).astype(np.float64)


def centred(values: Array) -> Array:
    """Shift to mean 0: biases matter up to a constant."""
    out: Array = values - values.mean()
    return out


def _offsets(counts: Array, prior: Array) -> Array | None:
    """What a client adds to logits: log of its label frequencies over the prior."""
    if not prior.size:
        return None
    own = counts + _SMOOTHING * len(prior) * prior
    own /= np.einsum("ij->i", own)[:, None]
    return np.asarray(np.log(own / prior))


def _row_sums(broadcast: Arrays, block: Block, offset: Array | None) -> Array:
    """Sums over a client's rows: minus probabilities, curvature, two slopes."""
    beta = np.exp(float(broadcast["log_beta"]))
    gaps = _logits.center(block.rows.astype(np.float64, order="C", copy=False))
    np.maximum(gaps, -_logits.MAX_SPAN, out=gaps)
    scores = beta * gaps + broadcast["bias"]
    plain = adjusted = _logits.softmax(scores)
    if offset is not None:
        own = offset[block.clients]
        scores += np.repeat(own, np.diff(block.offsets), axis=0)
        adjusted = _logits.softmax(scores)
    mean = np.einsum("ij,ij->i", plain, gaps)
    square = np.einsum("ij,ij,ij->i", plain, gaps, gaps)
    labelled = gaps[np.arange(len(gaps)), block.labels]
    gini = np.einsum("ij,ij->i", adjusted, 1 - adjusted)
    slope = beta * (mean - labelled)
    curvature = beta**2 * np.maximum(square - mean**2, 0.0)
    return block.sum_by_client(np.vstack([-adjusted.T, gini, slope, curvature]))


def _estimated_prior(mean: Array, noise: float) -> tuple[Array, float]:
    """Class frequencies from their noisy mean, shrunk toward equal ones.

    Also the variance of their logarithm.
    """
    n_classes = len(mean)
    gap = centred(mean)
    spread = max(float(np.mean(gap**2)) - noise**2, (_USUAL_SPREAD / n_classes) ** 2)
    keep = spread / (spread + noise**2)
    prior = np.maximum(1 / n_classes + keep * gap, _LEAST_PRIOR / n_classes)
    prior /= prior.sum()
    return prior, float(np.mean(keep * noise**2 / prior**2))
