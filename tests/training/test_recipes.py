"""Recipes: what they configure, the rounds of the head, and what FL-FCR gains."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from skfedcal import DirichletPartitioner, FederatedRunner  # noqa: E402
from skfedcal.training import (  # noqa: E402
    DCA,
    MDCA,
    ClassStatistics,
    Contrastive,
    FedAvgClassifier,
    FedGaussianHead,
    FedLC,
    Margin,
    NonUniform,
    Proximal,
    ccvr,
    fedlc,
    fedprox,
    fl_fcr,
    moon,
    nucfl,
)
from skfedcal.training._gaussian import retrained, virtual_features  # noqa: E402
from skfedcal.training._local_training import LocalAdam, LocalSGD  # noqa: E402
from skfedcal.training.modules import module_logits  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits():
    """Rows, labels and 8 clients with label skew."""
    X, y = load_digits(return_X_y=True)
    X, y = (X[:500] / 16).astype(np.float32), y[:500]
    return X, y, (y + np.arange(500) % 3) % 8


def small(recipe, *args, **params):
    made = {"module_params": {"hidden": (12,)}, "n_rounds": 2, "random_state": 0}
    return recipe(*args, **{**made, **params})


def last_layer(clf):
    head = clf.module_.head
    return head.weight.detach().numpy(), head.bias.detach().numpy()


def body(clf):
    return np.concatenate(
        [p.detach().numpy().ravel() for p in clf.module_.body.parameters()]
    )


def test_recipes_say_what_they_are():
    assert fedprox(0.3).penalties == Proximal(0.3)
    assert moon(2.0, tau=0.1).penalties == Contrastive(2.0, 0.1)
    assert fedlc(2.0).loss == FedLC(2.0)
    assert nucfl().penalties == NonUniform(DCA())
    assert nucfl(MDCA()).penalties == NonUniform(MDCA())
    assert (ccvr().head.prior, ccvr().head_every) == ("empirical", "end")
    made = fl_fcr(2.0, counts="global", prior="uniform", every=3, n_virtual=7)
    assert made.loss == Margin(2.0, "global")
    assert (made.head.method, made.head.prior) == ("sample", "uniform")
    assert (made.head_every, made.head.n_virtual) == (3, 7)
    assert fl_fcr().head.prior == "empirical"


@pytest.mark.parametrize("recipe", [fedprox, moon, fedlc, nucfl, ccvr, fl_fcr])
def test_recipes_train_and_take_further_parameters(digits, recipe):
    X, y, ids = digits
    clf = small(recipe, lr=0.2, momentum=0.5)
    assert (clf.lr, clf.momentum, clf.n_rounds) == (0.2, 0.5, 2)
    proba = clf.fit(X, y, client_ids=ids).predict_proba(X)
    assert proba.shape == (500, 10)
    assert np.isfinite(proba).all()
    other = small(recipe, lr=0.2, momentum=0.5, cohort_size=1)
    again = other.fit(X, y, client_ids=ids).predict_proba(X)
    np.testing.assert_allclose(again, proba, atol=5e-3)


def test_no_strength_is_federated_averaging(digits):
    X, y, ids = digits
    plain = body(small(FedAvgClassifier).fit(X, y, client_ids=ids))
    for clf in (
        small(fedprox, 0.0),
        small(moon, 0.0),
        small(fl_fcr, 0.0, every="end"),
        small(ccvr),
    ):
        np.testing.assert_allclose(
            body(clf.fit(X, y, client_ids=ids)), plain, rtol=1e-5, atol=1e-6
        )
    start = body(small(FedAvgClassifier, lr=1e-9).fit(X, y, client_ids=ids))
    strong = body(small(fedprox, 15.0).fit(X, y, client_ids=ids))
    assert np.linalg.norm(strong - start) < 0.8 * np.linalg.norm(plain - start)


def test_the_head_has_rounds_of_its_own(digits):
    X, y, ids = digits
    clf = small(fl_fcr, n_rounds=4, every=2).fit(X, y, client_ids=ids)
    blocks = [record.bytes_up for record in clf.history_]
    assert len(blocks) == 4 + 2
    assert blocks[0] == blocks[1] == blocks[3] == blocks[4]
    # Counts, sums and products of 12 features for 10 classes, three integers each.
    # Three parts of each sum, in two words each.
    assert blocks[2] == blocks[5] == 8 * (10 + 6 * 10 * 12 + 6 * 10 * 78)
    assert clf.n_rounds_ == 4


def test_the_head_is_trained_on_gaussians_of_the_averaged_features(digits):
    X, y, ids = digits
    params = {"n_rounds": 1, "lr": 0.1, "local_epochs": 2, "momentum": 0.5}
    plain = small(FedAvgClassifier, loss=Margin(), **params)
    plain.fit(X, y, client_ids=ids)
    clf = small(fl_fcr, prior="uniform", n_virtual=200, **params)
    clf.fit(X, y, client_ids=ids)
    np.testing.assert_array_equal(body(clf), body(plain))
    # The same by hand, with other draws: 2000 rows, means within a few percent.
    stats = ClassStatistics.from_data(plain.transform(X), y, 10)
    rng = np.random.default_rng(1)
    rows, labels = virtual_features(stats, np.full(10, 0.1), 0.01, 2000, rng)
    layer = nn.Linear(12, 10)
    layer.load_state_dict(plain.module_.head.state_dict())
    descent = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.5)
    rows = torch.as_tensor(rows, dtype=torch.float32)
    for _ in range(2):
        for part in torch.randperm(2000).split(32):
            loss = nn.functional.cross_entropy(
                layer(rows[part]), torch.as_tensor(labels)[part]
            )
            descent.zero_grad()
            loss.backward()
            descent.step()
    weight, bias = last_layer(clf)
    moved = weight - last_layer(plain)[0]
    expected = layer.weight.detach().numpy() - last_layer(plain)[0]
    assert np.linalg.norm(expected) > 1
    assert np.linalg.norm(moved - expected) < 0.2 * np.linalg.norm(expected)
    assert np.abs(bias - layer.bias.detach().numpy()).max() < 0.2


def test_the_prior_says_how_frequent_virtual_features_are(digits):
    X, y, ids = digits
    keep = (y != 3) | (np.arange(500) % 10 == 0)
    X, y, ids = X[keep], y[keep], ids[keep]
    share = []
    for prior in ("empirical", "uniform"):
        clf = small(fl_fcr, prior=prior, lr=0.1).fit(X, y, client_ids=ids)
        logits = module_logits(clf.module_, X)
        share.append(np.mean(logits[:, 3] - logits.mean(axis=1)))
    assert share[0] < share[1] - 0.5


@pytest.mark.parametrize(
    ("local", "kind", "settings"),
    [
        (LocalSGD(0.3), torch.optim.SGD, {}),
        (LocalSGD(0.3, 0.9), torch.optim.SGD, {"momentum": 0.9}),
        (LocalAdam(0.3), torch.optim.Adam, {}),
    ],
)
def test_retraining_is_that_of_torch(local, kind, settings):
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(50, 4)), rng.integers(0, 3, 50)
    layer = nn.Linear(4, 3).double()
    start = [p.detach().numpy().copy() for p in (layer.weight, layer.bias)]
    found = retrained(
        *start,
        rows,
        labels,
        epochs=7,
        batch_size=None,
        steps=local.layer_steps,
        rng=rng,
    )
    descent = kind(layer.parameters(), 0.3, **settings)
    for _ in range(7):
        descent.zero_grad()
        z = layer(torch.as_tensor(rows))
        nn.functional.cross_entropy(z, torch.as_tensor(labels)).backward()
        descent.step()
    np.testing.assert_allclose(found[0], layer.weight.detach(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[1], layer.bias.detach(), rtol=1e-9, atol=1e-12)


def test_every_row_of_a_batch_is_used_once_per_pass():
    rng = np.random.default_rng(0)
    rows, labels = np.eye(10), np.arange(10) % 2
    coef, _ = retrained(
        np.zeros((2, 10)),
        np.zeros(2),
        rows,
        labels,
        epochs=1,
        batch_size=3,
        steps=LocalSGD(1.0).layer_steps,
        rng=rng,
    )
    # Each row moves its own column once, by at most 1 / 1 and at least 1 / 3 times 1/4.
    own = coef[labels, np.arange(10)]
    assert (own > 0.05).all() and (own < 0.8).all()


def test_rounds_of_the_head_on_other_engines_and_cohorts(digits, tmp_path):
    X, y, ids = digits
    whole = last_layer(small(fl_fcr).fit(X, y, client_ids=ids))
    for runner in (FederatedRunner(n_jobs=2), FederatedRunner(cohort_size=3)):
        other = last_layer(small(fl_fcr, runner=runner).fit(X, y, client_ids=ids))
        np.testing.assert_allclose(other[0], whole[0], rtol=1e-3, atol=1e-4)
    part = small(fl_fcr, clients_per_round=2, n_rounds=4).fit(X, y, client_ids=ids)
    assert np.isfinite(part.predict_proba(X)).all()
    runner = FederatedRunner(checkpoint=tmp_path / "run.npz", resume=True)
    once = last_layer(small(fl_fcr, runner=runner).fit(X, y, client_ids=ids))
    again = last_layer(small(fl_fcr, runner=runner).fit(X, y, client_ids=ids))
    np.testing.assert_array_equal(once[0], again[0])


def test_classes_that_nobody_holds_are_possible(digits):
    X, y, ids = digits
    clf = small(fl_fcr, classes=range(12)).fit(X, y, client_ids=ids)
    proba = clf.predict_proba(X)
    assert proba.shape == (500, 12)
    assert not proba[:, 10:].any()
    assert np.isfinite(last_layer(clf)[1]).all()


def test_what_cannot_be_the_last_layer_is_refused(digits):
    X, y, ids = digits
    clf = small(FedAvgClassifier, head=FedGaussianHead(), head_every=1)
    with pytest.raises(ValueError, match="which method='lda' does not draw"):
        clf.fit(X, y, client_ids=ids)
    private = small(fl_fcr, eps=1.0, classes=range(10), random_state=None)
    with pytest.raises(ValueError, match="head=FedGaussianHead"):
        private.fit(X, y, client_ids=ids)
    for module in (
        nn.Sequential(nn.Linear(64, 10, bias=False)),
        nn.Sequential(nn.Linear(64, 10), nn.LayerNorm(10)),
    ):
        clf = fl_fcr(module=module, n_rounds=1, random_state=0)
        if isinstance(module[-1], nn.LayerNorm):
            module.head = module[-1]
        with pytest.raises(ValueError, match="cannot be replaced"):
            clf.fit(X, y, client_ids=ids)


def run(recipe, seed, alpha=0.05, **params):
    """Accuracy in percent on held-out digits at 10 clients with label skew."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    X, test, y, truth = train_test_split(
        X, y, test_size=0.2, random_state=seed, stratify=y
    )
    ids = DirichletPartitioner(10, alpha, random_state=seed).assign(y)
    clf = recipe(
        module_params={"hidden": (64,)},
        n_rounds=10,
        local_epochs=3,
        momentum=0.9,
        lr=0.02,
        random_state=seed,
        **params,
    ).fit(X, y, client_ids=ids)
    inner = module_logits(clf.module_, test).argmax(axis=1)
    return 100 * clf.score(test, truth), 100 * np.mean(inner == truth)


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(3), marks=pytest.mark.slow)], ids=str
)
def test_fl_fcr_and_the_gaussian_head_beat_averaging_under_label_skew(seeds):
    plain = np.mean([run(FedAvgClassifier, s)[0] for s in seeds])
    margin = np.mean([run(FedAvgClassifier, s, loss=Margin())[0] for s in seeds])
    found = np.mean([run(fl_fcr, s, prior="uniform") for s in seeds], axis=0)
    # Both the solved head and the layer that was retrained in every round.
    assert found.min() > plain + 10
    lda = [run(FedAvgClassifier, s, head=FedGaussianHead())[0] for s in seeds]
    assert np.mean(lda) > margin + 10
