"""Methods of bench_shift: one trial of all of them, on the same rows.

Estimators of skfedcal are used as a user has them. Only histogram binning as the paper
prints it, which no estimator is, is written here.
"""

from functools import partial

import numpy as np
from scipy.special import softmax

from skfedcal import FedAccTempCalibrator, FedTopBinCalibrator
from skfedcal.metrics import calibration_error, expected_calibration_error
from skfedcal.privacy import CentralDP, SourceDP

N_BINS = 15
PAPER_RANGE, WIDE_RANGE = (0.5, 3.0), (0.25, 32.0)
# Noise of every source, or noise once in the sum of all sources.
MODELS = {"source": SourceDP, "sum": partial(CentralDP, unit="example")}
NARROW = {"if_improves": False, "temperature_range": PAPER_RANGE}
WIDE = {"if_improves": False}


def golden(steps, base):
    """Golden section of Algorithm 1, mended: K steps are K + 1 queries."""
    return {**base, "search": "golden", "n_queries": steps + 1}


AS_PRINTED = "histogram binning"
TWO_POINT = "Acc-T two_point"
# The rows of the paper's Table 1, with its temperatures and K = 5.
PAPER = {
    "ECE-T": {**golden(5, NARROW), "objective": "ece"},
    "NLL-T": {**golden(5, NARROW), "objective": "nll"},
    "Acc-T": golden(5, NARROW),
}
OTHERS = {
    "ECE-T wide": {**golden(5, WIDE), "objective": "ece"},
    "NLL-T wide": {**golden(5, WIDE), "objective": "nll"},
}
STEPS = (1, 2, 3, 4, 5)
GOLDEN_WIDE = {f"Acc-T golden K={k} wide": golden(k, WIDE) for k in STEPS}
GOLDEN_PAPER = {f"Acc-T golden K={k}": golden(k, NARROW) for k in STEPS}
# The paper's three, with the temperatures that real shifts need.
PAPER_WIDE = dict(zip(PAPER, [*OTHERS, "Acc-T golden K=5 wide"], strict=True))
SEARCHES = {"Acc-T bisect": {**WIDE, "search": "bisect"}, TWO_POINT: {}}
# What is run on the paper's grid, and the searches compared on the fair one.
TABLE = {**PAPER, **OTHERS, **GOLDEN_WIDE, **SEARCHES}
FAIR = {**GOLDEN_PAPER, **GOLDEN_WIDE, **SEARCHES}


def one_trial(condition, cell, parameters, rng, *, bins=True):
    """Calibration errors by method and model, and what 'two_point' said of itself.

    Parameters
    ----------
    condition : Condition
        Where rows come from.
    cell : tuple
        Sources, samples of each, eps.
    parameters : dict
        Of FedAccTempCalibrator, by name of the method.
    rng : Generator
        Draws rows and the seed of the noise.
    bins : bool, default=True
        Whether to run histogram binning too.
    """
    n_sources, n_samples, eps = cell
    data = condition.sample(rng, n_sources, n_samples)
    seed = int(rng.integers(2**31))
    errors, said = without_noise(condition, data, n_samples), {}
    for model, kind in MODELS.items():
        privacy = kind(eps)
        for name, given in parameters.items():
            cal = FedAccTempCalibrator(**given, **common(condition, privacy, seed))
            errors[name, model] = error_of(condition, fitted(cal, data))
            if name == TWO_POINT:
                said[model] = claims(cal, condition.temperature)
        if bins:
            cal = FedTopBinCalibrator(**common(condition, privacy, seed))
            errors["FedTopBin", model] = error_of(condition, fitted(cal, data))
            n_draws = n_sources if model == "source" else 1
            errors[AS_PRINTED, model] = printed_bins(condition, data, eps, n_draws, rng)
    return errors, said


def without_noise(condition, data, n_samples):
    """Doing nothing, one source by itself, and exact sums over all sources."""
    unchanged = softmax(condition.test_logits, axis=1)
    one = tuple(part[:n_samples] for part in data)
    exact = common(condition, None, None)
    nll = {**exact, "objective": "nll"}
    narrow = FedAccTempCalibrator(temperature_range=PAPER_RANGE, **nll)
    return {
        ("none", "-"): expected_calibration_error(
            condition.test_labels, unchanged, labels=range(unchanged.shape[1])
        ),
        ("one source", "-"): error_of(condition, fitted(narrow, one)),
        ("one source wide", "-"): error_of(
            condition, fitted(FedAccTempCalibrator(**nll), one)
        ),
        ("Acc-T without noise", "-"): error_of(
            condition, fitted(FedAccTempCalibrator(**exact), data)
        ),
    }


def common(condition, privacy, seed):
    """Parameters that all estimators get."""
    classes = range(condition.logits.shape[1])
    return {"privacy": privacy, "classes": classes, "random_state": seed}


def fitted(cal, data):
    return cal.fit(data[0], data[1], client_ids=data[2])


def error_of(condition, cal):
    """Top-label ECE of a fitted calibrator on the other half."""
    proba = cal.predict_proba(condition.test_logits)
    return expected_calibration_error(
        condition.test_labels, proba, n_bins=N_BINS, labels=cal.classes_
    )


def claims(cal, temperature):
    """Whether the interval holds the truth, an end of the range was hit, it is used."""
    low, high = cal.temperature_interval_
    first, last = cal.temperature_range
    inside = 1.02 * first < cal.temperature_ < 0.98 * last
    covered = low <= temperature <= high
    return {"covered": covered, "edge": not inside, "used": cal.improves_}


def printed_bins(condition, data, eps, n_draws, rng):
    """Right and all predictions by bin, with noise for the sensitivity of 2 (C.2.3).

    A confidence that noise puts outside of [0, 1] is moved to its end, 0 over 0 is 1/2.
    Discrete Laplace noise is a difference of two geometric numbers.
    """
    confidence, right = top_label(data[0], data[1])
    bins = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    counts = np.array(
        [np.bincount(bins, right, N_BINS), np.bincount(bins, minlength=N_BINS)]
    )
    stop = 1 - np.exp(-eps / 2)
    up, down = rng.negative_binomial(n_draws, stop, size=(2, *counts.shape))
    correct, total = counts + up - down
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.nan_to_num(correct / total, nan=0.5, posinf=1.0, neginf=0.0)
    confidence, right = top_label(condition.test_logits, condition.test_labels)
    bins = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    return calibration_error(right, value.clip(0, 1)[bins], n_bins=N_BINS)


def top_label(logits, labels):
    """Confidence in the predicted class, and whether it is right."""
    proba = softmax(logits, axis=1)
    return proba.max(axis=1), (proba.argmax(axis=1) == labels).astype(int)
