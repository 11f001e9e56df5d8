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
    # All bits, where the processor is one that was recorded.
    known = BITS.get(frozen_kernel.kernel())
    if known is not None:
        assert cases.integer_digest(seen) == known.get(name, expected["hash"])


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
