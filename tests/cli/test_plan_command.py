"""``skfedcal plan`` says what public numbers will give."""

import pytest

from skfedcal import CentralDP, forecast


def test_the_command_prints_the_forecast(run, run_json):
    words = ("plan", "--clients", "40", "--rows", "5", "--classes", "3", "--eps", "1",
             "--methods", "temp", "--fits", "2")  # fmt: skip
    found = run_json(*words)
    expected = forecast(40, 5, n_classes=3, eps=1.0, methods=["temp"], n_fits=2)
    assert found["advice"] == expected.advice
    assert found["widths"] == pytest.approx(expected.to_dict()["widths"])
    code, out, _ = run(*words)
    assert code == 0 and out.splitlines()[-1] == expected.advice


def test_unit_and_model(run_json):
    words = ("plan", "--clients", "3", "--rows", "200", "--eps", "1", "--methods",
             "temp", "--fits", "2")  # fmt: skip
    by_client, by_row = run_json(*words), run_json(*words, "--unit", "example")
    assert by_client["signal"] < 1 < by_row["signal"]
    assert not by_client["calibrators"]["FedTemp"]["asked"]
    assert by_row["calibrators"]["FedTemp"]["asked"]
    assert by_row["privacy"] == repr(CentralDP(1.0, unit="example"))
    local = run_json(*words, "--model", "local")
    assert local["calibrators"] == {} and "LocalDP" in local["privacy"]
    assert "SourceDP" in run_json(*words, "--model", "source")["privacy"]


def test_options_that_have_no_effect_are_errors(fails):
    words = ("plan", "--clients", "3", "--rows", "2")
    assert "--unit needs --eps" in fails(*words, "--unit", "client")
    assert "--model local needs --eps" in fails(*words, "--model", "local")
    assert "not an option of --model local" in fails(
        *words, "--eps", "1", "--model", "local", "--delta", "1e-6"
    )
    assert "'0' is not a whole number" in fails("plan", "--clients", "0", "--rows", "2")
