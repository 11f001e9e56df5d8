"""Do no harm: with hold_back no exact fit is worse than its input on held-back rows."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.base import clone

from skfedcal import (
    FedAccTempCalibrator,
    FedAutoCalibrator,
    FedBinCalibrator,
    FederatedRunner,
    FedMatrixCalibrator,
    FedTempCalibrator,
    PrivacyLedger,
    load,
    make_federation,
)
from skfedcal.cli import main
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.exceptions import CalibrationWarning
from skfedcal.federation import (
    InProcessTransport,
    RemoteClients,
    Site,
    SitePolicy,
    SiteRows,
)
from skfedcal.methods import base
from skfedcal.methods.base import BaseCalibrator
from skfedcal.methods.held_back import MapLosses, comparison, map_losses
from skfedcal.methods.own_rows import held_back_rows
from skfedcal.methods.registry import methods

pytestmark = pytest.mark.filterwarnings("ignore::skfedcal.exceptions.LogitsWarning")
quiet = pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
EXACT = [
    (method, case)
    for method in methods("calibrator")
    # Maps of scores as they are given are those of scikit-learn, with all rows.
    if method.load()._rows == "logits"
    for case in method.cases
    if not {"eps", "privacy"} & set(case.params)
]
IDS = [f"{m.estimator_name}-{i}" for i, (m, _) in enumerate(EXACT)]
over_methods = pytest.mark.parametrize(("method", "case"), EXACT, ids=IDS)


def made(method, case, **params):
    """Calibrator of a case; methods of other packages may lack the parameter."""
    cal = method.load()(**{**case.params, **params})
    cal.hold_back = True
    return cal


# Federations of probabilities that invite harm.


def drawn(rng, n_rows, n_classes, scale):
    """Probabilities of a model that is too confident by a factor."""
    true = 1.5 * rng.normal(size=(n_rows, n_classes))
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    weights = np.exp(scale * true)
    return weights / weights.sum(axis=1, keepdims=True), labels


def tiny(rng, n_classes):
    return [drawn(rng, int(n), n_classes, 2.0) for n in rng.integers(0, 6, 7)]


def one_class(rng, n_classes):
    rows, labels = drawn(rng, 150, n_classes, 2.0)
    return [(rows[labels == k], labels[labels == k]) for k in range(n_classes)]


def zeros(rng, n_classes):
    """Shares of five votes: many are exactly 0, also of true classes."""
    law = rng.dirichlet(np.full(n_classes, 0.5), size=120)
    votes = np.array([rng.multinomial(5, p) for p in law]) / 5
    labels = np.array([rng.choice(n_classes, p=p) for p in law])
    return [(votes[i::4], labels[i::4]) for i in range(4)]


def calibrated(rng, n_classes):
    rows, labels = drawn(rng, 160, n_classes, 1.0)
    return [(rows[i::5], labels[i::5]) for i in range(5)]


def shuffled(rng, n_classes):
    """Labels that have nothing to do with confident scores."""
    rows, _ = drawn(rng, 120, n_classes, 4.0)
    return [(rows[i::4], rng.integers(0, n_classes, 30)) for i in range(4)]


FEDERATIONS = [tiny, one_class, zeros, calibrated, shuffled]


def held_rows(clients, n_classes):
    """Rows and labels that clients hold back."""
    offsets = np.cumsum([0] + [len(y) for _, y in clients])
    rows, labels = (np.concatenate([c[i] for c in clients]) for i in (0, 1))
    data = FederatedDataset(rows, labels, offsets, range(len(clients)), n_classes)
    held = held_back_rows(data, held=True).compact()
    return held.rows, held.labels


def without_zeros(proba):
    """The input as it is read: a probability of 0 is below exp(-12)."""
    with np.errstate(divide="ignore"):
        logs = np.log(proba)
    least = np.where(proba > 0, logs, 0).min(axis=1, keepdims=True)
    logs = np.where(proba > 0, logs, np.minimum(least, -12.0))
    return np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)


def scores(proba, labels):
    """Mean log loss and Brier score, by plain numpy."""
    own = np.arange(len(labels)), labels
    proba = proba / proba.sum(axis=1, keepdims=True)
    loss = np.minimum(-np.log(np.maximum(proba[own], 1e-300)), 100.0)
    brier = ((proba - np.eye(proba.shape[1])[labels]) ** 2).sum(axis=1)
    return np.array([loss.mean(), brier.mean()])


@quiet
@over_methods
@settings(max_examples=4)
@given(
    federation=st.sampled_from(FEDERATIONS),
    n_classes=st.integers(2, 4),
    seed=st.integers(0, 999),
)
def test_no_fit_is_worse_than_its_input_on_held_back_rows(
    method, case, federation, n_classes, seed
):
    clients = federation(np.random.default_rng(seed), n_classes)
    rows, labels = held_rows(clients, n_classes)
    if not sum(len(y) for _, y in clients):
        return
    params = {"classes": np.arange(n_classes), "input_type": "proba"}
    cal = made(method, case, **params).fit(clients)
    if cal.comparison_ is not None and not cal.comparison_["held_back"]:
        return  # FedAuto holds nothing back below 100 rows
    if not len(rows):
        assert not cal.improves_
        return
    found = scores(cal.predict_proba(rows), labels)
    allowed = scores(without_zeros(rows), labels) + 1e-9
    assert found[0] <= allowed[0], (cal, cal.comparison_)
    # FedAuto chooses by the Brier score of all rows.
    assert found[1] <= allowed[1] or isinstance(cal, FedAutoCalibrator)


def federation(n_classes=3, n_clients=6, n_rows=60, scale=2.5, seed=0):
    rng = np.random.default_rng(seed)
    return [drawn(rng, n_rows, n_classes, scale) for _ in range(n_clients)]


def sites_of(clients, methods=None):
    policy = SitePolicy(allow_plain=True, methods=methods)
    # Named as clients in this process are, so that the same rows are held back.
    sites = {
        i: Site(i, SiteRows(*rows), policy=policy) for i, rows in enumerate(clients)
    }
    return RemoteClients(InProcessTransport(sites))


@quiet
@over_methods
def test_sites_that_keep_their_rows_find_the_same(method, case):
    clients = federation()
    params = {"classes": np.arange(3), "input_type": "proba", "random_state": 0}
    here = made(method, case, **params).fit(clients)
    word = (method.word,)
    there = made(method, case, **params).fit(sites_of(clients, word))
    rows = np.concatenate([rows for rows, _ in clients])
    np.testing.assert_allclose(
        there.predict_proba(rows), here.predict_proba(rows), rtol=1e-6, atol=1e-9
    )
    assert there.improves_ == here.improves_
    assert len(there.history_) == len(here.history_)
    if here.comparison_ is not None:
        assert there.comparison_ == pytest.approx(here.comparison_, rel=1e-6)


@quiet
@over_methods
def test_a_comparison_is_that_of_the_predictions(method, case):
    clients = federation(seed=1)
    cal = made(method, case, classes=np.arange(3), input_type="proba").fit(clients)
    if isinstance(cal, FedAutoCalibrator):
        return  # which has its own
    rows, labels = (np.concatenate([c[i] for c in clients]) for i in (0, 1))
    data = FederatedDataset(np.log(rows), labels, np.array([0, len(rows)]), [0], 3)
    algorithm = map_losses(cal, held=False)
    total = {"losses": algorithm.query({}, data)["losses"].sum(axis=0)}
    found = comparison(algorithm.update(algorithm.init(3), total, 1), held=False)
    cal.improves_ = True
    expected = [*scores(rows, labels), *scores(cal.predict_proba(rows), labels)]
    names = ["log_loss_input", "brier_input", "log_loss", "brier"]
    np.testing.assert_allclose([found[n] for n in names], expected, rtol=1e-6)
    assert found["n_rows"] == len(rows)


def test_the_rounds_of_all_fits_and_comparisons_are_listed():
    plain = FedBinCalibrator(input_type="proba").fit(federation())
    cal = FedBinCalibrator(input_type="proba", hold_back=True).fit(federation())
    assert len(plain.history_) == 1 and cal.improves_
    assert [r.round for r in cal.history_] == [0, 1, 2, 3]
    assert [sorted(r.total) for r in cal.history_[1::2]] == [["losses"]] * 2
    # What is used is the fit to all rows.
    np.testing.assert_array_equal(cal.bin_values_, plain.bin_values_)
    assert plain.comparison_["held_back"] is True
    assert cal.comparison_["log_loss"] < cal.comparison_["log_loss_input"]


def test_harm_is_named_and_the_input_returned(tmp_path):
    # Calibrated scores and a table of few rows in many cells.
    rng = np.random.default_rng(3)
    clients = [drawn(rng, 12, 4, 1.0) for _ in range(4)]
    cal = FedMatrixCalibrator(
        input_type="proba", l2=1e-6, hold_back=True, if_improves=False
    )
    with pytest.warns(CalibrationWarning, match="held-back rows the log loss is"):
        cal.fit(clients)
    assert not cal.improves_
    assert cal.comparison_["log_loss"] > cal.comparison_["log_loss_input"]
    rows = clients[0][0]
    np.testing.assert_allclose(cal.predict_proba(rows), rows, rtol=1e-9)
    cal.save(tmp_path / "cal.json")
    again = load(tmp_path / "cal.json")
    np.testing.assert_array_equal(again.predict_proba(rows), cal.predict_proba(rows))


def test_after_harm_an_exported_map_returns_the_input():
    torch = pytest.importorskip("torch")
    rows = shuffled(np.random.default_rng(0), 3)[0][0]
    cal = FedAccTempCalibrator(
        input_type="proba", hold_back=True, prior_temperature=2.0, objective="ece"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cal.fit(federation(seed=2))
    cal.improves_ = False
    np.testing.assert_allclose(cal.predict_proba(rows), rows, rtol=1e-9)
    found = cal.to_torch()(torch.tensor(rows)).numpy()
    np.testing.assert_allclose(found, rows, rtol=1e-6)


def test_without_hold_back_a_fit_that_is_worse_on_its_own_rows_warns(monkeypatch):
    monkeypatch.setattr(base, "_FEW_CELLS", 0)
    clients = calibrated(np.random.default_rng(0), 3)
    cal = FedBinCalibrator(n_bins=2, input_type="proba")
    with pytest.warns(CalibrationWarning, match="worse than the input on the 160 rows"):
        cal.fit(clients)
    assert cal.improves_ and not cal.comparison_["held_back"]
    assert cal.comparison_["log_loss"] > cal.comparison_["log_loss_input"]
    # The optimum of all rows cannot be: nothing more is asked.
    assert FedTempCalibrator(input_type="proba").fit(clients).comparison_ is None


def test_without_hold_back_a_fit_that_is_worse_on_held_back_rows_warns():
    # The optimum of its own rows, with more numbers than these can tell.
    rng = np.random.default_rng(0)
    clients = [drawn(rng, 40, 10, 1.0) for _ in range(5)]
    held = held_rows(clients, 10)
    cal = FedMatrixCalibrator(input_type="proba", l2=1e-6)
    with pytest.warns(CalibrationWarning, match=f"on {len(held[1])} held-back rows, w"):
        cal.fit(clients)
    # What it is compared with: a fit to the other rows. The map in use has seen all.
    checked = FedMatrixCalibrator(input_type="proba", l2=1e-6, hold_back=True)
    with pytest.warns(CalibrationWarning, match="held-back rows the log loss is"):
        checked.fit(clients)
    assert cal.comparison_ == pytest.approx(checked.comparison_, rel=1e-6)
    assert cal.improves_ and len(cal.history_) < len(checked.history_)
    rows, labels = (np.concatenate([c[i] for c in clients]) for i in (0, 1))
    assert scores(cal.predict_proba(rows), labels)[0] < scores(rows, labels)[0]


@quiet
@over_methods
def test_the_check_changes_nothing_of_a_fit(method, case, monkeypatch):
    found = []
    for few in (20_000, 0):
        monkeypatch.setattr(base, "_FEW_CELLS", few)
        params = {"classes": np.arange(3), "input_type": "proba", "random_state": 0}
        cal = method.load()(**case.params, **params).fit(federation())
        rows = federation()[0][0]
        found.append((cal.predict_proba(rows), cal.n_rounds_, vars(cal).keys()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def test_sites_are_not_asked_again_without_hold_back():
    cal = FedBinCalibrator(classes=[0, 1, 2], input_type="proba")
    cal.fit(sites_of(federation()))
    assert len(cal.history_) == 1 and cal.comparison_ is None


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.parametrize("estimator", [FedTempCalibrator, FedBinCalibrator])
def test_under_privacy_nothing_is_held_back_or_spent(estimator):
    spent = []
    for hold_back in (False, True):
        ledger = PrivacyLedger(budget=(100.0, 1e-3))
        cal = estimator(
            2.0,
            hold_back=hold_back,
            if_improves=False,
            classes=[0, 1, 2],
            input_type="proba",
            ledger=ledger,
            random_state=0,
        ).fit(federation())
        spent.append((len(cal.history_), ledger.spent(1e-3), cal.predict_proba(RIGHT)))
        assert cal.comparison_ is None
    assert spent[0][:2] == spent[1][:2]
    np.testing.assert_array_equal(spent[0][2], spent[1][2])


RIGHT = drawn(np.random.default_rng(9), 5, 3, 2.0)[0]


def test_several_runs_have_no_checkpoint(tmp_path):
    runner = FederatedRunner(checkpoint=tmp_path / "run")
    cal = FedTempCalibrator(hold_back=True, runner=runner, input_type="proba")
    with pytest.raises(ValueError, match="makes several runs, and a checkpoint holds"):
        cal.fit(federation())


def test_a_method_without_a_registered_map_is_refused():
    class Other(FedTempCalibrator):
        """Not registered."""

    with pytest.raises(ValueError, match="needs the map of Other in the registry"):
        Other(hold_back=True, input_type="proba").fit(federation())


def test_nothing_held_back_returns_the_input():
    clients = [drawn(np.random.default_rng(0), 1, 3, 2.0)]
    assert not len(held_rows(clients, 3)[0])
    cal = FedTempCalibrator(hold_back=True, classes=[0, 1, 2], input_type="proba")
    with pytest.warns(CalibrationWarning, match="No row was held back"):
        cal.fit(clients)
    assert not cal.improves_


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"method": "none"}, "no map of a method 'none'"),
        ({"numbers": {"bias_": (1.0,)}}, "shapes are of"),
        ({"numbers": {"a": (1.0,)}, "shapes": {"a": (2,)}}, "1 numbers for the shape"),
        ({"numbers": {"a": (1.0,)}, "shapes": {"a": (-1, -1)}}, "1 numbers for the"),
        ({"numbers": {"a": (0.0,) * 30_001}, "shapes": {"a": (30_001,)}}, "are over"),
    ],
)
def test_a_site_refuses_maps_that_do_not_fit(params, text):
    with pytest.raises(ValueError, match=text):
        MapLosses(**params).forms(3)


def test_fedauto_without_held_back_rows_compares_nothing():
    cal = FedAutoCalibrator(hold_back=False, input_type="proba").fit(federation())
    assert cal.choice_ == "FedBiasTempCalibrator()" and cal.comparison_ is None
    assert cal.reason_.startswith("hold_back is False")
    assert isinstance(cal.calibrator_, BaseCalibrator)


@quiet
@pytest.mark.parametrize("n_rows", [20, 60, 200])
def test_a_lucky_draw_without_errors_makes_no_model_surer(n_rows):
    # Of a calibrated model that is 99 % accurate: these rows happen to be all correct.
    labels = np.arange(n_rows) % 4
    logits = 6.0 * np.eye(4)[labels]
    ids = np.arange(n_rows) % 3
    auto = FedAutoCalibrator(classes=range(4)).fit(logits, labels, client_ids=ids)
    assert auto.choice_ == "none"
    cal = FedTempCalibrator(hold_back=True, classes=range(4))
    with pytest.warns(CalibrationWarning, match="too few errors to judge a map by"):
        cal.fit(logits, labels, client_ids=ids)
    expected = softmax(logits, axis=1)
    for found in (auto.predict_proba(logits), cal.predict_proba(logits)):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def edge(name):
    """Clients of an unusual federation, and their class labels."""
    rng = np.random.default_rng(0)
    made_of = {
        "three rows": (3, 1, 3),
        "many classes": (5, 60, 1000),
        "one client": (1, 300, 4),
    }
    n_clients, n, c = made_of.get(name, (4, 100, 4))
    clients = []
    for _ in range(n_clients):
        logits = 2 * rng.normal(size=(n, c))
        labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
        clients.append((logits, labels))
    words = np.array(list("abcd"))
    if name == "float16":
        clients = [(z.astype(np.float16), y) for z, y in clients]
    elif name == "one class":
        clients = [(z, 0 * y) for z, y in clients]
    elif name == "empty clients":
        clients[1::2] = [(np.empty((0, 4)), np.empty(0, dtype=int))] * 2
    elif name == "words":
        clients = [(z, words[y]) for z, y in clients]
    elif name == "pandas":
        pd = pytest.importorskip("pandas")
        clients = [
            (pd.DataFrame(z, columns=words), pd.Series(words[y])) for z, y in clients
        ]
    return clients, words if name in ("words", "pandas") else np.arange(c)


@quiet
@pytest.mark.parametrize(
    "name",
    ["three rows", "many classes", "float16", "words", "pandas", "one class",
     "one client", "empty clients"],
)  # fmt: skip
@pytest.mark.parametrize(
    "cal",
    [
        FedAutoCalibrator(),
        FedAutoCalibrator(keep_order=True),
        FedTempCalibrator(hold_back=True),
        FedBinCalibrator(hold_back=True),
        FedBinCalibrator(),
    ],
    ids=["auto", "order", "temperature", "bins", "bins, no hold_back"],
)
def test_unusual_federations(cal, name):
    clients, classes = edge(name)
    cal = clone(cal).set_params(classes=classes).fit(clients)
    rows, _ = clients[0]
    proba = cal.predict_proba(rows)
    assert proba.shape == (len(rows), len(classes))
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-3)
    assert set(cal.predict(rows)) <= set(classes)
    if name == "three rows":  # too few to tell anything
        unchanged = getattr(cal, "choice_", "none") == "none"
        assert unchanged and (not cal.improves_ or not cal.hold_back or cal.choice_)
    elif name == "one class" and cal.hold_back:
        found = cal.comparison_
        assert found["log_loss"] < found["log_loss_input"]


@pytest.mark.parametrize(
    ("options", "held_back", "used"),
    [
        ((), False, True),
        (("--hold-back",), True, False),
        (("--no-hold-back",), False, True),
    ],
)
def test_the_command_line_holds_back(tmp_path, capsys, options, held_back, used):
    few = make_federation(20, 200, temperature=1.0, noise=0.0, random_state=0)
    rows, labels = (np.concatenate([c[i] for c in few.clients]) for i in (0, 1))
    ids = np.repeat(np.arange(20), [len(y) for _, y in few.clients])
    file, out = str(tmp_path / "few.npz"), str(tmp_path / "cal.json")
    np.savez(file, logits=rows, labels=labels, client_ids=ids)
    command = ["fit", file, "--method", "matrix", "-o", out, *options]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["used"] == used
    cal = load(out)
    assert (cal.hold_back, cal.improves_) == (held_back, used)
    if options:
        assert main([*command, "--force", "--eps", "1"]) == 2
        assert f"{options[0]} is for exact fits" in capsys.readouterr().err
