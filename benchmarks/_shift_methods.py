"""Methods and conditions of bench_shift: one trial of all of them, on the same rows."""

from dataclasses import replace
from functools import partial

import numpy as np

from skfedcal import FedAccTempCalibrator
from skfedcal.datasets import corrupt
from skfedcal.papers.paper_002 import (
    base_error,
    common,
    digits_network,
    error_of,
    fitted,
    halves,
)
from skfedcal.privacy import CentralDP, SourceDP

PAPER_RANGE, WIDE_RANGE = (0.5, 3.0), (0.25, 32.0)
# Noise of every source, or noise once in the sum of all sources.
MODELS = {"source": SourceDP, "sum": partial(CentralDP, unit="example")}
NARROW = {"if_improves": False, "temperature_range": PAPER_RANGE}
WIDE = {"if_improves": False}


def golden(steps, base):
    """Golden section of Algorithm 1, mended: K steps are K + 1 queries."""
    return {**base, "search": "golden", "n_queries": steps + 1}


TWO_POINT = "Acc-T two_point"
STEPS = (1, 2, 3, 4, 5)
GOLDEN_WIDE = {f"Acc-T golden K={k} wide": golden(k, WIDE) for k in STEPS}
GOLDEN_PAPER = {f"Acc-T golden K={k}": golden(k, NARROW) for k in STEPS}
SEARCHES = {"Acc-T bisect": {**WIDE, "search": "bisect"}, TWO_POINT: {}}
FAIR = {**GOLDEN_PAPER, **GOLDEN_WIDE, **SEARCHES}


# Mild kinds, whose logits are rescaled to these optimal temperatures.
FAIR_KINDS = (
    "gaussian_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "brightness",
    "contrast",
    "elastic_transform",
)
FAIR_SEVERITY, COPIES = 2, 11
FAIR_TEMPERATURES = tuple(np.geomspace(0.65, 2.8, 7).round(2))


def fair_conditions(*, by_image=False):
    """Digits under mild corruptions, with optimal temperatures from .65 to 2.8."""
    network, images, labels = digits_network(COPIES)
    n_images = len(labels) // COPIES if by_image else None
    found = []
    for kind in FAIR_KINDS:
        spoilt = corrupt(images, kind, FAIR_SEVERITY, random_state=0)
        one = halves("fair", kind, FAIR_SEVERITY, network(spoilt), labels, n_images)
        found += [rescaled(one, float(t)) for t in FAIR_TEMPERATURES]
    return found


def rescaled(condition, temperature):
    """The same, with logits that have another optimal temperature."""
    factor = temperature / condition.temperature
    return replace(
        condition,
        kind=f"{condition.kind} T={temperature}",
        logits=condition.logits * factor,
        test_logits=condition.test_logits * factor,
        temperature=temperature,
    )


def one_trial(condition, cell, rng):
    """Calibration errors by method and model, and what 'two_point' said of itself.

    cell: Sources, samples of each, eps.
    rng: Draws rows and the seed of the noise.
    """
    n_sources, n_samples, eps = cell
    data = condition.sample(rng, n_sources, n_samples)
    seed = int(rng.integers(2**31))
    errors, said = without_noise(condition, data, n_samples), {}
    for model, kind in MODELS.items():
        privacy = kind(eps)
        for name, given in FAIR.items():
            cal = FedAccTempCalibrator(**given, **common(condition, privacy, seed))
            errors[name, model] = error_of(condition, fitted(cal, data))
            if name == TWO_POINT:
                said[model] = claims(cal, condition.temperature)
    return errors, said


def without_noise(condition, data, n_samples):
    """Doing nothing, one source by itself, and exact sums over all sources."""
    one = tuple(part[:n_samples] for part in data)
    exact = common(condition, None, None)
    nll = FedAccTempCalibrator(objective="nll", **exact)
    return {
        ("none", "-"): base_error(condition),
        ("one source", "-"): error_of(condition, fitted(nll, one)),
        ("Acc-T without noise", "-"): error_of(
            condition, fitted(FedAccTempCalibrator(**exact), data)
        ),
    }


def claims(cal, temperature):
    """Whether the interval holds the truth, an end of the range was hit, it is used."""
    low, high = cal.temperature_interval_
    first, last = cal.temperature_range
    inside = 1.02 * first < cal.temperature_ < 0.98 * last
    covered = low <= temperature <= high
    return {"covered": covered, "edge": not inside, "used": cal.improves_}
