"""Summary in sentences of the results of the demo, good or bad."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skfedcal.cli.demo._experiment import DemoResult, Outcome

# A difference counts when it is larger than this many standard errors.
N_ERRORS = 2.0


def sign_of_mean(values: np.ndarray) -> int:
    """Return the sign of the mean, or 0 if it could be noise."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    mean = values.mean()
    return int(np.sign(mean)) if abs(mean) > N_ERRORS * error else 0


def verdict(result: DemoResult) -> list[str]:
    """Return the sentences."""
    base, *fits = result.outcomes
    return [
        _confidence(base, result.n_test),
        *_log_loss(base, fits),
        _accuracy(base, fits),
        _floor(result.outcomes),
        _privacy(result),
    ]


def _confidence(base: Outcome, n_test: int) -> str:
    meaning = {
        1: "it is over-confident.",
        -1: "it is under-confident.",
        0: "the difference could be noise.",
    }
    return (
        f"As it is (base), the net is {100 * base.confidence:.1f} % sure on average "
        f"and right on {100 * base.accuracy:.1f} % of {n_test} test digits: "
        + meaning[sign_of_mean(base.gaps)]
    )


def _log_loss(base: Outcome, fits: Sequence[Outcome]) -> list[str]:
    """Compare NLL row by row with the uncalibrated net, and private with exact fits."""
    signs = {fit.name: sign_of_mean(base.losses - fit.losses) for fit in fits}
    parts = []
    for sign, text in (
        (1, "clearly lower"),
        (-1, "clearly higher"),
        (0, "not clearly different"),
    ):
        names = [f"{f.name} {f.nll:.3f}" for f in fits if signs[f.name] == sign]
        if names:
            parts.append(f"{text} for {', '.join(names)}")
    lines = [f"NLL, {base.nll:.3f} for base, is {'; '.join(parts)}."]
    exact = {fit.method: fit for fit in fits if fit.eps is None}
    for fit in fits:
        twin = exact.get(fit.method)
        if fit.eps is None or twin is None or signs[twin.name] != 1:
            continue
        share = (base.nll - fit.nll) / (base.nll - twin.nll)
        if signs[fit.name] != 1:
            kept = "no clear part"
        elif share > 0.995:
            kept = "all"
        else:
            kept = f"{100 * share:.0f} %"
        lines.append(f"{fit.name} keeps {kept} of the gain of {twin.name}.")
    return lines


def _accuracy(base: Outcome, fits: Sequence[Outcome]) -> str:
    """Summarise which methods improve or worsen accuracy."""
    signs = {f.name: sign_of_mean(1.0 * f.hits - base.hits) for f in fits}
    parts = [
        f"clearly {text} for "
        + ", ".join(
            f"{f.name} ({100 * f.accuracy:.1f} %)"
            for f in fits
            if signs[f.name] == sign
        )
        for sign, text in ((1, "higher"), (-1, "lower"))
        if sign in signs.values()
    ]
    start = f"Accuracy, {100 * base.accuracy:.1f} % for base, is "
    return start + ("; ".join(parts) or "clearly changed by none") + "."


def _floor(outcomes: Sequence[Outcome]) -> str:
    """Tell which cwECE could be that of a perfect model."""
    at: list[str] = []
    above: list[str] = []
    for outcome in outcomes:
        limit = outcome.floor + N_ERRORS * outcome.floor_sd
        (at if outcome.classwise_ece <= limit else above).append(outcome.name)
    parts = [
        f"{text} for {', '.join(names)}"
        for text, names in (
            ("is at its floor, within two deviations,", at),
            ("is more than two deviations above its floor", above),
        )
        if names
    ]
    return f"cwECE {'; it '.join(parts)}."


def _privacy(result: DemoResult) -> str:
    n_private = sum(outcome.eps is not None for outcome in result.outcomes)
    if result.simulated:
        return "Seeded run: the noise can be repeated, so this is a simulation."
    return (
        f"The {n_private} private fits together cost each client eps = "
        f"{result.total_eps:.3g} at delta = {result.total_delta:g}; the fits without "
        "eps show the server exact sums."
    )
