"""What vector, matrix and order-preserving scaling share."""

import warnings
from abc import abstractmethod
from numbers import Integral, Real

import numpy as np

from skfedcal import algorithms
from skfedcal._params import as_number
from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.algorithms._canonical import canonical
from skfedcal.calibrators._base import BaseCalibrator
from skfedcal.exceptions import CalibrationWarning

# Bound on a client's update under noise, as in the paper's experiments.
DEFAULT_CLIP = 0.5

# Standard deviations by which the squared move must exceed that of pure noise.
STANDS_OUT = 2.0

# Entries that are mapped at a time, so that work arrays stay in the cache.
CHUNK_CELLS = 1 << 16

STRENGTH = [Interval(Real, 0, 1e100, closed="both"), StrOptions({"auto"})]


class ScalingCalibrator(BaseCalibrator):
    """Base class; a subclass says which family of maps, and names its parameters."""

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "solver": [StrOptions({"auto", "average"})],
        "l2": STRENGTH,
        "local_solver": [StrOptions({"lbfgs", "gd"})],
        "local_iter": [Interval(Integral, 1, 10**5, closed="both")],
        "learning_rate": [Interval(Real, 0, 1e6, closed="right")],
    }

    @abstractmethod
    def _family(self):
        """Family of maps with the parameters of this estimator."""

    @abstractmethod
    def _strengths(self):
        """Strength of the ridge by group of parameters; None for the evidence."""

    @abstractmethod
    def _name_params(self, params, beta):
        """Fitted attributes from parameters that act on rows times `beta`."""

    def _make_algorithm(self, setting):
        if setting.unit == "example":
            raise ValueError(
                f"{type(self).__name__} has no bound for one example: a client sends "
                "the result of training on all its rows. Use unit='client'."
            )
        clip = None if self.clip == "auto" else float(self.clip)
        if setting.private or self.solver == "average":
            # Local optima of skewed clients lie far apart: under noise, early stop.
            literal = self.solver == "average"
            return algorithms.LocalAverage(
                self._family(),
                local_solver=self.local_solver if literal else "gd",
                local_iter=self.local_iter,
                learning_rate=as_number("learning_rate", self.learning_rate),
                clip=DEFAULT_CLIP if clip is None and setting.private else clip,
            )
        if clip is not None:
            raise ValueError(
                f"clip={self.clip!r} without eps has no meaning for solver="
                f"{self.solver!r}, which finds the exact optimum; use "
                "solver='average', or set eps."
            )
        return algorithms.PooledFit(self._family(), l2=self._strengths())

    def _set_state(self, state):
        self.temperature_ = float(state.temperature)
        self.converged_ = bool(state.converged)
        self._name_params(state.params, 1.0 / self.temperature_)
        n_groups = len(self._strengths())
        self.l2_ = np.array(getattr(state, "ridge", np.zeros(n_groups)))
        self._move = state.params - self._family().start(state.n_classes)
        self._noise = getattr(state, "noise", 0.0)
        self._bounded = getattr(state, "bounded", False)

    def _improves(self):
        # Squared length of pure noise: mean d v and sd v sqrt(2 d), v its variance.
        size, variance = len(self._move), self._noise**2
        excess = self._move @ self._move - size * variance
        return excess > STANDS_OUT * variance * np.sqrt(2 * size)

    def _after_fit(self, setting):
        if self.converged_ or setting.private:
            return
        if self.solver == "average":
            text = (
                "The average of the local fits lies at the bounds: clients whose rows "
                "are all right have their optimum at infinity. Use solver='auto', or "
                "local_solver='gd'."
            )
        elif self._bounded:
            text = (
                f"The log loss has no minimum inside the bounds of the temperature: "
                f"started at T = {self.temperature_:.4g}. The rows may be all right, "
                "all wrong, or without information about the labels."
            )
        else:
            text = (
                f"Not converged after {self.n_rounds_} rounds: too few were allowed, "
                "or cohorts that change from round to round move the optimum. Use "
                "cohort='full' and leave n_rounds out."
            )
        warnings.warn(text, CalibrationWarning, stacklevel=4)

    def _check_restored(self):
        n_classes = len(self.classes_)
        shapes = {**self._shapes(n_classes), "l2_": (len(self._strengths()),)}
        for name, shape in shapes.items():
            value = getattr(self, name)
            if not isinstance(value, np.ndarray) or value.shape != shape:
                raise ValueError(f"{name} does not fit {n_classes} classes")
            if value.dtype != np.float64 or not np.isfinite(value).all():
                raise ValueError(f"{name} is not made of finite numbers")
        # Its inverse is a factor of logits.
        if (
            type(self.temperature_) is not float
            or not 1e-100 < self.temperature_ < np.inf
        ):
            raise ValueError(f"temperature_={self.temperature_!r} is not positive")
        if type(self.converged_) is not bool:
            raise ValueError(f"converged_={self.converged_!r} is not true or false")

    @abstractmethod
    def _shapes(self, n_classes):
        """Shapes of the arrays among the fitted attributes."""

    def _calibrate(self, logits):
        out = np.empty(logits.shape, dtype=logits.dtype)
        step = max(1, CHUNK_CELLS // logits.shape[1])
        for start in range(0, len(logits), step):
            part = slice(start, start + step)
            out[part] = self._map(logits[part])
        return out

    def _map(self, logits):
        """Calibrated logits of a few rows."""
        return self._family().logits(self._params(), canonical(logits)).T

    @abstractmethod
    def _params(self):
        """Parameters of the family, from the fitted attributes."""
