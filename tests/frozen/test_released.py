"""Released integers of every method, privacy model and engine do not change.

`released.json` holds a hash per case; README.md says when it may be recorded anew.
"""

import json
from functools import cache
from pathlib import Path

import frozen_adapt as adapt
import frozen_cases as cases
import frozen_kernel
import pytest

from skfedcal import _compiled
from skfedcal._compiled import arithmetic, levels
from skfedcal.methods.registry import BUILT_IN, algorithms

HERE = Path(__file__).parent
RELEASED = json.loads((HERE / "released.json").read_text(encoding="utf-8"))
BITS = json.loads((HERE / "released_bits.json").read_text(encoding="utf-8"))


@cache
def in_process(name):
    return cases.run_case(name)


def test_every_case_is_recorded():
    assert sorted(RELEASED) == sorted(cases.CASES)


def test_every_algorithm_and_family_is_released_exactly_and_with_noise():
    exact, noisy = set(), set()
    for name, entry in RELEASED.items():
        for algorithm in entry.get("algorithms", ()):
            (exact if name.endswith("exact") else noisy).update(algorithm.split(" of "))
    every = {*adapt.algorithm_names(), *adapt.family_names()}
    # Sites answer a self-test with public numbers; nothing of rows is released.
    assert exact | noisy == every - {"SelfTest"}
    # The others are solvers of one of the two only.
    assert {"LocalAverage", "VectorMap", "ClassMoments", "ScoreCounts"} <= exact & noisy


# Released by cases of another estimator: an exact FedAuto takes a shape here, and the
# last one is of scores as they are given, in this process only.
ELSEWHERE = {
    "FedAutoCalibrator": {
        "temperature.newton/1",
        "temperature.grid/1",
        "bias_temperature.newton/1",
    },
    "FedHistogramCalibrator": {"scores.counts/1"},
    "ScoreHistogram": {"scores.counts/1"},
}


@pytest.mark.parametrize(
    "method", [m for m in BUILT_IN if m.estimator], ids=lambda m: m.word
)
def test_every_registered_estimator_has_records_of_its_own(method):
    own = {
        name
        for name, (_, fit) in cases.METHODS.items()
        if getattr(fit, "estimator", "") == method.estimator_name
    }
    recorded = {
        algorithm
        for name, entry in RELEASED.items()
        if name.partition(" / ")[0] in own
        for names in entry.get("algorithms", ())
        for algorithm in names.split(" of ")
    }
    wanted = set(method.algorithm_names) - ELSEWHERE.get(method.estimator_name, set())
    missing = {n for n in wanted if algorithms()[n].load().__name__ not in recorded}
    assert not missing, f"add a case of {method.estimator_name} to frozen_cases.py"


@pytest.mark.parametrize("name", RELEASED)
def test_released_integers_are_those_of_the_record(name):
    seen, expected = in_process(name), RELEASED[name]
    if "refused" in expected:
        assert type(seen.error).__name__ == expected["refused"]
        assert not seen.histories
        return
    assert seen.error is None, seen.error
    assert cases.describe(seen) == {
        key: expected[key] for key in ("algorithms", "rounds", "blocks")
    }
    drop = expected["drop"]
    assert cases.integer_digest(seen, drop) == expected["hash"]
    # All bits, where the case was recorded on this processor. They are the rounded ones
    # unless there is a line of its own.
    known = BITS.get(frozen_kernel.kernel())
    if known is not None and (name in known or not drop):
        assert cases.integer_digest(seen) == known.get(name, expected["hash"])
    # All bits of what only the compiled core computes, on every processor.
    core = BITS.get(arithmetic(), {})
    if name in core:
        assert cases.integer_digest(seen) == core[name]


@pytest.mark.skipif(not levels(), reason="no compiled core")
def test_every_level_of_the_core_releases_the_same_bits():
    names = [name for name in BITS[arithmetic()] if name.endswith("/ exact")]
    assert len(names) > 3
    try:
        for level in levels():
            _compiled.core.use(level)
            for name in names:
                found = cases.integer_digest(cases.run_case(name))
                assert found == BITS[arithmetic()][name], (level, name)
    finally:
        _compiled.core.use(levels()[0])


def _same_sums(engine, name):
    here = in_process(name)
    there = cases.run_case(name, engine)
    assert there.error is None, there.error
    assert len(here.histories) == len(there.histories)
    assert cases.digest(there) == cases.digest(here)


def _fits(pairs):
    return [pair for pair in pairs if "refused" not in RELEASED[pair[1]]]


@pytest.mark.parametrize(("engine", "name"), _fits(cases.engine_cases(long=False)))
def test_every_engine_releases_the_same_bits(engine, name):
    _same_sums(engine, name)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "name"), _fits(cases.engine_cases(long=True)))
def test_every_engine_releases_the_same_bits_under_every_model(engine, name):
    # Threads of aggregators of 2 clients cannot open sums of 4 shares; see ENGINES.
    _same_sums(engine, name)
