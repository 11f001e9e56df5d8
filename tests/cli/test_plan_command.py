"""``skfedcal plan`` says what public numbers will give."""

import pytest

from skfedcal import CentralDP, forecast
from skfedcal.cli.commands._plan import _rounded_up


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
    # The help that is named is that of the command.
    assert fails(*words, "--eps", "1", "3").endswith("3 (see `skfedcal plan --help`)")


def test_needed_says_which_eps_and_how_many_clients(run, run_json):
    words = (
        "plan",
        "--clients",
        "40",
        "--rows",
        "5",
        "--methods",
        "temp",
        "--fits",
        "1",
    )
    found = run_json(*words, "--eps", "1")
    least = found["eps_needed"]["temperature"]
    # A little more asks the clients, a little less does not.
    for factor, asked in ((1.05, True), (0.95, False)):
        there = forecast(40, 5, eps=factor * least, methods=["temp"], n_fits=1)
        assert there.calibrators["FedTemp"].asked is asked
    for n_clients, asked in ((0, True), (-1, False)):
        n_clients += found["clients_needed"]["temperature"]
        there = forecast(n_clients, 5, eps=1.0, methods=["temp"], n_fits=1)
        assert there.calibrators["FedTemp"].asked is asked
    # Without eps only the first question has an answer; it is the same.
    exact = run_json(*words)
    assert exact["eps_needed"] == found["eps_needed"]
    assert "clients_needed" not in exact
    assert "eps_needed" not in run_json(*words, "--eps", "1", "--model", "distributed")
    out = run(*words, "--eps", "1")[1]
    assert (
        f"fit a temperature at all {least:.2g} {found['clients_needed']['temperature']}"
        in (" ".join(out.split()))
    )


@pytest.mark.parametrize(
    ("eps", "text"),
    [
        (0.1601, 0.17),
        (0.16, 0.16),
        (0.28, 0.28),
        (2.0, 2),
        (12.01, 13),
        (3.1e-4, 3.1e-4),
    ],
)
def test_a_needed_eps_is_never_rounded_down(eps, text):
    found = float(f"{_rounded_up(eps):g}")
    assert found == text and found >= eps
