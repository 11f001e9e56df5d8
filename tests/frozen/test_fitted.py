"""Fitted results and estimates are those of the record, to 1e-9.

Integers that clients send are compared in test_released.py; here is what the server and
the user make of them, on any processor.
"""

import json
from pathlib import Path

import frozen_fitted
import numpy as np
import pytest

RECORD = json.loads((Path(__file__).parent / "fitted.json").read_text(encoding="utf-8"))


def flat(value):
    """Numbers in order; texts such as 'nan' and 'inf' are read as floats."""
    if isinstance(value, list):
        return [x for entry in value for x in flat(entry)]
    return [float(value)]


def test_every_result_is_recorded():
    assert sorted(frozen_fitted.numbers_found()) == sorted(RECORD)


@pytest.mark.parametrize("name", RECORD)
def test_results_are_those_of_the_record(name):
    found, expected = frozen_fitted.numbers_found()[name], RECORD[name]
    # A further fitted attribute is no change of behaviour; one less is.
    assert expected.keys() <= found.keys()
    rtol, atol = 1e-9, 1e-10
    if name.startswith(frozen_fitted.FLOAT32):
        rtol, atol = 1e-5, 1e-6
    for key, value in expected.items():
        np.testing.assert_allclose(
            flat(found[key]), flat(value), rtol=rtol, atol=atol, err_msg=key
        )
