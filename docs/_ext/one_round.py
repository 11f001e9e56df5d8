"""Write docs/reference/one_round.inc: a row through a fit and back, from a real trace.

``python docs/_ext/one_round.py`` writes the file; a test compares it with the code.
"""

import inspect
import sys
import warnings
from pathlib import Path

import numpy as np

import skfedcal
from skfedcal import (
    FederatedDataset,
    FederatedRunner,
    FedTempCalibrator,
    _compiled,
)
from skfedcal._logit_predictions import LogitPredictions
from skfedcal.clients import forms
from skfedcal.federation import InProcess, collecting, endpoint
from skfedcal.methods import base
from skfedcal.privacy import codec, ledger, mechanisms, models

TARGET = Path(__file__).parents[1] / "reference" / "one_round.inc"
ROOT = Path(skfedcal.__file__).parents[1]


def clients():
    """Twelve clients with four rows of logits of two classes, twice too large."""
    rng = np.random.default_rng(0)
    true = rng.normal(size=(48, 2)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return [(2 * true[i : i + 4], labels[i : i + 4]) for i in range(0, 48, 4)]


class Watched(InProcess):
    """Engine that keeps the first request, what one client computes, and the sum."""

    seen = {}

    def total(self, request, cohort):
        answer = super().total(request, cohort)
        if request.round_index == 0:
            one = self.clients.slice(0, 1)
            raw = request.algorithm.query(request.broadcast, one)
            self.seen.update(
                request=request, raw=raw, sent=request.codec.encode(raw), answer=answer
            )
        return answer


def traced_fit():
    """Fit and predict once; return the calibrator and the code that was called."""
    pairs, called = clients(), set()
    rows = np.concatenate([z for z, _ in pairs])
    labels = np.concatenate([y for _, y in pairs])
    data = FederatedDataset(rows, labels, np.arange(0, 49, 4), range(12), 2)
    runner = FederatedRunner(backend=Watched(data))
    cal = FedTempCalibrator(eps=1, classes=[0, 1], runner=runner, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.setprofile(lambda frame, event, _: called.add(frame.f_code))
        try:
            cal.fit(pairs)
            cal.predict_proba(pairs[0][0])
        finally:
            sys.setprofile(None)
    return cal, called


def numbers(values):
    return ", ".join(f"{v:.3g}" for v in np.ravel(values))


def integers(values):
    return ", ".join(str(v) for v in np.ravel(values).tolist())


def _render():
    cal, called = traced_fit()
    seen, record, report = Watched.seen, cal.history_[0], cal.privacy_
    request, name = seen["request"], next(iter(seen["raw"]))
    code, algorithm = request.codec.blocks[name], type(request.algorithm)
    total, released = seen["answer"].total[name], record.total[name]
    (row, *_), (label, *_) = clients()[0]
    alone = FederatedDataset(row[None], np.array([label]), np.array([0, 1]), [0], 2)
    slope, curvature = request.algorithm.query(request.broadcast, alone)[name][0]
    centred = row - row.max()
    steps = [
        (
            base.BaseCalibrator.fit,
            f"reads parameters and rows. The first row of client 0 has the logits "
            f"{numbers(row)} and the label {label}",
        ),
        (
            forms.make_dataset,
            "checks the rows of all clients once and packs them into one array with "
            "offsets; clients are slices of it",
        ),
        (
            FedTempCalibrator._make_algorithm,
            f"chooses the algorithm, ``{algorithm.__name__}``, by public numbers only",
        ),
        (
            models.CentralDP.mechanism,
            f"eps {report.eps:g} and delta {report.delta:.3g} "
            f"for {report.n_rounds} rounds need noise of {report.noise_multiplier:.3g} "
            "times the bound of a client in each",
        ),
        (
            ledger.PrivacyLedger.debit,
            "all rounds are paid before any client is asked; "
            f"together they are {report.mu:.3g}-GDP",
        ),
        (
            algorithm.broadcast,
            "every client receives "
            + "; ".join(
                f"``{k}`` = {numbers(v)}" for k, v in request.broadcast.items()
            ),
        ),
        (
            algorithm.query,
            "a row has a slope and a curvature of its log loss in log(1 / T). They "
            f"would be {slope:.3g} and {curvature:.3g} in a client of this row alone; "
            f"client 0 computes ``{name}`` = {numbers(seen['raw'][name])} from its 4 "
            "rows",
        ),
        (codec.clip_rows, f"it is clipped to a norm of {code.spec.clip:.3g}"),
        (
            codec.round_within,
            f"and encoded in steps of {code.step:.3g}: the integers "
            f"{integers(seen['sent'][name])} are all that leaves "
            f"the client ({record.bytes_up} bytes)",
        ),
        (
            endpoint.respond,
            f"the sum over {record.n_clients} clients is {integers(total)}",
        ),
        (
            mechanisms.LatticeGaussian.release,
            "discrete Gaussian noise is added once, "
            f"and the sum is decoded: {numbers(released)} (exact: "
            f"{numbers(code.decode(total))})",
        ),
        (
            algorithm.update,
            "the server updates its state from the noisy sum and nothing else",
        ),
        (
            collecting.Run.keep,
            "state and record are kept, and saved if there is a "
            "checkpoint, before anyone sees them",
        ),
        (
            FedTempCalibrator._set_state,
            f"after {cal.n_rounds_} rounds ``temperature_`` is {cal.temperature_:.3g}",
        ),
        (
            base.BaseCalibrator._prediction_logits,
            "``predict_proba`` checks the row again and shifts it to a maximum of 0: "
            f"{numbers(centred)}",
        ),
        (
            FedTempCalibrator._calibrate,
            f"divides it by the temperature: {numbers(centred / cal.temperature_)}",
        ),
        (
            LogitPredictions.predict_proba,
            f"returns the softmax, {numbers(cal.predict_proba(row[None]))}; "
            f"uncalibrated it is {numbers(np.exp(centred) / np.exp(centred).sum())}",
        ),
    ]
    lines = [".. Written by docs/_ext/one_round.py.", "", ".. list-table::",
             "   :header-rows: 1", "   :widths: 40 60", "", "   * - Where",
             "     - What happens, in numbers"]  # fmt: skip
    for function, text in steps:
        if inspect.unwrap(function).__code__ not in called:
            raise RuntimeError(f"{function.__qualname__} is not on the path.")
        path = Path(inspect.getsourcefile(inspect.unwrap(function)))
        where = path.relative_to(ROOT / "skfedcal").as_posix()
        lines += [f"   * - ``{where}``: ``{function.__qualname__}``", f"     - {text}."]
    return "\n".join(lines) + "\n"


def render():
    """Text of the table; in numpy, whose steps are Python functions."""
    before, _compiled.core = _compiled.core, None
    try:
        return _render()
    finally:
        _compiled.core = before


if __name__ == "__main__":
    TARGET.write_text(render())
