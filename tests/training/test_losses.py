"""Losses against loops in numpy, limits, padding, and maps over clients."""

from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.func import grad, vmap  # noqa: E402

from skfedcal.training import (  # noqa: E402
    Context,
    CrossEntropy,
    FedLC,
    Focal,
    LogitAdjusted,
    Margin,
)

LOSSES = [
    CrossEntropy(),
    Focal(),
    Focal(gamma=0.5, sample_dependent=False),
    FedLC(tau=0.7),
    Margin(scale=0.9),
    Margin(counts="global"),
    Margin(max_margin=0.5, logit_scale=3.0),
    LogitAdjusted(tau=0.8),
]


def softmax(row):
    top = max(row)
    weights = [exp(z - top) for z in row]
    return [w / sum(weights) for w in weights]


def row_loss(loss, row, label, counts, world):
    """Loss of one row, written out class by class."""
    row = [float(z) for z in row]
    if isinstance(loss, FedLC):
        own = row[label] - loss.tau * counts[label] ** -0.25
        others = [
            exp(z - loss.tau * n**-0.25 - own)
            for z, n in zip(row, counts, strict=True)
            if n > 0
        ]
        return log(sum(others))
    if isinstance(loss, LogitAdjusted):
        shift = [loss.tau * log(max(n, loss.floor)) for n in counts]
        return -log(softmax([z + s for z, s in zip(row, shift, strict=True)])[label])
    if isinstance(loss, Margin):
        n = counts if loss.counts == "local" else world
        margins = [loss.scale / m**0.25 if m > 0 else 0.0 for m in n]
        if loss.max_margin is not None:
            margins = [m * loss.max_margin / max(margins) for m in margins]
        own = loss.logit_scale * (row[label] - margins[label])
        rest = [loss.logit_scale * z for c, z in enumerate(row) if c != label]
        return -log(exp(own) / (exp(own) + sum(exp(z) for z in rest)))
    p = softmax(row)[label]
    if isinstance(loss, Focal):
        gamma = 5.0 if loss.sample_dependent and p < 0.2 else loss.gamma
        return -((1 - p) ** gamma) * log(p)
    return -log(p)


def make_batch(seed, n_rows=9, n_classes=4, absent=True):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n_rows, n_classes)) * 2
    counts = rng.integers(1, 40, n_classes).astype(float)
    world = counts + rng.integers(1, 100, n_classes)
    labels = rng.integers(0, n_classes, n_rows)
    if absent:  # a class that this client does not hold
        counts[-1], labels = 0.0, labels % (n_classes - 1)
    return logits, labels, counts, world


def as_torch(logits, labels, counts, world):
    ctx = Context(counts=torch.as_tensor(counts), global_counts=torch.as_tensor(world))
    return torch.as_tensor(logits), torch.as_tensor(labels), ctx


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_loss_is_the_mean_of_its_formula(loss, seed):
    batch = make_batch(seed)
    logits, y, ctx = as_torch(*batch)
    rows, labels, counts, world = batch
    expected = np.mean(
        [row_loss(loss, r, c, counts, world) for r, c in zip(rows, labels, strict=True)]
    )
    found = loss(logits, y, torch.ones(len(y), dtype=torch.float64), ctx)
    assert float(found) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@settings(max_examples=8)
@given(st.integers(0, 1000), st.integers(1, 6))
def test_rows_of_padding_change_nothing(loss, seed, n_padding):
    rng = np.random.default_rng(seed)
    logits, labels, counts, world = make_batch(seed)
    padded = np.vstack([logits, rng.normal(size=(n_padding, 4)) * 50])
    filled = np.r_[labels, rng.integers(0, 4, n_padding)]
    mask = np.r_[np.ones(9), np.zeros(n_padding)]
    order = rng.permutation(9 + n_padding)
    z, y, ctx = as_torch(padded[order], filled[order], counts, world)
    w = torch.as_tensor(mask[order])
    slope, value = torch.func.grad_and_value(loss)(z, y, w, ctx)
    plain = as_torch(logits, labels, counts, world)
    ones = torch.ones(9, dtype=torch.float64)
    expected = torch.func.grad_and_value(loss)(plain[0], plain[1], ones, plain[2])
    assert float(value) == pytest.approx(float(expected[1]), rel=1e-10)
    np.testing.assert_allclose(
        slope[np.argsort(order)][:9], expected[0], rtol=1e-9, atol=1e-12
    )
    assert not slope[w == 0].any()


@pytest.mark.parametrize(
    "loss",
    [
        Focal(gamma=0.0, sample_dependent=False),
        Margin(scale=0.0),
        Margin(scale=0.0, counts="global"),
        LogitAdjusted(tau=0.0),
    ],
    ids=repr,
)
def test_limits_are_the_cross_entropy(loss):
    logits, y, ctx = as_torch(*make_batch(0))
    mask = torch.ones(9, dtype=torch.float64)
    plain = CrossEntropy()(logits, y, mask, ctx)
    assert float(loss(logits, y, mask, ctx)) == pytest.approx(float(plain), rel=1e-12)


@pytest.mark.parametrize("loss", [FedLC(tau=2.0), LogitAdjusted(tau=2.0)], ids=repr)
def test_equal_counts_shift_all_classes_alike(loss):
    logits, labels, _, world = make_batch(0, absent=False)
    z, y, ctx = as_torch(logits, labels, np.full(4, 7.0), world)
    mask = torch.ones(9, dtype=torch.float64)
    plain = CrossEntropy()(z, y, mask, ctx)
    assert float(loss(z, y, mask, ctx)) == pytest.approx(float(plain), rel=1e-12)
    # A margin on the own class alone does not cancel.
    assert float(Margin()(z, y, mask, ctx)) > float(plain) + 0.1


def test_fedlc_leaves_absent_classes_out():
    logits, y, ctx = as_torch(*make_batch(1))
    slope = grad(FedLC())(logits, y, torch.ones(9, dtype=torch.float64), ctx)
    assert not slope[:, -1].any()
    assert slope[:, :-1].all()


def test_focal_takes_the_stronger_exponent_below_a_fifth():
    for p in (0.05, 0.19, 0.21, 0.9):
        z = torch.tensor([[log(p), log(1 - p)]], dtype=torch.float64)
        y, w = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
        gamma = 5 if p < 0.2 else 3
        found = Focal()(z, y, w, Context(counts=torch.ones(2)))
        assert float(found) == pytest.approx(-((1 - p) ** gamma) * log(p), rel=1e-10)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("size", [0.0, 1.0, 1e3])
def test_slopes_are_finite_in_float32(loss, size):
    rng = np.random.default_rng(0)
    z = torch.as_tensor(rng.normal(size=(16, 4)) * size, dtype=torch.float32)
    z[0] = torch.tensor([200.0, 0.0, 0.0, 0.0])
    y = torch.as_tensor(rng.integers(0, 3, 16))
    y[0] = 0
    counts = torch.tensor([5.0, 1.0, 1000.0, 0.0])
    ctx = Context(counts=counts, global_counts=counts + 1)
    for mask in (torch.ones(16), torch.zeros(16)):
        slope = grad(loss)(z, y, mask, ctx)
        assert slope.dtype == torch.float32
        assert slope.isfinite().all()
        assert bool(mask.any()) == bool(slope.any())


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_cohort_at_once_is_each_client_alone(loss):
    batches = [make_batch(seed) for seed in range(5)]
    parts = [as_torch(*batch) for batch in batches]
    z, y = (torch.stack([p[i] for p in parts]) for i in range(2))
    world = parts[0][2].global_counts
    counts = torch.stack([p[2].counts for p in parts])
    mask = torch.as_tensor(np.random.default_rng(0).integers(0, 2, (5, 9)) + 0.0)
    dims = Context(counts=0)
    found = vmap(grad(loss), in_dims=(0, 0, 0, dims))(
        z, y, mask, Context(counts=counts, global_counts=world)
    )
    for k in range(5):
        ctx = Context(counts=counts[k], global_counts=world)
        alone = grad(loss)(z[k], y[k], mask[k], ctx)
        np.testing.assert_allclose(found[k], alone, rtol=1e-12, atol=1e-15)


def test_losses_are_values():
    assert Margin(scale=2.0) == Margin(scale=2.0)
    assert Margin().set_params(counts="global").needs == {"global_counts"}
    assert not any(loss.needs for loss in LOSSES if "global" not in repr(loss))
    with pytest.raises(ValueError, match="counts must be one of"):
        Margin(counts="all")
    logits, y, ctx = as_torch(*make_batch(0))
    with pytest.raises(ValueError, match="needs ctx"):
        Margin(counts="global")(logits, y, torch.ones(9), Context(counts=ctx.counts))


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (Focal, {"gamma": -1.0}),
        (FedLC, {"tau": float("nan")}),
        (Margin, {"scale": "1"}),
        (Margin, {"logit_scale": 0.0}),
        (Margin, {"max_margin": -0.5}),
        (LogitAdjusted, {"floor": 0.0}),
        (LogitAdjusted, {"tau": float("inf")}),
    ],
)
def test_wrong_numbers_are_refused(cls, values):
    ((name, _),) = values.items()
    with pytest.raises(ValueError, match=rf"{cls.__name__}\({name}=.*finite number"):
        cls(**values)
