"""FedAutoCalibrator: a choice from public numbers, and then the method itself."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skfedcal import (
    CentralDP,
    FedAutoCalibrator,
    FedBiasTempCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    PrivacyLedger,
    load,
    make_federation,
)
from skfedcal._sklearn_compat import HAS_CALLBACKS
from skfedcal.cli import main
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.base import FitSetting

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
]
quiet = pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")

BINS = "FedBiasTempCalibrator(residual='bins')"
BIAS = "FedBiasTempCalibrator()"
TEMP = "FedTempCalibrator()"
GRID = "FedTempCalibrator(solver='grid')"
UNIFORM = "FedBiasTempCalibrator(class_prior='uniform')"
PRIORS = [None, "private", "uniform"]


def rounds(n):
    return {"runner": FederatedRunner(n_rounds=n)}


def cohort(kind, size=20, **params):
    return {"runner": FederatedRunner(cohort=kind, cohort_size=size, **params)}


@pytest.mark.parametrize(
    ("params", "n_classes", "choice"),
    [
        ({}, 10, BINS),
        ({"class_prior": "uniform"}, 10, BINS),
        ({}, 100, "FedBiasTempCalibrator(residual='bins', ridge=0.001)"),
        (rounds(6), 10, BINS),
        (rounds(5), 10, BIAS),
        (rounds(3), 10, BIAS),
        (rounds(2), 10, GRID),
        (rounds(1), 10, GRID),
        ({"keep_order": True}, 10, TEMP),
        ({"keep_order": True, **rounds(6)}, 10, TEMP),
        ({"keep_order": True, **rounds(4)}, 10, GRID),
        (cohort("full"), 10, BINS),
        (cohort("permuted"), 10, GRID),
        (cohort("independent", n_rounds=9), 10, GRID),
        (cohort("poisson", n_rounds=9), 10, GRID),
        (cohort("poisson", size=100), 10, BINS),
        (cohort("permuted", size=None), 10, BINS),
        ({"eps": 0.5, "class_prior": "uniform"}, 10, UNIFORM),
        ({"eps": 0.1, "class_prior": "uniform"}, 10, TEMP),
        ({"eps": 3.0}, 10, "FedBiasTempCalibrator(class_prior=None)"),
        ({"eps": 1.0}, 10, TEMP),
        ({"eps": 1.0, "class_prior": "private"}, 10, TEMP),
        ({"privacy": CentralDP(1.0), "class_prior": "uniform"}, 10, UNIFORM),
        ({"eps": 1.0, "class_prior": "uniform"}, 100, TEMP),
        ({"eps": 3.0, "class_prior": "uniform"}, 100, UNIFORM),
        (
            {"eps": 1.0, "class_prior": np.arange(1, 11)},
            10,
            "FedBiasTempCalibrator(class_prior=[...])",
        ),
        ({"eps": 9.0, "class_prior": "uniform", "keep_order": True}, 10, TEMP),
        (
            {"privacy": CentralDP(9.0, unit="example"), "class_prior": "uniform"},
            10,
            TEMP,
        ),
        ({"eps": 9.0, "class_prior": "uniform", **rounds(3)}, 10, UNIFORM),
        ({"eps": 9.0, "class_prior": "uniform", **rounds(2)}, 10, TEMP),
        ({"eps": 9.0, "class_prior": "uniform", **cohort("full")}, 10, UNIFORM),
        ({"eps": 9.0, "class_prior": "uniform", **cohort("permuted")}, 10, TEMP),
    ],
)
def test_the_choice_for_100_clients(params, n_classes, choice):
    found, reason = FedAutoCalibrator(**params).explain(100, n_classes)
    assert found == choice
    assert reason.endswith(".") and reason.count(". ") == 0


# Clients and classes of the files fed_adult_gbm, fed_tv16_mlp and fed_wisdm_mlp.
@pytest.mark.parametrize(("n_clients", "n_classes"), [(15, 2), (51, 2), (24, 6)])
@pytest.mark.parametrize("eps", [0.1, 0.5, 1.0, 3.0])
def test_few_clients_get_a_temperature(n_clients, n_classes, eps):
    for prior in [*PRIORS, np.ones(n_classes)]:
        auto = FedAutoCalibrator(eps, class_prior=prior)
        assert auto.explain(n_clients, n_classes)[0] == TEMP


@pytest.mark.parametrize(
    ("prior", "n_clients", "n_classes", "strength", "estimator"),
    [
        # The signal is K mu, over sqrt(c / 10) beyond 10 classes.
        ("uniform", 100, 10, 0.1001, FedBiasTempCalibrator),
        ("uniform", 100, 10, 0.0999, FedTempCalibrator),
        ("uniform", 100, 2, 0.0999, FedTempCalibrator),
        ("uniform", 100, 40, 0.2001, FedBiasTempCalibrator),
        ("uniform", 100, 40, 0.1999, FedTempCalibrator),
        ("uniform", 60, 10, 9.0, FedBiasTempCalibrator),
        ("uniform", 59, 10, 9.0, FedTempCalibrator),
        (None, 100, 10, 0.4001, FedBiasTempCalibrator),
        (None, 100, 10, 0.3999, FedTempCalibrator),
        ("private", 100, 10, 0.4001, FedBiasTempCalibrator),
        ("private", 100, 10, 0.3999, FedTempCalibrator),
    ],
)
def test_edges_of_the_rule_under_noise(
    prior, n_clients, n_classes, strength, estimator
):
    setting = FitSetting(n_classes, True, "client", False, n_clients, strength)
    choice = FedAutoCalibrator(1.0, class_prior=prior)._choose(setting)
    assert choice.estimator is estimator
    assert f"{n_clients} clients" in choice.reason


def draw_clients(n_clients, n_classes, seed, temperature=2.0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n_clients):
        true = 1.5 * rng.normal(size=(4, n_classes))
        labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
        out.append(((temperature * true).astype(dtype), labels))
    return out


@quiet
@settings(max_examples=25)
@given(data=st.data())
def test_the_choice_depends_on_no_data(data):
    n_clients = data.draw(st.sampled_from([1, 2, 30, 60, 80]))
    n_classes = data.draw(st.integers(2, 4))
    params = {
        "eps": data.draw(st.sampled_from([None, 0.3, 1.0, 8.0])),
        "class_prior": data.draw(st.sampled_from(PRIORS)),
        "keep_order": data.draw(st.booleans()),
        "classes": np.arange(n_classes),
        **rounds(data.draw(st.sampled_from([None, 1, 4, 7]))),
    }
    found = set()
    for _ in range(2):
        # Other values, labels and numbers of rows at as many clients.
        scale = data.draw(st.sampled_from([0.0, 1e-3, 2.0, 1e4]))
        clients = draw_clients(n_clients, n_classes, data.draw(st.integers(0, 99)))
        keep = data.draw(st.integers(0, 4))
        one_label = data.draw(st.booleans())
        clients = [
            (scale * rows[:n], np.zeros(n, dtype=int) if one_label else labels[:n])
            for n, (rows, labels) in zip(
                [4, *[keep] * (n_clients - 1)], clients, strict=True
            )
        ]
        fitted = FedAutoCalibrator(**params).fit(clients)
        found.add((fitted.choice_, fitted.reason_))
    found.add(FedAutoCalibrator(**params).explain(n_clients, n_classes))
    assert len(found) == 1


CASES = {
    BINS: ({}, FedBiasTempCalibrator(residual="bins")),
    BIAS: (rounds(4), FedBiasTempCalibrator(**rounds(4))),
    TEMP: ({"keep_order": True}, FedTempCalibrator()),
    GRID: (
        {"random_state": 0, **cohort("permuted")},
        FedTempCalibrator(solver="grid", random_state=0, **cohort("permuted")),
    ),
    "private " + TEMP: (
        {"eps": 3.0, "keep_order": True, "random_state": 0},
        FedTempCalibrator(3.0, random_state=0),
    ),
    UNIFORM: (
        {"eps": 3.0, "class_prior": "uniform", "random_state": 0},
        FedBiasTempCalibrator(3.0, class_prior="uniform", random_state=0),
    ),
    "identity": (
        {"eps": 0.01, "random_state": 1},
        FedTempCalibrator(0.01, random_state=1),
    ),
}


def over_cases(test):
    return pytest.mark.parametrize("name", CASES)(quiet(test))


def fitted_case(name, labels=None, dtype=np.float64):
    params, _ = CASES[name]
    clients = draw_clients(80, 3, seed=0, dtype=dtype)
    # Far too sure, so that private fits see it.
    clients = [(3 * rows, own) for rows, own in clients]
    if labels is not None:
        params = {**params, "classes": labels}
        clients = [(rows, np.array(labels)[own]) for rows, own in clients]
    rows = np.concatenate([rows for rows, _ in clients])
    return FedAutoCalibrator(**params).fit(clients), clients, rows


@over_cases
def test_a_fit_is_that_of_the_chosen_method(name):
    auto, clients, rows = fitted_case(name)
    direct = CASES[name][1].fit(clients)
    assert auto.choice_ in (name, TEMP)
    assert type(auto.calibrator_) is type(direct)
    assert auto.predict_proba(rows).tobytes() == direct.predict_proba(rows).tobytes()
    assert auto.improves_ == direct.improves_ == (name != "identity")
    assert auto.n_rounds_ == direct.n_rounds_ == len(auto.history_)
    assert replace(auto.privacy_, ledger_ids=direct.privacy_.ledger_ids) == (
        direct.privacy_
    )


@over_cases
def test_the_chosen_calibrator_works_by_itself(name, tmp_path):
    auto, _, rows = fitted_case(name, ["c", "a", "b"], np.float32)
    inner = auto.calibrator_
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        a, b = getattr(auto, method)(rows), getattr(inner, method)(rows)
        assert a.dtype == b.dtype == np.float32
        assert a.tobytes() == b.tobytes()
    assert inner.predict(rows).tolist() == auto.predict(rows).tolist()
    assert inner.n_clients_ == 80
    assert inner.history_ is auto.history_
    inner.save(tmp_path / "cal.json")
    again = load(tmp_path / "cal.json")
    assert again.predict_proba(rows).tobytes() == auto.predict_proba(rows).tobytes()


@over_cases
def test_save_and_load_keep_every_bit(name, tmp_path):
    auto, clients, rows = fitted_case(name, ["c", "a", "b"])
    path, second = tmp_path / "cal.json", tmp_path / "again.json"
    auto.save(path)
    again = load(path)
    assert type(again) is FedAutoCalibrator
    assert (again.choice_, again.reason_) == (auto.choice_, auto.reason_)
    assert again.privacy_ == again.calibrator_.privacy_ == auto.privacy_
    for one in (again, again.calibrator_):
        assert one.predict_proba(rows).tobytes() == auto.predict_proba(rows).tobytes()
        assert one.improves_ is auto.improves_
    again.save(second)
    assert second.read_text() == path.read_text()
    assert again.fit(clients).classes_.tolist() == ["a", "b", "c"]


@quiet
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fitted: fitted.update(calibrator_=3), "not one of"),
        (lambda fitted: fitted.update(choice_=3), "choice_ is not a text"),
        (lambda fitted: fitted.pop("reason_"), "missing"),
        (
            lambda fitted: fitted["calibrator_"]["calibrator"].update(
                estimator="FedBinCalibrator"
            ),
            "damaged",
        ),
        (
            lambda fitted: fitted["calibrator_"]["calibrator"].update(
                columns={"array": [0, 1, 2], "dtype": "<i8", "shape": [3]}
            ),
            "other classes",
        ),
        (
            lambda fitted: fitted["calibrator_"]["calibrator"]["fitted"].update(
                temperature_=-1.0
            ),
            "not positive",
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    auto, _, _ = fitted_case(BINS, ["c", "a", "b"])
    path = tmp_path / "cal.json"
    auto.save(path)
    content = json.loads(path.read_text())
    change(content["fitted"])
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load(path)


def test_one_fit_is_one_debit():
    clients, ledger = draw_clients(80, 3, seed=0), PrivacyLedger()
    auto = FedAutoCalibrator(3.0, class_prior="uniform", ledger=ledger).fit(clients)
    assert auto.choice_ == UNIFORM
    assert len(ledger) == 1
    assert ledger.spent(auto.privacy_.delta) == pytest.approx(3.0, rel=1e-3)
    assert auto.calibrator_.ledger is ledger


def test_order_and_accuracy_are_kept():
    fed = make_federation(60, 3000, class_bias=1.0, n_test=500, random_state=0)
    for eps in (None, 8.0):
        params = {"class_prior": "uniform", "random_state": 0}
        free = FedAutoCalibrator(eps, **params).fit(fed.clients)
        kept = FedAutoCalibrator(eps, keep_order=True, **params).fit(fed.clients)
        before = fed.test_logits.argmax(axis=1)
        assert (kept.predict(fed.test_logits) == before).all()
        assert (free.predict(fed.test_logits) != before).mean() > 0.02


def test_cohorts_that_leave_clients_out_add_up_to_the_optimum(optimum):
    clients = draw_clients(80, 3, seed=0)
    auto = FedAutoCalibrator(random_state=0, **cohort("permuted")).fit(clients)
    rows, labels = (np.concatenate(part) for part in zip(*clients, strict=True))
    assert auto.n_rounds_ == 4
    assert auto.calibrator_.temperature_ == pytest.approx(optimum(rows, labels), 1e-6)


@pytest.mark.parametrize(
    ("params", "clients"),
    [
        # No minimum: all rows are right. Too few rounds. No more than noise.
        ({}, [(4 * np.eye(3), np.arange(3))] * 9),
        (rounds(3), [(z + [0, 6, -6], y) for z, y in draw_clients(9, 3, seed=0)]),
        ({"eps": 0.01, "random_state": 1}, draw_clients(80, 3, seed=0)),
        ({"eps": 0.01, "random_state": 1, "if_improves": False},
         draw_clients(80, 3, seed=0)),
    ],
)  # fmt: skip
def test_a_warning_appears_once_and_points_here(params, clients):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        FedAutoCalibrator(**params).fit(clients)
    found = [w for w in found if issubclass(w.category, CalibrationWarning)]
    assert len(found) == 1
    assert found[0].filename == __file__


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"class_prior": [1.0, 2.0]}, "must hold 3 positive numbers"),
        ({"eps": 0.1, "class_prior": [1.0, 2.0]}, "must hold 3 positive numbers"),
        ({"class_prior": "balanced"}, "'class_prior' parameter"),
        ({"keep_order": "yes"}, "'keep_order' parameter"),
        ({"clip": 1.0}, "clip=1.0 is not used without eps"),
        (rounds(0), "n_rounds=0"),
        (cohort("permuted", size="all"), "cohort_size='all'"),
        (cohort("some"), "cohort='some'"),
    ],
)
def test_wrong_parameters_are_refused_and_leave_nothing(params, message):
    auto = FedAutoCalibrator(**params)
    with pytest.raises(ValueError, match=message):
        auto.fit(draw_clients(30, 3, seed=0))
    assert not hasattr(auto, "choice_")
    if "clip" not in params:
        with pytest.raises(ValueError, match=message):
            auto.explain(30, 3)


@quiet
def test_a_refused_fit_keeps_the_old_one():
    auto, clients, rows = fitted_case(BINS)
    before, inner = auto.predict_proba(rows), auto.calibrator_
    auto.set_params(eps=1.0, ledger=PrivacyLedger(budget=(0.5, 1e-5)))
    with pytest.raises(Exception, match="budget"):
        auto.fit(clients)
    assert auto.choice_ == BINS
    assert auto.calibrator_ is inner
    assert auto.predict_proba(rows).tobytes() == before.tobytes()


class Keeper:
    """Callback that keeps the estimator of each round."""

    def __init__(self):
        self.seen = []

    def setup(self, estimator, context): ...
    def teardown(self, estimator, context): ...
    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.task_name == "round":
            self.seen.append(fitted_estimator)


@pytest.mark.skipif(not HAS_CALLBACKS, reason="callbacks came with scikit-learn 1.9")
def test_callbacks_keep_the_map_of_their_round():
    keeper, clients = Keeper(), draw_clients(20, 3, seed=0)
    auto = FedAutoCalibrator().set_callbacks(keeper).fit(clients)
    temperatures = [seen.calibrator_.temperature_ for seen in keeper.seen]
    assert temperatures[0] != temperatures[-1] == auto.calibrator_.temperature_
    rows = clients[0][0]
    first, last = (keeper.seen[i].predict_proba(rows) for i in (0, -1))
    assert not np.array_equal(first, last)
    np.testing.assert_array_equal(last, auto.predict_proba(rows))


@quiet
def test_the_command_line_tells_the_choice(tmp_path, capsys):
    clients = draw_clients(30, 3, seed=0)
    rows, labels = (np.concatenate(part) for part in zip(*clients, strict=True))
    source, output = tmp_path / "model.npz", tmp_path / "cal.json"
    ids = np.repeat(np.arange(30), 4)
    np.savez(source, logits=rows, labels=labels, client=ids)
    words = ["fit", source, "--method", "auto", "-q", "--force", "-o", output]
    words = [str(word) for word in words]
    assert main(words) == 0
    assert BINS in capsys.readouterr().out
    assert main([*words, "--eps", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["choice"] == TEMP
    assert load(output).choice_ == TEMP
