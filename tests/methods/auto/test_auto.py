"""FedAutoCalibrator: held-back loss or public numbers choose, then the method fits."""

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from skfedcal import (
    CentralDP,
    FedAutoCalibrator,
    FedBiasTempCalibrator,
    FederatedRunner,
    FedShapeCalibrator,
    FedTempCalibrator,
    PrivacyLedger,
    load,
    make_federation,
)
from skfedcal._sklearn_compat import HAS_CALLBACKS
from skfedcal.cli import main
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.base import FitSetting
from skfedcal.methods.shape.rounds import MapNewton

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
]
quiet = pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")

BIAS = "FedBiasTempCalibrator()"
TEMP = "FedTempCalibrator()"
GRID = "FedTempCalibrator(solver='grid')"
SHAPE = "FedShapeCalibrator()"
KEPT = "FedShapeCalibrator(keep_order=True)"
BOTH = "FedShapeCalibrator(biases=True)"
UNIFORM = "FedShapeCalibrator(class_prior='uniform')"
ORDER = f"one of none, {TEMP}, FedShapeCalibrator(biases=False)"
FEW = f"{ORDER}, {BIAS}, FedShapeCalibrator(biases=True)"
ALL = f"{FEW}, FedShapeCalibrator(matrix=True)"
PRIORS = [None, "private", "uniform"]


def rounds(n):
    return {"runner": FederatedRunner(n_rounds=n)}


def cohort(kind, size=20, **params):
    return {"runner": FederatedRunner(cohort=kind, cohort_size=size, **params)}


@pytest.mark.parametrize(
    ("params", "n_classes", "choice"),
    [
        ({}, 10, ALL),
        ({"class_prior": "uniform"}, 10, ALL),
        ({"strict": True}, 10, ALL),
        ({}, 21, FEW),
        ({}, 50, ORDER),
        (rounds(11), 10, ALL),
        (rounds(10), 10, FEW),
        (rounds(6), 10, FEW),
        (rounds(5), 10, BIAS),
        (rounds(3), 10, BIAS),
        (rounds(2), 10, GRID),
        (rounds(1), 10, GRID),
        ({"keep_order": True}, 10, ORDER),
        ({"keep_order": True, **rounds(6)}, 10, ORDER),
        ({"keep_order": True, **rounds(4)}, 10, GRID),
        (cohort("full"), 10, ALL),
        (cohort("permuted"), 10, GRID),
        (cohort("independent", n_rounds=9), 10, GRID),
        (cohort("poisson", n_rounds=9), 10, GRID),
        (cohort("poisson", size=100), 10, ALL),
        (cohort("permuted", size=None), 10, ALL),
        ({"eps": 0.5, "class_prior": "uniform"}, 10, UNIFORM),
        ({"eps": 0.1, "class_prior": "uniform"}, 10, TEMP),
        ({"eps": 3.0}, 10, SHAPE),
        ({"eps": 1.0}, 10, SHAPE),
        ({"eps": 1.0, "class_prior": "private"}, 10, SHAPE),
        ({"privacy": CentralDP(1.0), "class_prior": "uniform"}, 10, UNIFORM),
        ({"eps": 1.0, "class_prior": "uniform"}, 100, UNIFORM),
        (
            {"eps": 1.0, "class_prior": np.arange(1, 11)},
            10,
            "FedShapeCalibrator(class_prior=[...])",
        ),
        ({"eps": 9.0, "class_prior": "uniform", "keep_order": True}, 10, KEPT),
        ({"privacy": CentralDP(9.0, unit="example")}, 10, SHAPE),
        ({"eps": 9.0, "class_prior": "uniform", **rounds(4)}, 10, UNIFORM),
        ({"eps": 9.0, "class_prior": "uniform", **rounds(3)}, 10, TEMP),
        ({"eps": 9.0, "class_prior": "uniform", **cohort("full")}, 10, UNIFORM),
        ({"eps": 9.0, "class_prior": "uniform", **cohort("permuted")}, 10, TEMP),
    ],
)
def test_the_choice_for_100_clients(params, n_classes, choice):
    found, reason = FedAutoCalibrator(**params).explain(100, n_classes)
    assert found == choice
    assert reason.endswith(".") and reason.count(". ") == 0


@pytest.mark.parametrize(
    ("n_clients", "strength", "estimator"),
    [
        # The signal is the number of clients times mu.
        (100, 0.0801, FedShapeCalibrator),
        (100, 0.0799, FedTempCalibrator),
        (10, 0.81, FedShapeCalibrator),
        (10, 0.79, FedTempCalibrator),
        (10, 0.01, FedTempCalibrator),
    ],
)
@pytest.mark.parametrize("unit", ["client", "example"])
@pytest.mark.parametrize("prior", PRIORS)
def test_edges_of_the_rule_under_noise(prior, unit, n_clients, strength, estimator):
    setting = FitSetting(10, True, unit, False, n_clients, strength, n_units=n_clients)
    choice = FedAutoCalibrator(1.0, class_prior=prior)._choose(setting)
    assert choice.estimator is estimator
    assert f"{n_clients} {'rows' if unit == 'example' else 'clients'}" in choice.reason


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
def test_the_choice_under_noise_depends_on_no_data(data):
    n_clients = data.draw(st.sampled_from([1, 2, 30, 60, 80]))
    n_classes = data.draw(st.integers(2, 4))
    params = {
        "eps": data.draw(st.sampled_from([0.01, 0.3, 1.0, 8.0])),
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
    BIAS: (rounds(4), FedBiasTempCalibrator(**rounds(4))),
    GRID: (
        {"random_state": 0, **cohort("permuted")},
        FedTempCalibrator(solver="grid", random_state=0, **cohort("permuted")),
    ),
    TEMP: ({"eps": 0.3, "random_state": 0}, FedTempCalibrator(0.3, random_state=0)),
    KEPT: (
        {"eps": 3.0, "keep_order": True, "random_state": 0},
        FedShapeCalibrator(3.0, keep_order=True, random_state=0),
    ),
    UNIFORM: (
        {"eps": 3.0, "class_prior": "uniform", "random_state": 0},
        FedShapeCalibrator(3.0, class_prior="uniform", random_state=0),
    ),
    "identity": (
        {"eps": 0.01, "random_state": 1},
        FedTempCalibrator(0.01, random_state=1),
    ),
}
# Chosen by held-back rows: what is chosen is the optimum of all rows.
HELD_BACK = "held back"


def over_cases(test):
    return pytest.mark.parametrize("name", [*CASES, HELD_BACK])(quiet(test))


def fitted_case(name, labels=None, dtype=np.float64):
    params = {} if name == HELD_BACK else CASES[name][0]
    clients = draw_clients(80, 3, seed=0, dtype=dtype)
    # Far too sure, so that private fits see it.
    clients = [(3 * rows, own) for rows, own in clients]
    if labels is not None:
        params = {**params, "classes": labels}
        clients = [(rows, np.array(labels)[own]) for rows, own in clients]
    rows = np.concatenate([rows for rows, _ in clients])
    return FedAutoCalibrator(**params).fit(clients), clients, rows


@quiet
@pytest.mark.parametrize("name", CASES)
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
    auto, _, _ = fitted_case(HELD_BACK, ["c", "a", "b"])
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
    assert "signal" in auto.reason_
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


def noisy_labels(n, c, seed, bias=0.0, noise=0.1):
    """Rows of a model with label noise, which a shape corrects, and class bias."""
    rng = np.random.default_rng(seed)
    true = 2 * rng.normal(size=(n, c))
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    labels = np.where(rng.random(n) < noise, rng.integers(0, c, n), labels)
    return 2.5 * true + bias * np.arange(c), labels


def loss_of(cal, logits, labels):
    return -cal.predict_log_proba(logits)[np.arange(len(labels)), labels].mean()


@pytest.mark.parametrize(
    ("bias", "noise", "params", "choices"),
    [
        (0.0, 0.0, {}, {TEMP, "FedShapeCalibrator(biases=False)", BIAS}),
        (0.0, 0.15, {}, {"FedShapeCalibrator(biases=False)", BOTH}),
        (1.0, 0.15, {}, {BOTH}),
        (1.0, 0.15, {"keep_order": True}, {KEPT}),
        (0.0, 0.0, {"strict": True}, {TEMP}),
    ],
)
def test_held_back_rows_choose_the_map_that_fits(bias, noise, params, choices):
    logits, labels = noisy_labels(4000, 4, 0, bias, noise)
    auto = FedAutoCalibrator(**params).fit(
        logits, labels, client_ids=np.arange(4000) % 8
    )
    assert auto.choice_ in choices
    assert re.search(r"held-back rows chose (T|S|B|BS): none \d\.\d+, ", auto.reason_)
    test = noisy_labels(4000, 4, 1, bias, noise)
    temperature = FedTempCalibrator().fit(logits, labels)
    assert loss_of(auto, *test) < loss_of(temperature, *test) + 1e-3


@pytest.mark.parametrize("n_rows", [200, 400])
def test_a_matrix_needs_evidence_and_not_many_rows_per_class(n_rows):
    # Ten classes, of which the model takes every other for the next one.
    logits, labels = noisy_labels(n_rows + 4000, 10, 0, noise=0.0)
    mixed = logits + 0.8 * np.where(np.arange(10) % 2, np.roll(logits, 1, axis=1), 0)
    for model, matrix in ((mixed, True), (logits, False)):
        auto = FedAutoCalibrator(classes=range(10)).fit(model[:n_rows], labels[:n_rows])
        assert (auto.choice_ == "FedShapeCalibrator(matrix=True)") == matrix
        test = model[n_rows:], labels[n_rows:]
        best = FedShapeCalibrator(biases=True, classes=range(10))
        best.fit(model[:n_rows], labels[:n_rows])
        assert loss_of(auto, *test) < (0.95 if matrix else 1.0) * loss_of(best, *test)


def test_a_matrix_keeps_the_ridge_of_its_first_fit():
    logits, labels = noisy_labels(600, 6, 0, noise=0.0)
    logits = logits + np.where(np.arange(6) % 2, np.roll(logits, 1, axis=1), 0)
    data = FederatedDataset(logits, labels, np.array([0, 600]), range(1), 6)
    algorithm = MapNewton(kinds=("T", "S", "B", "BS", "SM"), choose=True)
    state, ridges = algorithm.init(6), []
    while not algorithm.done(state):
        answer = algorithm.query(algorithm.broadcast(state), data)
        total = {name: rows.sum(axis=0) for name, rows in answer.items()}
        state = algorithm.update(state, total, 1)
        ridges.append(state.ridge.tolist())
    assert state.kind == "SM"
    assert [r for r in ridges if any(r)] == [ridges[-1]] * sum(map(any, ridges))
    assert 0 < state.n_free < 6 * 7


def test_the_chosen_map_is_fitted_to_all_rows():
    logits, labels = noisy_labels(3000, 4, 0, 1.0, 0.15)
    ids = np.arange(3000) % 8
    auto = FedAutoCalibrator().fit(logits, labels, client_ids=ids)
    assert auto.choice_ == "FedShapeCalibrator(biases=True)"
    direct = FedShapeCalibrator(biases=True).fit(logits, labels, client_ids=ids)
    np.testing.assert_allclose(auto.calibrator_.bias_, direct.bias_, atol=2e-4)
    np.testing.assert_allclose(
        auto.predict_proba(logits), direct.predict_proba(logits), atol=2e-4
    )


def test_a_model_that_is_calibrated_is_left_alone_or_hardly_changed():
    changes = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        logits = 1.5 * rng.normal(size=(500, 3))
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        auto = FedAutoCalibrator(strict=True, classes=range(3)).fit(logits, labels)
        changes.append(auto.choice_ != "none")
        if auto.choice_ == "none":
            np.testing.assert_allclose(
                auto.predict_log_proba(logits),
                log_softmax(logits, axis=1),
                rtol=1e-12,
                atol=1e-12,
            )
            assert "chose none" in auto.reason_
    # One standard error is passed by chance in 16 %, by the best of five in more.
    assert sum(changes) <= 10


def test_few_rows_hold_nothing_back():
    logits, labels = noisy_labels(60, 3, 0, 0.0, 0.0)
    auto = FedAutoCalibrator(classes=range(3)).fit(logits, labels)
    assert auto.choice_ == TEMP
    assert "all rows" in auto.reason_
    assert auto.calibrator_.temperature_ == pytest.approx(
        FedTempCalibrator(classes=range(3)).fit(logits, labels).temperature_, rel=1e-4
    )


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
        ({}, [(4 * np.eye(3), np.arange(3))] * 50),
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
        ({"clip": 1.0, "eps": 9.0}, "clip=1.0 is not used by a shape"),
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
    auto, clients, rows = fitted_case(HELD_BACK)
    before, inner, choice = auto.predict_proba(rows), auto.calibrator_, auto.choice_
    auto.set_params(eps=1.0, ledger=PrivacyLedger(budget=(0.5, 1e-5)))
    with pytest.raises(Exception, match="budget"):
        auto.fit(clients)
    assert auto.choice_ == choice
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
    assert re.search("held-back rows chose [A-Z]+: none", capsys.readouterr().out)
    assert main([*words, "--eps", "0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["choice"] == TEMP
    assert load(output).choice_ == TEMP


def test_the_gain_is_a_paired_difference_on_held_back_rows():
    from skfedcal import federated_compare_scores

    fed = make_federation(60, 6000, 4, class_bias=0.5, random_state=0)
    cal = FedAutoCalibrator().fit(fed.clients)
    after = [(np.log(cal.predict_proba(z)), y) for z, y in fed.clients]
    again = federated_compare_scores(
        fed.clients, after, metric="log_loss", held_back=True, population="rows"
    )
    # The chosen map is fitted further with all rows, these among them.
    assert cal.gain_ == pytest.approx(-float(again), rel=0.1)
    assert cal.gain_.se_sampling == pytest.approx(again.se_sampling, rel=0.1)
    assert 0 < cal.gain_.low < cal.gain_ < cal.gain_.high
    assert cal.gain_.population == "rows" and "held-back" in cal.gain_.estimand
    few = FedAutoCalibrator().fit([(z[:2], y[:2]) for z, y in fed.clients[:10]])
    assert few.gain_ is None


@pytest.mark.parametrize("method", ["predict_proba", "predict", "decision_function"])
@pytest.mark.parametrize("shape", [(3, 4), (0, 10)])
def test_rows_are_refused_by_the_name_of_the_class(method, shape):
    fed = make_federation(20, 1000, random_state=0)
    fitted = FedAutoCalibrator().fit(fed.clients)
    with pytest.raises(ValueError, match="FedAutoCalibrator") as refused:
        getattr(fitted, method)(np.zeros(shape))
    assert type(fitted.calibrator_).__name__ not in str(refused.value)
