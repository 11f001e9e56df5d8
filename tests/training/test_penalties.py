"""Penalties against loops in numpy, limits, padding, and maps over clients."""

from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.func import grad, grad_and_value, vmap  # noqa: E402

from skfedcal.training import (  # noqa: E402
    DCA,
    MDCA,
    MMCE,
    MMD,
    Context,
    Contrastive,
    NonUniform,
    Proximal,
)

PENALTIES = [
    MMCE(),
    MMCE(normalization="reference", width=0.2),
    MMD(),
    MMD(bandwidth=0.3, label_bandwidth=4.0),
    DCA(),
    MDCA(),
    Proximal(mu=0.3),
    Contrastive(mu=2.0, tau=0.4),
    NonUniform(DCA()),
    NonUniform(MDCA(weight=3.0)),
]


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def brute_mmce(penalty, case):
    proba, n = softmax(case["logits"]), len(case["y"])
    sure = [max(p) for p in proba]
    right = [p.argmax() == c for p, c in zip(proba, case["y"], strict=True)]
    n_right, n_wrong = sum(right), n - sum(right)
    if not n_right or not n_wrong:
        return 0.0
    power = 1 if penalty.normalization == "paper" else 2
    total = 0.0
    for i in range(n):
        for j in range(n):
            kernel = exp(-abs(sure[i] - sure[j]) / penalty.width)
            term = kernel
            for k in (i, j):
                if right[k]:
                    term *= (1 - sure[k]) / n_right**power
                else:
                    term *= -sure[k] / n_wrong**power
            total += term
    return sqrt(max(total, 0.0) + 1e-10)


def brute_mmd(penalty, case):
    """U-statistic with both kernels in full, in O(n^2 C^2)."""
    proba, y = softmax(case["logits"]), case["y"]
    n, n_classes = proba.shape
    between = np.full((n_classes, n_classes), exp(-2 / penalty.label_bandwidth))
    np.fill_diagonal(between, 1.0)
    total = 0.0
    for i in range(n):
        for j in range(n):
            if i == j:
                continue
            gap = sum((a - b) ** 2 for a, b in zip(proba[i], proba[j], strict=True))
            labels = 0.0
            for a in range(n_classes):
                for b in range(n_classes):
                    labels += proba[i, a] * between[a, b] * proba[j, b]
                labels -= proba[i, a] * between[a, y[j]]
                labels -= proba[j, a] * between[a, y[i]]
            labels += between[y[i], y[j]]
            total += exp(-gap / penalty.bandwidth) * labels
    return total / (n * (n - 1))


def brute_dca(penalty, case):
    proba = softmax(case["logits"])
    right = [float(p.argmax() == c) for p, c in zip(proba, case["y"], strict=True)]
    return abs(np.mean([max(p) for p in proba]) - np.mean(right))


def brute_mdca(penalty, case):
    proba, y = softmax(case["logits"]), case["y"]
    gaps = [
        abs(np.mean(proba[:, c]) - np.mean([float(label == c) for label in y]))
        for c in range(proba.shape[1])
    ]
    return np.mean(gaps)


def brute_proximal(penalty, case):
    params, start = case["params"], case["start"]
    return sum(0.5 * (a - b) ** 2 for a, b in zip(params, start, strict=True))


def brute_contrastive(penalty, case):
    out = []
    for row, near, far in zip(
        case["features"], case["server"], case["own"], strict=True
    ):
        pull = row @ near / (np.linalg.norm(row) * np.linalg.norm(near)) / penalty.tau
        push = row @ far / (np.linalg.norm(row) * np.linalg.norm(far)) / penalty.tau
        out.append(-log(exp(pull) / (exp(pull) + exp(push))))
    return np.mean(out)


def brute_nonuniform(penalty, case):
    moved, last = case["params"] - case["start"], case["change"]
    cosine = moved @ last / (np.linalg.norm(moved) * np.linalg.norm(last))
    return max(cosine, 0.0) * brute_force(penalty.penalty, case)


def brute_force(penalty, case):
    by_type = {
        MMCE: brute_mmce,
        MMD: brute_mmd,
        DCA: brute_dca,
        MDCA: brute_mdca,
        Proximal: brute_proximal,
        Contrastive: brute_contrastive,
        NonUniform: brute_nonuniform,
    }
    return by_type[type(penalty)](penalty, case)


def make_case(seed, n=8, n_classes=4):
    rng = np.random.default_rng(seed)
    start, params = rng.normal(size=(2, 7))
    return {
        "logits": rng.normal(size=(n, n_classes)) * 1.5,
        "y": rng.integers(0, n_classes, n),
        "features": rng.normal(size=(n, 5)),
        "server": rng.normal(size=(n, 5)),
        "own": rng.normal(size=(n, 5)),
        "start": start,
        "params": params,
        "change": (params - start) + rng.normal(size=7) * (0.5 + seed),
    }


def named(vector):
    """Parameters of two layers from one vector."""
    values = torch.as_tensor(vector)
    return {"body": values[..., :3], "head": values[..., 3:]}


def context(case):
    return Context(
        counts=torch.ones(4),
        global_params=named(case["start"]),
        previous_update=named(case["change"]),
        global_features=torch.as_tensor(case["server"]),
        previous_features=torch.as_tensor(case["own"]),
    )


def call(penalty, case, mask=None):
    n = len(case["y"])
    w = torch.ones(n, dtype=torch.float64) if mask is None else torch.as_tensor(mask)
    return penalty(
        torch.as_tensor(case["logits"]),
        torch.as_tensor(case["y"]),
        w,
        context(case),
        named(case["params"]),
        torch.as_tensor(case["features"]),
    )


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("seed", range(4))
def test_penalty_is_its_formula(penalty, seed):
    case = make_case(seed)
    expected = brute_force(penalty, case)
    assert float(call(penalty, case)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@settings(max_examples=8)
@given(st.integers(0, 1000), st.integers(1, 5))
def test_rows_of_padding_change_nothing(penalty, seed, n_padding):
    case, other = make_case(seed % 4), make_case(seed + 10, n_padding)
    order = np.random.default_rng(seed).permutation(8 + n_padding)
    padded = dict(case)
    for name in ("logits", "features", "server", "own"):
        padded[name] = np.vstack([case[name], other[name] * 9])[order]
    padded["y"] = np.r_[case["y"], other["y"]][order]
    mask = np.r_[np.ones(8), np.zeros(n_padding)][order]
    expected = float(call(penalty, case))
    assert float(call(penalty, padded, mask)) == pytest.approx(expected, abs=1e-12)


def all_right(n=6):
    case = make_case(0, n)
    case["y"] = case["logits"].argmax(axis=1)
    return case


def test_mmce_is_zero_where_all_rows_are_right_or_wrong():
    case = all_right()
    assert float(call(MMCE(), case)) == 0.0
    case["y"] = case["logits"].argmin(axis=1)
    assert float(call(MMCE(), case)) == 0.0


def test_mmce_of_the_reference_divides_once_too_often():
    case = make_case(1, 64)
    order = case["logits"].argsort(axis=1)
    case["y"] = np.where(np.arange(64) < 32, order[:, -1], order[:, 0])
    paper = float(call(MMCE(), case))
    reference = float(call(MMCE(normalization="reference"), case))
    assert paper / reference == pytest.approx(32, rel=1e-4)


def test_sure_and_right_predictions_cost_nothing():
    case = all_right()
    case["logits"] = 1e3 * np.eye(4)[case["y"]]
    for penalty in (MMCE(), MMD(), DCA(), MDCA()):
        assert float(call(penalty, case)) == pytest.approx(0.0, abs=1e-12)


def test_mmd_is_unbiased_for_calibrated_predictions():
    # Labels drawn from the predictions: mean 0, and 1500 draws of n = 5.
    rng = np.random.default_rng(0)
    values = []
    for _ in range(1500):
        case = make_case(0, 5)
        case["logits"] = rng.normal(size=(5, 4))
        noise = rng.gumbel(size=(5, 4))
        case["y"] = (case["logits"] + noise).argmax(axis=1)
        values.append(float(call(MMD(), case)))
    # Five standard errors: a false alarm once in 1.7 million.
    assert abs(np.mean(values)) < 5 * np.std(values) / sqrt(len(values))
    assert min(values) < 0


def test_proximal_and_moon_at_the_model_of_the_server():
    case = make_case(0)
    case["params"] = case["start"]
    assert float(call(Proximal(), case)) == 0.0
    # A client that is new: its last model is the server's, and nothing pulls.
    case["own"] = case["server"]
    assert float(call(Contrastive(), case)) == pytest.approx(log(2))

    def term(features):
        case_features = dict(case, features=features)
        return call(Contrastive(), case_features)

    slope = grad(term)(torch.as_tensor(case["features"]))
    np.testing.assert_allclose(slope, 0, atol=1e-15)


def test_nonuniform_is_off_without_a_common_direction():
    penalty, case = NonUniform(DCA()), make_case(0)
    assert float(call(DCA(), case)) > 0.01
    for change in (
        {"params": case["start"]},  # first step
        {"change": np.zeros(7)},  # first round
        {"change": case["start"] - case["params"]},  # the other way
    ):
        assert float(call(penalty, {**case, **change})) == 0.0
    along = {**case, "change": 1e-6 * (case["params"] - case["start"])}
    assert float(call(penalty, along)) == pytest.approx(float(call(DCA(), case)))


def test_literal_nonuniform_keeps_negative_similarities():
    case = make_case(0)
    back = {**case, "change": case["start"] - case["params"]}
    found = float(call(NonUniform(DCA(), literal=True), back))
    assert found == pytest.approx(-float(call(DCA(), case)))
    with pytest.raises(TypeError, match="literal='yes'"):
        NonUniform(DCA(), literal="yes")


def test_nonuniform_has_no_slope_of_its_own_in_the_parameters():
    case = make_case(0)
    logits, y = torch.as_tensor(case["logits"]), torch.as_tensor(case["y"])
    mask = torch.ones(8, dtype=torch.float64)

    def value(params):
        return NonUniform(DCA())(logits, y, mask, context(case), named(params), None)

    slope = grad(value)(torch.as_tensor(case["params"]))
    assert not slope.any()


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("hard", ["zeros", "sure", "no rows", "one row"])
def test_slopes_are_finite_in_float32(penalty, hard):
    case = make_case(0)
    mask = np.ones(8, np.float32)
    if hard == "zeros":
        for name in ("logits", "features", "server", "own"):
            case[name] = np.zeros_like(case[name])
        case["params"] = case["start"]
    elif hard == "sure":
        case["logits"] = 300 * np.eye(4)[case["y"]]
    elif hard == "no rows":
        mask[:] = 0
    else:
        mask[1:] = 0
    small = {
        k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in case.items()
    }

    def value(logits, features, params):
        inputs = {"logits": logits, "features": features, "params": params}
        return call(penalty, {**small, **inputs}, mask)

    inputs = [torch.as_tensor(small[k]) for k in ("logits", "features", "params")]
    slopes, found = grad_and_value(value, argnums=(0, 1, 2))(*inputs)
    assert found.isfinite()
    assert all(slope.isfinite().all() for slope in slopes)


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
def test_a_cohort_at_once_is_each_client_alone(penalty):
    cases = [make_case(seed) for seed in range(4)]
    mask = np.random.default_rng(0).integers(0, 2, (4, 8)) + 0.0
    mask[0] = 1.0
    shared = {"start": cases[0]["start"], "change": cases[0]["change"]}
    cases = [{**case, **shared} for case in cases]
    stacked = {
        name: torch.as_tensor(np.stack([case[name] for case in cases]))
        for name in ("logits", "y", "features", "server", "own", "params")
    }

    def value(logits, own, w):
        return call(penalty, {**own, **shared, "logits": logits}, w)

    found = vmap(grad(value))(stacked.pop("logits"), stacked, torch.as_tensor(mask))
    for k, case in enumerate(cases):
        z = torch.as_tensor(case["logits"])
        alone = grad(value)(z, case, torch.as_tensor(mask[k]))
        np.testing.assert_allclose(found[k], alone, rtol=1e-10, atol=1e-13)


def test_penalties_are_values():
    assert NonUniform() == NonUniform(DCA())
    assert Proximal(0.1).weight == 0.1
    assert Contrastive(mu=3.0).weight == 3.0
    assert NonUniform(MDCA(weight=3.0)).weight == 3.0
    assert MMCE().set_params(weight=1.0).weight == 1.0
    assert Proximal().needs == {"global_params"}
    assert NonUniform().needs == {"global_params", "previous_update"}
    assert Contrastive().needs == {"global_features", "previous_features"}
    with pytest.raises(ValueError, match="must be one of 'paper', 'reference'; got"):
        MMCE(normalization="mean")
    empty = Context(counts=torch.ones(4))
    for penalty in (Proximal(), Contrastive(), NonUniform()):
        with pytest.raises(ValueError, match="needs"):
            penalty(
                torch.zeros(2, 4), torch.zeros(2).long(), torch.ones(2), empty, {}, None
            )


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (MMCE, {"width": 0.0}),
        (MMD, {"bandwidth": -1.0}),
        (MMD, {"label_bandwidth": 0}),
        (DCA, {"weight": -1.0}),
        (MDCA, {"weight": None}),
        (Proximal, {"mu": -0.1}),
        (Contrastive, {"tau": 0.0}),
        (Contrastive, {"mu": float("nan")}),
    ],
)
def test_wrong_numbers_are_refused(cls, values):
    ((name, _),) = values.items()
    with pytest.raises(ValueError, match=rf"{cls.__name__}\({name}=.*finite number"):
        cls(**values)


@pytest.mark.parametrize("penalty", [3, DCA, None])
def test_nonuniform_takes_a_penalty(penalty):
    with pytest.raises(TypeError, match="pass a penalty"):
        NonUniform(penalty)
