"""FedAvgClassifier: forms of data, modules, privacy, checkpoints, scores."""

import copy
import gc
import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from skfedcal import (  # noqa: E402
    CentralDP,
    FederatedRunner,
    FedTempCalibrator,
    PrivacyLedger,
)
from skfedcal._sklearn_compat import HAS_CALLBACKS  # noqa: E402
from skfedcal.exceptions import PrivacyWarning  # noqa: E402
from skfedcal.federation.backends import InProcess  # noqa: E402
from skfedcal.federation.history import RoundRecord  # noqa: E402
from skfedcal.metrics import (  # noqa: E402
    expected_calibration_error,
    negative_log_likelihood,
    predictive_entropy,
    variation_ratio,
)
from skfedcal.training import (  # noqa: E402
    FedAvgClassifier,
    FedGaussianHead,
    Scaffold,
    _predictions,
)
from skfedcal.training._losses import Contrastive, CrossEntropy, Margin, Proximal  # noqa: E402  # noqa: E402
from skfedcal.training.modules import module_features  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits():
    """Rows, labels and 10 clients with some label skew."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:600] / 16, y[:600]
    rng = np.random.default_rng(0)
    return X, y, (y + rng.integers(0, 4, len(y))) % 10


class Stop(Exception):
    """A fit is interrupted."""


def small(**params):
    params = {"n_rounds": 3, "lr": 0.3, "random_state": 0, **params}
    params.setdefault("module", "linear")
    return FedAvgClassifier(**params)


def flat(clf):
    return np.concatenate(
        [p.detach().numpy().ravel() for p in clf.module_.parameters()]
    )


# Data


def test_forms_of_clients_agree(digits):
    X, y, ids = digits
    names = np.unique(ids)
    pairs = [(X[ids == name], y[ids == name]) for name in names]
    forms = [
        ((X, y), {"client_ids": ids}),
        ((pairs,), {}),
        ((dict(zip(names.tolist(), pairs, strict=True)),), {}),
        (([p[0] for p in pairs], [p[1] for p in pairs]), {}),
        ((pd.DataFrame(X), pd.Series(y)), {"client_ids": pd.Series(ids)}),
        ((torch.from_numpy(X), torch.from_numpy(y)), {"client_ids": ids}),
    ]
    found = [flat(small(n_rounds=2).fit(*args, **more)) for args, more in forms]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-6)


def test_order_of_clients_and_cohort_size_change_nothing(digits):
    X, y, ids = digits
    pairs = [(X[ids == name], y[ids == name]) for name in np.unique(ids)]
    plain = flat(small(module="mlp", module_params={"hidden": (8,)}).fit(pairs))
    for cohort_size in (1, 3, "auto"):
        clf = small(
            module="mlp", module_params={"hidden": (8,)}, cohort_size=cohort_size
        )
        np.testing.assert_allclose(flat(clf.fit(pairs[::-1])), plain, atol=1e-5)


@pytest.mark.parametrize("watched", [False, True])
def test_updates_of_earlier_rounds_are_not_kept_during_a_fit(
    digits, monkeypatch, watched
):
    if watched and not HAS_CALLBACKS:
        pytest.skip("callbacks are of scikit-learn 1.9")
    kept, total = [], InProcess.total

    def counted(engine, request, cohort):
        found = (r for r in gc.get_objects() if type(r) is RoundRecord)
        kept.append(sum(len(r.total) for r in found))
        return total(engine, request, cohort)

    gc.collect()
    before = sum(len(r.total) for r in gc.get_objects() if type(r) is RoundRecord)
    monkeypatch.setattr(InProcess, "total", counted)
    clf = small(n_rounds=4)
    if watched:
        from sklearn.callback import ProgressBar

        clf.set_callbacks(ProgressBar())
    clf.fit(*digits[:2], client_ids=digits[2])
    assert len(kept) == 4 and max(kept) <= before


def test_no_ids_is_one_client_and_trains_it(digits):
    X, y, _ = digits
    clf = small(n_rounds=20).fit(X, y)
    assert clf.n_clients_ == 1
    assert clf.score(X, y) > 0.9


def test_empty_clients_and_single_rows(digits):
    X, y, _ = digits
    clients = {"many": (X[:50], y[:50]), "none": (X[:0], y[:0]), "one": (X[:1], y[:1])}
    clf = small(classes=range(10)).fit(clients)
    assert clf.n_clients_ == 3
    assert np.isfinite(flat(clf)).all()
    logits = clf.client_logits(clients)
    assert {name: z.shape for name, (z, _) in logits.items()} == {
        "many": (50, 10),
        "none": (0, 10),
        "one": (1, 10),
    }


def test_string_and_binary_labels(digits):
    X, y, ids = digits
    names = np.array(["odd", "even"])[(y % 2 == 0).astype(int)]
    clf = small(n_rounds=10).fit(X, names, client_ids=ids)
    assert clf.classes_.tolist() == ["even", "odd"]
    assert set(clf.predict(X)) == {"even", "odd"}
    assert clf.score(X, names) > 0.8
    logits = clf.predict_logits(X)
    np.testing.assert_allclose(clf.decision_function(X), logits[:, 1] - logits[:, 0])
    np.testing.assert_allclose(clf.predict_proba(X).sum(axis=1), 1)


def test_classes_without_rows(digits):
    X, y, ids = digits
    few = y < 4
    clf = small(classes=range(10)).fit(X[few], y[few], client_ids=ids[few])
    assert clf.predict_proba(X).shape == (len(X), 10)
    assert clf.predict(X[few]).max() < 4


def test_images_keep_their_shape(digits):
    X, y, ids = digits

    def net():
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
        )

    images = X.reshape(-1, 1, 8, 8)
    clf = small(module=net, n_rounds=2).fit(images, y, client_ids=ids)
    assert clf.input_shape_ == (1, 8, 8)
    assert clf.transform(images).shape == (len(X), 144)
    shaped = small(module=net, n_rounds=2, input_shape=(1, 8, 8))
    shaped.fit(X, y, client_ids=ids)
    np.testing.assert_array_equal(flat(shaped), flat(clf))
    np.testing.assert_allclose(shaped.predict_logits(X), clf.predict_logits(images))
    with pytest.raises(ValueError, match="rows of shape"):
        clf.predict(X.reshape(-1, 1, 4, 16))
    with pytest.raises(ValueError, match=r"input_shape=\(3, 8, 8\) has 192 numbers"):
        small(module=net, input_shape=(3, 8, 8)).fit(X, y)


def test_tokens_are_not_made_floats(digits):
    _, _, ids = digits
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, size=(len(ids), 6))
    y = (X[:, -1] > 2).astype(int)
    params = {"n_tokens": 5, "hidden": 8, "layers": 1}
    clf = small(module="char_lstm", module_params=params, lr=1.0, n_rounds=15)
    clf.fit(X, y, client_ids=ids)
    assert clf.score(X, y) > 0.9
    np.testing.assert_array_equal(clf.predict(X.astype(float)), clf.predict(X))
    with pytest.raises(ValueError, match="not integers"):
        clf.predict(X + 0.5)
    for shift in (-1, 1):
        with pytest.raises(ValueError, match="those from 0 to 4"):
            clf.predict(X + shift)
        with pytest.raises(ValueError, match="those from 0 to 4"):
            small(module="char_lstm", module_params=params).fit(X + shift, y)


def test_float32_in_float32_out(digits):
    X, y, ids = digits
    clf = small().fit(X, y, client_ids=ids)
    coarse = clf.predict_logits(X.astype(np.float32))
    assert coarse.dtype == np.float32
    fine = clf.predict_logits(X)
    assert fine.dtype == np.float64
    np.testing.assert_allclose(coarse, fine, atol=1e-5)
    assert clf.transform(X).dtype == np.float64


# Modules


def test_a_module_is_copied_and_goes_on_from_its_parameters(digits):
    X, y, ids = digits
    torch.manual_seed(3)
    module = nn.Linear(64, 10)
    before = module.weight.detach().clone()
    clf = small(module=module, n_rounds=1, lr=1e-6).fit(X, y, client_ids=ids)
    torch.testing.assert_close(module.weight, before, rtol=0, atol=0)
    torch.testing.assert_close(clf.module_.weight, before, rtol=0, atol=1e-5)
    warm = small(module=clf.module_).fit(X, y, client_ids=ids)
    assert warm.score(X, y) > clf.score(X, y)


def test_first_parameters_follow_the_seed_and_spare_the_generator(digits):
    X, y, ids = digits
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = flat(small().fit(X, y, client_ids=ids))
    torch.testing.assert_close(torch.random.get_rng_state(), before, rtol=0, atol=0)
    torch.manual_seed(1)
    np.testing.assert_array_equal(flat(small().fit(X, y, client_ids=ids)), first)
    other = flat(small(random_state=1).fit(X, y, client_ids=ids))
    assert (other != first).any()
    free = [flat(small(random_state=None).fit(X, y, client_ids=ids)) for _ in "ab"]
    assert (free[0] != free[1]).any()


def test_dropout_trains_and_predicts_without_noise(digits):
    X, y, ids = digits
    net = partial(nn.Sequential, nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10))
    fits = [small(module=net, n_rounds=2).fit(X, y, client_ids=ids) for _ in range(2)]
    np.testing.assert_array_equal(flat(fits[0]), flat(fits[1]))
    np.testing.assert_array_equal(fits[0].predict_logits(X), fits[0].predict_logits(X))
    still = partial(nn.Sequential, net.args[0], nn.Identity(), net.args[2])
    other = small(module=still, n_rounds=2).fit(X, y, client_ids=ids)
    assert (flat(other) != flat(fits[0])).any()


class Centred(nn.Module):
    """Keeps a mean of rows, through which clients would see each other."""

    def __init__(self, in_place=False):
        super().__init__()
        self.in_place = in_place
        self.linear = nn.Linear(64, 10)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        if self.in_place:
            self.mean.lerp_(x.mean(0), 0.1)
        else:
            self.mean = self.mean.lerp(x.mean(0), 0.1)
        return self.linear(x - self.mean)


class InSingle(nn.Linear):
    """Computes in float32 whatever it is given."""

    def forward(self, x):
        return super().forward(x.float())


def test_buffers_that_stay_as_they_are_may_be_kept(digits):
    X, y, ids = digits
    net = nn.Linear(64, 10)
    net.register_buffer("unused", torch.zeros(3))
    assert small(module=net).fit(X, y, client_ids=ids).module_.unused.sum() == 0


def test_a_module_that_computes_in_float32_only(digits):
    X, y, ids = digits
    assert X.dtype == np.float64
    clf = small(module=partial(InSingle, 64, 10)).fit(X, y, client_ids=ids)
    single = clf.predict_logits(X.astype(np.float32))
    np.testing.assert_array_equal(clf.predict_logits(X), single)
    assert clf.transform(X).shape == X.shape


def test_axes_are_not_put_in_another_order_by_a_shape(digits):
    X, y, _ = digits
    net = nn.Sequential(nn.Conv2d(3, 10, 8), nn.Flatten())
    last = np.repeat(X.reshape(-1, 8, 8, 1), 3, axis=3)
    with pytest.raises(ValueError, match=r"np.moveaxis\(X, -1, 1\)"):
        small(module=net).fit(last, y)
    with pytest.raises(ValueError, match="would be scrambled"):
        small(module=net, input_shape=(3, 8, 8)).fit(last, y)
    small(module=net, n_rounds=1).fit(np.moveaxis(last, -1, 1), y)
    # Axes of length 1 come and go, and rows may be made flat.
    small(input_shape=(64,), n_rounds=1).fit(X.reshape(-1, 8, 8), y)
    small(input_shape=(8, 1, 8), n_rounds=1).fit(X.reshape(-1, 1, 8, 8), y)


def test_penalties_without_features_need_no_last_layer(digits):
    X, y, ids = digits
    images = X.reshape(-1, 1, 8, 8)
    net = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    params = {"module": net, "n_rounds": 1}
    plain = small(**params).fit(images, y, client_ids=ids)
    held = small(penalties=Proximal(0.5), **params).fit(images, y, client_ids=ids)
    assert np.abs(flat(held) - flat(plain)).max() > 1e-6
    with pytest.raises(ValueError, match="features are not defined"):
        small(penalties=Contrastive(), **params).fit(images, y, client_ids=ids)


@pytest.mark.parametrize(
    "params",
    [
        {"penalties": "mmce"},
        {"penalties": [Proximal]},
        {"penalties": [CrossEntropy()]},
        {"loss": Proximal()},
        {"loss": nn.CrossEntropyLoss()},
        {"loss": lambda logits, y, mask, ctx: logits.sum()},
    ],
    ids=["name", "class", "loss", "penalty", "torch", "function"],
)
def test_what_is_no_loss_or_penalty_is_refused(digits, params):
    X, y, _ = digits
    with pytest.raises(TypeError, match=r"is not a (loss|penalty); pass an object"):
        small(**params).fit(X, y)


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10)), ValueError, "GroupNorm"),
        (
            nn.Sequential(
                nn.Linear(64, 10), nn.BatchNorm1d(10, track_running_stats=False)
            ),
            ValueError,
            "GroupNorm",
        ),
        (Centred(), ValueError, "changes its buffer 'mean'"),
        (Centred(in_place=True), ValueError, "changes its buffer 'mean'"),
        (nn.Linear(64, 7), ValueError, r"one logit for each of the 10 classes"),
        (nn.Linear(9, 10), ValueError, r"cannot take rows of shape \(64,\)"),
        (nn.Linear(64, 10).requires_grad_(False), ValueError, "nothing to train"),
        (lambda: 3, TypeError, "must make a torch.nn.Module"),
        ("transformer", ValueError, "is unknown"),
    ],
    ids=[
        "batchnorm",
        "batch",
        "buffer",
        "in place",
        "columns",
        "rows",
        "frozen",
        "no module",
        "no name",
    ],
)
def test_modules_that_cannot_be_trained_are_refused(digits, module, error, message):
    X, y, _ = digits
    with pytest.raises(error, match=message):
        small(module=module).fit(X, y)


def test_module_params_need_something_to_build(digits):
    X, y, _ = digits
    with pytest.raises(ValueError, match="already built"):
        small(module=nn.Linear(64, 10), module_params={"hidden": (3,)}).fit(X, y)


def test_features_need_a_last_layer(digits):
    X, y, _ = digits
    net = partial(nn.Sequential, nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 10, 64))
    clf = small(module=partial(nn.Sequential, net(), nn.Flatten())).fit(X, y)
    with pytest.raises(ValueError, match="Name its last layer `head`"):
        clf.transform(X)


# Losses, penalties, corrections


def test_loss_by_name_and_by_object_agree(digits):
    X, y, ids = digits
    named = small(loss="cross_entropy").fit(X, y, client_ids=ids)
    given = small(loss=CrossEntropy(), penalties=[]).fit(X, y, client_ids=ids)
    np.testing.assert_array_equal(flat(named), flat(given))
    with pytest.raises(TypeError, match="is not a penalty"):
        small(penalties=[Proximal]).fit(X, y)


@pytest.mark.parametrize("cohort_size", [1, "auto"])
def test_a_strong_tie_to_the_server_fixes_the_parameters(digits, cohort_size):
    X, y, ids = digits
    moved = []
    for mu in (1.0, 100.0, 10_000.0):
        params = {"n_rounds": 1, "local_epochs": 10, "lr": 1 / mu}
        params["cohort_size"] = cohort_size
        tied = small(penalties=Proximal(mu), **params).fit(X, y, client_ids=ids)
        start = small(lr=1e-30, n_rounds=1).fit(X, y, client_ids=ids)
        moved.append(np.linalg.norm(flat(tied) - flat(start)))
    # At lr = 1 / mu each step ends at w - g(w) / mu: no further than the gradients.
    assert moved[0] > 50 * moved[1] > 2500 * moved[2] > 0


@pytest.mark.parametrize("cohort_size", [1, 4])
def test_moon_is_plain_while_clients_are_new(digits, cohort_size):
    X, y, ids = digits
    params = {"module": "mlp", "module_params": {"hidden": (8,)}}
    params |= {"cohort_size": cohort_size}
    moon = {**params, "penalties": Contrastive(mu=5.0)}
    first, plain = (
        flat(small(n_rounds=1, **p).fit(X, y, client_ids=ids)) for p in (moon, params)
    )
    np.testing.assert_allclose(first, plain, atol=1e-6)
    second, plain = (
        flat(small(n_rounds=2, **p).fit(X, y, client_ids=ids)) for p in (moon, params)
    )
    assert np.abs(second - plain).max() > 1e-4


def test_counts_of_all_clients_are_asked_for(digits):
    X, y, ids = digits
    # With the same share of each class everywhere, ten clients of 1/10 of the rows:
    # N_c^(-1/4) of all clients is that of one, times 10^(-1/4).
    same = np.tile(np.arange(60), 10)
    X, y, ids = X[same], y[same], np.repeat(np.arange(10), 60)
    local = small(loss=Margin(scale=10**-0.25), classes=range(10))
    whole = small(loss=Margin(counts="global"), classes=range(10))
    np.testing.assert_allclose(
        flat(whole.fit(X, y, client_ids=ids)),
        flat(local.fit(X, y, client_ids=ids)),
        atol=1e-6,
    )


def test_scaffold_through_the_estimator(digits):
    X, y, ids = digits
    plain = small(n_rounds=1).fit(X, y, client_ids=ids)
    first = small(n_rounds=1, correction=Scaffold()).fit(X, y, client_ids=ids)
    np.testing.assert_allclose(flat(first), flat(plain), atol=1e-6)
    params = {"n_rounds": 6, "local_epochs": 5, "clients_per_round": 0.5}
    clf = small(correction=Scaffold(), **params)
    again = clone(clf).set_params(cohort_size=1)
    np.testing.assert_allclose(
        flat(clf.fit(X, y, client_ids=ids)),
        flat(again.fit(X, y, client_ids=ids)),
        atol=1e-4,
    )


# Heads


def test_a_head_at_the_end_is_that_of_the_features(digits):
    X, y, ids = digits
    plain = small(n_rounds=2).fit(X, y, client_ids=ids)
    clf = small(n_rounds=2, head=FedGaussianHead()).fit(X, y, client_ids=ids)
    np.testing.assert_array_equal(flat(clf), flat(plain))
    features = plain.transform(X.astype(np.float32))
    head = FedGaussianHead().fit(features, y, client_ids=ids)
    np.testing.assert_allclose(
        clf.predict_logits(X), head.predict_logits(plain.transform(X)), rtol=1e-6
    )
    assert clf.head_.n_clients_ == 10
    assert not hasattr(clf.head, "coef_")
    again = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(again.predict_logits(X), clf.predict_logits(X))
    clf.set_params(head=None).fit(X, y, client_ids=ids)
    np.testing.assert_array_equal(clf.predict_logits(X), plain.predict_logits(X))


def test_a_head_in_between_changes_the_last_layer_only(digits):
    X, y, ids = digits
    params = {"module": "mlp", "module_params": {"hidden": (8,)}, "n_rounds": 1}
    plain = small(**params).fit(X, y, client_ids=ids)
    head = FedGaussianHead(method="sample", n_virtual=50)
    clf = small(head=head, head_every=1, **params).fit(X, y, client_ids=ids)
    body = 64 * 8 + 8
    np.testing.assert_array_equal(flat(clf)[:body], flat(plain)[:body])
    assert (flat(clf)[body:] != flat(plain)[body:]).any()
    params["n_rounds"] = 5
    clf = small(head=head, head_every=2, **params).fit(X, y, client_ids=ids)
    assert (clf.n_rounds_, len(clf.history_)) == (5, 7)


def test_a_head_in_between_goes_on_after_a_kill(digits, tmp_path, monkeypatch):
    X, y, ids = digits
    params = {"n_rounds": 3, "head": FedGaussianHead(method="sample"), "head_every": 1}
    params |= {"eval_set": (X, y), "classes": range(11)}
    whole = small(**params).fit(X, y, client_ids=ids)
    assert [s.round for s in whole.scores_] == [0, 1, 2]
    runner = FederatedRunner(checkpoint=tmp_path / "run.npz", resume=True)

    def kill(self, network, state):
        if state.due and state.rounds == 2:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(FedAvgClassifier, "_set_state", kill)
        with pytest.raises(Stop):
            small(runner=runner, **params).fit(X, y, client_ids=ids)
    clf = small(runner=runner, **params).fit(X, y, client_ids=ids)
    np.testing.assert_array_equal(flat(clf), flat(whole))
    np.testing.assert_array_equal(clf.predict(X), whole.predict(X))


def test_heads_and_privacy(digits):
    X, y, ids = digits
    ledger = PrivacyLedger()
    params = {"eps": 1.0, "classes": range(10), "ledger": ledger}
    with pytest.raises(ValueError, match="its own budget"):
        small(head=FedGaussianHead(), **params).fit(X, y, client_ids=ids)
    private = FedGaussianHead(1.0, max_norm=5.0)
    with pytest.raises(ValueError, match="head_every='end'"):
        small(head=private, head_every=2, **params).fit(X, y, client_ids=ids)
    with pytest.raises(ValueError, match="needs max_norm"):
        small(head=FedGaussianHead(1.0), **params).fit(X, y, client_ids=ids)
    assert len(ledger) == 0
    clf = small(head=private, **params).fit(X, y, client_ids=ids)
    assert len(ledger) == 2
    # What the fit released is both.
    assert (clf.privacy_.eps, clf.head_.privacy_.eps) == (2.0, 1.0)
    assert clf.privacy_.delta == 2 * clf.head_.privacy_.delta
    assert clf.privacy_.n_rounds == 4
    ids_paid = tuple(record["id"] for record in ledger.records())
    assert clf.privacy_.ledger_ids == ids_paid
    assert ledger.spent(clf.privacy_.delta) <= clf.privacy_.eps
    with pytest.raises(ValueError, match="method='qda'"):
        small(head=FedGaussianHead(method="qda"), head_every=1).fit(X, y)
    # Private on top, not below: the report of the head says so.
    said = "trained without privacy"
    assert said not in str(clf.head_.privacy_)
    clf = small(head=private, classes=range(10)).fit(X, y, client_ids=ids)
    assert any(said in known for known in clf.head_.privacy_.assumptions)


@pytest.mark.parametrize("unit", ["client", "example", None])
def test_features_for_a_private_head_are_computed_unit_by_unit(
    digits, monkeypatch, unit
):
    X, y, ids = digits
    n_rows = []

    def counted(module, rows, device="cpu"):
        n_rows.append(len(rows))
        return module_features(module, rows, device)

    monkeypatch.setattr(_predictions, "module_features", counted)
    model = None if unit is None else CentralDP(1.0, unit=unit)
    head = FedGaussianHead(privacy=model, max_norm=5.0)
    small(n_rounds=1, head=head, classes=range(10)).fit(X, y, client_ids=ids)
    expected = {
        "client": np.bincount(ids).tolist(),
        "example": [1] * len(y),
        None: [len(y)],
    }
    assert n_rows == expected[unit]


def test_a_head_that_would_fail_later_is_refused_before_training_is_paid(digits):
    X, y, ids = digits
    ledger = PrivacyLedger()
    params = {"eps": 1.0, "classes": range(10), "ledger": ledger}
    head = FedGaussianHead(privacy=CentralDP(1.0, unit="example"), max_norm=5.0)
    with pytest.raises(ValueError, match="cannot be composed"):
        small(head=head, **params).fit(X, y, client_ids=ids)
    net = nn.Sequential(nn.Unflatten(1, (64, 1)), nn.Conv1d(64, 10, 1), nn.Flatten())
    head = FedGaussianHead(1.0, max_norm=5.0)
    with pytest.raises(ValueError, match="features are not defined"):
        small(module=net, head=head, **params).fit(X, y, client_ids=ids)
    assert len(ledger) == 0


def test_a_private_report_says_that_scored_rows_are_public(digits):
    X, y, ids = digits
    params = {"eps": 1.0, "classes": range(10)}
    clf = small(eval_set=(X[:50], y[:50]), **params).fit(X, y, client_ids=ids)
    column = small(eval_set=(X[:50], y[:50, None]), **params)
    assert column.fit(X, y, client_ids=ids).scores_ == clf.scores_
    assert any("eval_set" in known for known in clf.privacy_.assumptions)
    clf = small(**params).fit(X, y, client_ids=ids)
    assert clf.privacy_.assumptions == ()


# Rounds


def test_clients_per_round(digits):
    X, y, ids = digits
    for share, expected in ((3, 3), (0.3, 3), (0.01, 1), (1.0, 10)):
        clf = small(clients_per_round=share).fit(X, y, client_ids=ids)
        assert [r.n_clients for r in clf.history_] == [expected] * 3
    with pytest.raises(ValueError, match="more than the number of clients, 10"):
        small(clients_per_round=11).fit(X, y, client_ids=ids)
    runner = FederatedRunner(cohort="permuted", cohort_size=5)
    with pytest.raises(ValueError, match="leave one of them out"):
        small(clients_per_round=0.5, runner=runner).fit(X, y, client_ids=ids)
    clf = small(runner=FederatedRunner(n_rounds=2, cohort="permuted", cohort_size=5))
    assert clf.fit(X, y, client_ids=ids).n_rounds_ == 2


def test_scores_of_each_round_are_the_metrics(digits):
    X, y, ids = digits
    clf = small(eval_set=(X[:200], y[:200])).fit(X, y, client_ids=ids)
    assert [s.round for s in clf.scores_] == [0, 1, 2]
    proba, last = clf.predict_proba(X[:200]), clf.scores_[-1]
    assert last.accuracy == clf.score(X[:200], y[:200])
    expected = {
        "log_loss": negative_log_likelihood(y[:200], proba),
        "calibration_error": expected_calibration_error(y[:200], proba, n_bins=15),
        "entropy": predictive_entropy(proba).mean(),
        "variation_ratio": variation_ratio(proba).mean(),
    }
    for name, value in expected.items():
        assert getattr(last, name) == pytest.approx(value, abs=1e-5)
    clf.set_params(eval_set=None)
    assert not hasattr(clf.fit(X, y), "scores_")


def test_target_accuracy_ends_the_fit(digits):
    X, y, ids = digits
    params = {"n_rounds": 30, "eval_set": (X, y)}
    whole = small(**params).fit(X, y, client_ids=ids)
    target = whole.scores_[7].accuracy
    reached = [s.accuracy >= target for s in whole.scores_].index(True)
    clf = small(target_accuracy=target, **params).fit(X, y, client_ids=ids)
    assert clf.n_rounds_ == reached + 1
    assert clf.score(X, y) >= target
    with pytest.raises(ValueError, match="needs an eval_set"):
        small(target_accuracy=0.9).fit(X, y)
    with pytest.raises(ValueError, match="unknown labels"):
        small(eval_set=(X, y + 1)).fit(X, y)


def test_history_does_not_keep_models(digits):
    X, y, ids = digits
    clf = small().fit(X, y, client_ids=ids)
    assert [r.round for r in clf.history_] == [0, 1, 2]
    assert all(r.total == {} for r in clf.history_)
    assert clf.history_[0].bytes_down >= 4 * 650


def test_a_fit_that_was_killed_goes_on(digits, tmp_path, monkeypatch):
    X, y, ids = digits
    params = {"n_rounds": 5, "clients_per_round": 4, "server_momentum": 0.5}
    whole = small(**params).fit(X, y, client_ids=ids)
    runner = FederatedRunner(checkpoint=tmp_path / "run.npz", resume=True)
    clf = small(runner=runner, **params)
    rounds = []

    def kill(self, network, state):
        rounds.append(state.rounds)
        if state.rounds == 3:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(FedAvgClassifier, "_set_state", kill)
        with pytest.raises(Stop):
            clf.fit(X, y, client_ids=ids)
    assert not hasattr(clf, "module_")
    clf.fit(X, y, client_ids=ids)
    np.testing.assert_array_equal(flat(clf), flat(whole))
    assert clf.n_rounds_ == 5
    assert all(record.total == {} for record in clf.history_)
    other = small(module=nn.Linear(64, 10), runner=runner, **params)
    with pytest.raises(RuntimeError, match="another fit"):
        other.fit(X, y, client_ids=ids)


@pytest.mark.parametrize(
    "params", [{"correction": Scaffold()}, {"penalties": Contrastive()}], ids=str
)
def test_what_clients_remember_is_not_lost(digits, params, tmp_path):
    X, y, ids = digits
    for runner in (
        FederatedRunner(checkpoint=tmp_path / "run.npz"),
        FederatedRunner(backend="loky", n_jobs=2),
    ):
        with pytest.raises(ValueError, match="keep vectors from round to round"):
            small(runner=runner, **params).fit(X, y, client_ids=ids)
    threads = small(runner=FederatedRunner(n_jobs=2), cohort_size=1, **params)
    plain = small(cohort_size=1, **params)
    np.testing.assert_array_equal(
        flat(threads.fit(X, y, client_ids=ids)), flat(plain.fit(X, y, client_ids=ids))
    )


def test_divergence_warns(digits):
    X, y, ids = digits
    clf = small(module="mlp", lr=1e18, n_rounds=1, local_epochs=5)
    with pytest.warns(ConvergenceWarning, match="Lower `lr`"):
        clf.fit(X, y, client_ids=ids)
    assert np.isfinite(flat(clf)).all()


# Privacy


def test_no_noise_and_no_bound_in_reach_is_uniform_averaging(digits):
    X, y, ids = digits
    bounded = small(clip=1e6).fit(X, y, client_ids=ids)
    uniform = small(weighting="uniform").fit(X, y, client_ids=ids)
    np.testing.assert_allclose(flat(bounded), flat(uniform), atol=1e-7)
    examples = small().fit(X, y, client_ids=ids)
    assert np.abs(flat(examples) - flat(uniform)).max() > 1e-4


def test_private_fit_pays_once_and_reports(digits):
    X, y, ids = digits
    ledger = PrivacyLedger()
    clf = small(eps=2.0, clip=0.7, classes=range(10), ledger=ledger)
    clf.fit(X, y, client_ids=ids)
    assert clf.privacy_.eps == 2.0
    assert clf.privacy_.n_rounds == 3
    assert clf.privacy_.clip == {"update": 0.7}
    assert clf.privacy_.n_clients == 10
    assert len(ledger) == 1
    again = clone(clf).set_params(ledger=None).fit(X, y, client_ids=ids)
    np.testing.assert_array_equal(flat(again), flat(clf))


def test_noise_falls_with_eps(digits):
    X, y, ids = digits
    exact = flat(small(clip=1.0, classes=range(10)).fit(X, y, client_ids=ids))
    off = []
    for eps in (1.0, 10.0, 1000.0):
        clf = small(eps=eps, classes=range(10)).fit(X, y, client_ids=ids)
        # Later rounds start elsewhere, so that noise adds up to less or more.
        sigma = clf.privacy_.noise_multiplier / 10 * np.sqrt(3)
        off.append(np.std(flat(clf) - exact))
        assert 0.5 * sigma < off[-1] < 2 * sigma
    assert off[0] > off[1] > off[2]


def test_labels_of_private_clients_are_named(digits):
    X, y, ids = digits
    with pytest.warns(PrivacyWarning, match="read from y, which is private"):
        clf = small(eps=1.0).fit(X, y, client_ids=ids)
    assert any("labels" in text for text in clf.privacy_.assumptions)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"weighting": "examples"}, "weighting='examples' cannot be used with privacy"),
        ({"correction": Scaffold()}, "cannot be used with privacy"),
        ({"loss": Margin(counts="global")}, "privacy budget does not cover"),
        (
            {"cohort_size": 5, "random_state": None},
            "cohort_size=5 trains several clients",
        ),
        ({"eps": None, "privacy": CentralDP(1.0, unit="example")}, "unit='client'"),
        ({"eps": None, "clip": 1.0, "weighting": "examples"}, "grows with its rows"),
    ],
    ids=["examples", "scaffold", "counts", "cohort", "unit", "clip"],
)
def test_what_breaks_the_guarantee_is_refused(digits, params, message):
    X, y, ids = digits
    ledger = PrivacyLedger()
    params = {"eps": 1.0, "classes": range(10), "ledger": ledger, **params}
    with pytest.raises(ValueError, match=message):
        small(**params).fit(X, y, client_ids=ids)
    assert len(ledger) == 0


def test_poisson_sampling_lowers_the_noise(digits):
    X, y, ids = digits
    pytest.importorskip("dp_accounting")
    noise = []
    for sampling in ("fixed", "poisson"):
        clf = small(
            eps=1.0, classes=range(10), sampling=sampling, clients_per_round=0.3
        ).fit(X, y, client_ids=ids)
        noise.append(clf.privacy_.noise_multiplier)
    assert noise[1] < noise[0]


def test_a_release_trains_clients_one_by_one(digits):
    X, y, ids = digits
    seen = []

    class Spy(CrossEntropy):
        def __call__(self, logits, y, mask, ctx):
            seen.append(len(logits))
            return super().__call__(logits, y, mask, ctx)

    params = {"eps": 1.0, "classes": range(10), "n_rounds": 1, "loss": Spy()}
    params["batch_size"] = None
    small(random_state=None, **params).fit(X, y, client_ids=ids)
    assert sorted(seen) == sorted(np.bincount(ids))
    seen.clear()
    small(**params).fit(X, y, client_ids=ids)
    assert seen == [np.bincount(ids).max()]


# Predictions


def test_logits_of_clients_feed_a_calibrator(digits):
    X, y, ids = digits
    clf = small(n_rounds=10, local_epochs=3).fit(X, y, client_ids=ids)
    named = clf.client_logits(X, y, client_ids=ids)
    assert list(named) == sorted(set(ids.tolist()))
    logits = clf.predict_logits(X)
    for name, (own, labels) in named.items():
        np.testing.assert_allclose(own, logits[ids == name])
        np.testing.assert_array_equal(labels, y[ids == name])
    pairs = [(X[ids == name], y[ids == name]) for name in named]
    listed = clf.client_logits(pairs)
    assert isinstance(listed, list)
    calibrated = FedTempCalibrator().fit(listed)
    pooled = FedTempCalibrator().fit(logits, y)
    assert calibrated.temperature_ == pytest.approx(pooled.temperature_, rel=1e-6)


def test_features_times_the_last_layer_are_the_logits(digits):
    X, y, ids = digits
    clf = small(module="mlp", module_params={"hidden": (8,)}).fit(X, y, client_ids=ids)
    head = clf.module_.head
    weight, bias = (p.detach().double().numpy() for p in (head.weight, head.bias))
    np.testing.assert_allclose(
        clf.transform(X) @ weight.T + bias, clf.predict_logits(X), atol=1e-9
    )
    assert list(clf.get_feature_names_out()) == [
        f"fedavgclassifier{i}" for i in range(8)
    ]


def test_pickle_and_clone(digits):
    X, y, ids = digits
    clf = small(loss=Margin(), penalties=[Proximal(0.1)]).fit(X, y, client_ids=ids)
    again = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(again.predict_logits(X), clf.predict_logits(X))
    np.testing.assert_array_equal(flat(clone(clf).fit(X, y, client_ids=ids)), flat(clf))
    assert not hasattr(clone(clf), "module_")
    with pytest.raises(NotFittedError):
        clone(clf).predict(X)


def test_in_a_pipeline_and_a_search(digits):
    X, y, ids = digits
    pipe = make_pipeline(StandardScaler(), small(n_rounds=5))
    pipe.fit(X, y, fedavgclassifier__client_ids=ids)
    assert pipe[-1].n_clients_ == 10
    scores = cross_val_score(small(n_rounds=10), X, y, params={"client_ids": ids}, cv=2)
    assert (scores > 0.3).all()
    search = GridSearchCV(small(), {"lr": [1e-6, 0.5], "penalties": [None]}, cv=2)
    assert search.fit(X, y, client_ids=ids).best_params_["lr"] == 0.5


@pytest.mark.skipif(not HAS_CALLBACKS, reason="callbacks came with scikit-learn 1.9")
def test_callbacks_see_each_round_and_may_stop(digits):
    X, y, ids = digits
    seen = []

    class Recorder:
        def setup(self, estimator, context): ...
        def teardown(self, estimator, context): ...
        def on_fit_task_begin(self, estimator, context): ...

        def on_fit_task_end(
            self, estimator, context, *, X=None, y=None, fitted_estimator=None
        ):
            assert X is None
            if context.task_name != "round":
                return False
            seen.append(flat(fitted_estimator))
            return len(seen) == 2

    clf = small(n_rounds=5).set_callbacks(Recorder()).fit(X, y, client_ids=ids)
    assert clf.n_rounds_ == len(seen) == 2
    np.testing.assert_array_equal(seen[-1], flat(clf))


# Optimisers


def test_adam_starts_anew_in_each_round(digits):
    """Two rounds are two calls of ``torch.optim.Adam``, not one."""
    X, y, _ = digits
    X, y = X[:40].astype(np.float32), y[:40]
    start = nn.Linear(64, 10)
    clf = FedAvgClassifier(
        start, optimizer="adam", n_rounds=2, batch_size=None, lr=0.01, random_state=0
    ).fit(X, y)
    module = copy.deepcopy(start)
    for _ in range(2):
        steps = torch.optim.Adam(module.parameters(), 0.01)
        z = module(torch.as_tensor(X))
        nn.functional.cross_entropy(z, torch.as_tensor(y)).backward()
        steps.step()
        steps.zero_grad()
    for mine, theirs in zip(clf.module_.parameters(), module.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach(), theirs.detach(), atol=2e-4)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"momentum": 0.9}, "momentum=0.9 is a parameter of optimizer='sgd'"),
        ({"correction": Scaffold()}, "needs steps in proportion"),
        ({"optimizer": "lbfgs"}, "'optimizer' parameter"),
    ],
)
def test_what_adam_does_not_have(params, text, digits):
    X, y, ids = digits
    clf = FedAvgClassifier(**{"optimizer": "adam", **params})
    with pytest.raises(ValueError, match=text):
        clf.fit(X, y, client_ids=ids)
