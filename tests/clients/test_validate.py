"""What may stand in X, y, client_ids, classes and sample_weight."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from skfedcal import FedBinCalibrator, FedTempCalibrator
from skfedcal.clients.forms import make_dataset
from skfedcal.exceptions import CalibrationWarning, LogitsWarning


def draw(n=200, c=3, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, c)) * 2
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits.astype(dtype), labels


def dataset(X, y=None, client_ids=None, **options):
    options = {"classes": None, "input_type": "logits", **options}
    return make_dataset(FedTempCalibrator(), X, y, client_ids, **options)[0]


def packed_rows(data):
    return data.rows if data.order is None else data.rows[data.order]


IDS = {
    "strings": lambda k: np.array([f"client {i}" for i in k]),
    "unsorted ints": lambda k: (k * 7919) % 1009,
    "few sorted": lambda k: np.sort(k),
    "huge": lambda k: np.where(k % 2, 2**63 - 1 - k, -(2**63) + k),
    "negative": lambda k: -k,
    "beyond 64 bits": lambda k: np.array([10**30 + int(i) for i in k], dtype=object),
    "unsigned": lambda k: (2**64 - 1 - k.astype(np.uint64)).astype(np.uint64),
    "one byte": lambda k: (k - 128).astype(np.int8),
    "floats": lambda k: k + 0.5,
    "bools": lambda k: k % 2 == 0,
    "wide span": lambda k: k * 2**20,
    "span of 16 bits": lambda k: np.where(k == 0, 65535, k),
}


@pytest.mark.parametrize("kind", IDS)
def test_client_ids_of_any_kind_group_rows(kind):
    Z, y = draw()
    ids = IDS[kind](np.random.default_rng(1).integers(0, 25, len(y)))
    data = dataset(Z, y, ids)
    assert list(data.names) == sorted(set(ids.tolist()))
    rows = packed_rows(data)
    for i, name in enumerate(data.names):
        own = np.array([v == name for v in ids.tolist()])
        where = slice(data.offsets[i], data.offsets[i + 1])
        np.testing.assert_array_equal(rows[where], Z[own])
        np.testing.assert_array_equal(data.labels[where], y[own])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float32_and_float64_are_kept(dtype):
    Z, y = draw(dtype=dtype)
    for data in (dataset(Z, y), dataset([(Z[:50], y[:50]), (Z[50:].copy(), y[50:])])):
        assert data.rows.dtype == dtype
    for cal in (FedTempCalibrator(), FedBinCalibrator()):
        cal.fit(Z, y)
        for method in ("predict_proba", "predict_log_proba", "decision_function"):
            assert getattr(cal, method)(Z).dtype == dtype


@pytest.mark.parametrize(
    "convert",
    [
        lambda Z: Z.astype(np.float16),
        lambda Z: np.rint(Z).astype(np.int64),
        lambda Z: Z.tolist(),
        lambda Z: Z.astype(">f8"),
        lambda Z: Z.astype(np.longdouble),
    ],
    ids=["float16", "integers", "lists", "big endian", "long double"],
)
def test_other_numbers_become_float64(convert):
    Z, y = draw()
    X = convert(Z)
    assert dataset(X, y).rows.dtype == np.float64
    cal = FedTempCalibrator().fit(X, y)
    same = FedTempCalibrator().fit(np.asarray(X, dtype=np.float64), y)
    assert cal.temperature_ == same.temperature_
    assert cal.predict_proba(X).dtype == np.float64


@pytest.mark.parametrize("layout", ["C", "F", "columns", "backwards", "unaligned"])
def test_memory_layout_does_not_matter(layout):
    Z, y = draw()
    if layout == "columns":
        X = np.repeat(Z, 2, axis=1)[:, ::2]
    elif layout == "backwards":
        X = Z[::-1].copy()[::-1]
    elif layout == "unaligned":
        raw = np.empty(Z.nbytes + 1, dtype=np.uint8)
        X = raw[1:].view(np.float64).reshape(Z.shape)
        X[:] = Z
        assert not X.flags.aligned
    else:
        X = np.asarray(Z, order=layout)
    ids = np.arange(len(y)) % 7
    a, b = (FedTempCalibrator().fit(M, y, client_ids=ids) for M in (X, Z))
    assert a.temperature_ == b.temperature_


@pytest.fixture(params=[np.float32, np.float64])
def mapped(request, tmp_path):
    Z, y = draw(n=300, dtype=request.param)
    Z.tofile(tmp_path / "logits.bin")
    file = tmp_path / "logits.bin"
    return np.memmap(file, dtype=request.param, mode="r", shape=Z.shape), y


IDS_OF_MAPPED = {
    "none": None,
    "sorted": np.arange(300) // 11,
    "unsorted": np.arange(300) % 11,
    "strings": np.array([str(i % 11) for i in range(300)]),
}


@pytest.mark.parametrize("ids", IDS_OF_MAPPED)
def test_a_memory_map_is_not_copied(mapped, ids):
    Z, y = mapped
    data = dataset(Z, y, IDS_OF_MAPPED[ids])
    assert np.shares_memory(data.rows, Z) and data.rows.dtype == Z.dtype
    part = data.select(np.arange(len(data))[::-1])
    assert np.shares_memory(part.rows, Z)
    assert np.shares_memory(data.slice(0, 1).rows, Z)
    assert np.shares_memory(data.by_row().rows, Z)


@pytest.mark.parametrize("source", ["array", "memory map", "one client"])
def test_adjacent_views_are_not_copied(mapped, source):
    Z, y = mapped
    Z = Z if source == "memory map" else np.array(Z)
    cuts = [0, len(y)] if source == "one client" else [0, 1, 1, 40, 170, len(y)]
    pairs = [(Z[a:b], y[a:b]) for a, b in pairwise(cuts)]
    data = dataset(pairs)
    assert np.shares_memory(data.rows, Z)
    np.testing.assert_array_equal(data.rows, Z)
    assert data.offsets.tolist() == cuts


def test_views_that_only_look_adjacent_keep_their_values():
    Z, y = draw(n=60)
    # One row cut with a step: the stride of its first axis is that of two rows.
    odd = [(Z[0:2:2], y[0:1]), (Z[1:3], y[1:3]), (Z[3:], y[3:])]
    np.testing.assert_array_equal(dataset(odd).rows, Z)
    swapped = [(Z[30:], y[30:]), (Z[:30], y[:30])]
    np.testing.assert_array_equal(dataset(swapped).rows, np.r_[Z[30:], Z[:30]])
    twice = [(Z, y), (Z, y)]
    np.testing.assert_array_equal(dataset(twice).rows, np.r_[Z, Z])
    column = [(Z[:20, 0], y[:20] > 0), (Z[20:, 0], y[20:] > 0)]
    np.testing.assert_array_equal(dataset(column).rows[:, 1], Z[:, 0] / 2)


def test_torch_tensors_are_read_with_gradient_and_dtype():
    torch = pytest.importorskip("torch")
    Z, y = draw(dtype=np.float32)
    X, labels = torch.tensor(Z, requires_grad=True), torch.tensor(y)
    expected = FedTempCalibrator().fit(Z, y)
    ids = torch.arange(len(y)) % 7
    for cal in (
        FedTempCalibrator().fit(X, labels),
        FedTempCalibrator().fit(X, labels, client_ids=ids),
        FedTempCalibrator().fit([(X[:50], labels[:50]), (X[50:], labels[50:])]),
        FedTempCalibrator().fit([X[:50], X[50:]], [labels[:50], labels[50:]]),
    ):
        assert cal.temperature_ == pytest.approx(expected.temperature_, rel=1e-9)
        proba = cal.predict_proba(X)
        assert isinstance(proba, torch.Tensor) and proba.dtype == torch.float32


def test_names_of_an_earlier_fit_are_dropped():
    Z, y = draw()
    cal = FedTempCalibrator().fit(pd.DataFrame(Z, columns=list("abc")), y)
    cal.fit(Z[:, :2], np.minimum(y, 1))
    assert not hasattr(cal, "feature_names_in_") and cal.n_features_in_ == 2
    with pytest.raises(ValueError, match="X has 3 features"):
        cal.predict(Z)
    assert cal.n_features_in_ == 2


def test_pandas_keeps_names_and_ignores_the_index():
    Z, y = draw()
    frame = pd.DataFrame(Z, columns=list("abc"), index=np.arange(len(y))[::-1])
    ids = pd.Series(np.arange(len(y)) % 5)
    expected = FedTempCalibrator().fit(Z, y).temperature_
    for cal in (
        FedTempCalibrator().fit(frame, pd.Series(y)),
        FedTempCalibrator().fit(frame, pd.Series(y), client_ids=ids),
        FedTempCalibrator().fit([(frame[:50], y[:50]), (frame[50:], y[50:])]),
        FedTempCalibrator().fit({1: (frame, pd.Series(y))}),
    ):
        assert cal.feature_names_in_.tolist() == ["a", "b", "c"]
        assert cal.temperature_ == pytest.approx(expected, rel=1e-9)
    with pytest.warns(UserWarning, match="valid feature names"):
        cal.predict(Z)
    other = frame.rename(columns={"a": "z"})
    with pytest.raises(ValueError, match="Client 1 has different column names"):
        FedTempCalibrator().fit([(frame, y), (other, y)])
    assert dataset([(frame.astype(np.float32), y)] * 2).rows.dtype == np.float32
    categories = pd.Categorical(np.where(np.arange(len(y)) % 2, "x", "y"))
    assert FedTempCalibrator().fit(frame, y, client_ids=categories).n_clients_ == 2


@pytest.mark.parametrize("c", [3, 60])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_plus_infinity_are_refused(value, c):
    Z, y = draw(c=c)
    cal = FedTempCalibrator(classes=range(c)).fit(Z, y)
    Z[17, 1] = value
    message = r"Input X contains NaN, \+inf, or a row of only -inf"
    for call in (
        lambda: cal.predict_proba(Z),
        lambda: FedTempCalibrator().fit(Z, y),
        lambda: FedTempCalibrator().fit([(Z, y)]),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_minus_infinity_means_probability_zero():
    Z, y = draw()
    masked = (y + 1) % 3
    Z[np.arange(50), masked[:50]] = -np.inf
    low = np.where(np.isinf(Z), -1e6, Z)
    a, b = FedTempCalibrator().fit(Z, y), FedTempCalibrator().fit(low, y)
    assert a.temperature_ == pytest.approx(b.temperature_, rel=1e-12)
    assert (a.predict_proba(Z)[np.arange(50), masked[:50]] == 0).all()
    assert np.isfinite(FedBinCalibrator().fit(Z, y).predict_proba(Z)).all()
    Z[3] = -np.inf
    with pytest.raises(ValueError, match="a row of only -inf"):
        FedTempCalibrator().fit(Z, y)


def test_binary_scores_as_1d_one_column_and_two_columns_agree():
    rng = np.random.default_rng(0)
    d = rng.normal(size=300) * 2
    y = np.where(rng.random(300) < 1 / (1 + np.exp(-d / 1.7)), "yes", "no")
    both = np.column_stack([-d / 2, d / 2])
    fits = [
        (FedTempCalibrator().fit(X, y), X) for X in (d, d[:, None], both, d.tolist())
    ]
    pairs = [(d[:100], y[:100]), (d[100:], y[100:])]
    fits += [
        (FedTempCalibrator().fit(pairs), d),
        (FedTempCalibrator().fit({0: (d, y)}), d),
    ]
    for cal, X in fits:
        assert cal.classes_.tolist() == ["no", "yes"]
        assert cal.temperature_ == pytest.approx(fits[0][0].temperature_, rel=1e-12)
        # The softmax of two columns is the sigmoid: T = 1 is the identity.
        expected = 1 / (1 + np.exp(-d / cal.temperature_))
        np.testing.assert_allclose(cal.predict_proba(X)[:, 1], expected)
        np.testing.assert_allclose(cal.decision_function(X), d / cal.temperature_)
    two = FedTempCalibrator().fit(both, y)
    with pytest.raises(ValueError, match="Expected 2D array with 2 columns, got 1D"):
        two.predict(d)


def test_one_column_less_is_read_as_log_odds_against_the_first_class():
    Z, y = draw()
    odds = Z[:, 1:] - Z[:, :1]
    with pytest.warns(LogitsWarning, match="2 columns for 3 labels.*Pass `classes`"):
        guessed = FedTempCalibrator().fit(odds, y)
    full = FedTempCalibrator().fit(Z, y)
    told = FedTempCalibrator(classes=[0, 1, 2]).fit(odds, y)
    names = np.array(["z", "a", "m"])
    named = FedTempCalibrator(classes=names).fit(odds, names[y])
    for cal in (guessed, told, named):
        assert cal.temperature_ == pytest.approx(full.temperature_, rel=1e-9)
    np.testing.assert_allclose(told.predict_proba(odds), full.predict_proba(Z))
    np.testing.assert_allclose(
        named.predict_proba(odds), full.predict_proba(Z)[:, [1, 2, 0]]
    )


def test_missing_classes_are_column_numbers_or_must_be_named():
    Z, y = draw()
    few = y != 1
    cal = FedTempCalibrator().fit(Z[few], y[few])
    assert cal.classes_.tolist() == [0, 1, 2]
    as_float = FedTempCalibrator().fit(Z[few], y[few].astype(float))
    assert as_float.classes_.tolist() == [0.0, 1.0, 2.0]
    names = np.array(["x", "y", "z"])
    with pytest.raises(
        ValueError, match=r"3 logit columns but y has 2 classes \(\['x'"
    ):
        FedTempCalibrator().fit(Z[few], names[y[few]])
    named = FedTempCalibrator(classes=names).fit(Z[few], names[y[few]])
    assert named.temperature_ == pytest.approx(cal.temperature_, rel=1e-12)
    with pytest.raises(ValueError, match=r"only one class.*Pass `classes`"):
        FedTempCalibrator().fit(Z[y == 1], y[y == 1])


@pytest.mark.parametrize(
    "names",
    [["cat", "dog", "ant"], [7, -3, 2], [2.5, 1.5, 0.5]],
    ids=["strings", "ints", "floats"],
)
def test_classes_name_columns_in_model_order_and_come_out_sorted(names):
    Z, y = draw()
    names = np.array(names)
    labels = names.astype(object)[y] if names.dtype.kind == "U" else names[y]
    plain = FedTempCalibrator().fit(Z, y)
    if names.dtype.kind == "f":
        with pytest.raises(ValueError, match="Unknown label type"):
            FedTempCalibrator(classes=names).fit(Z, labels)
        return
    for cal in (FedTempCalibrator(classes=names), FedBinCalibrator(classes=names)):
        cal.fit(Z, labels)
        assert cal.classes_.tolist() == sorted(names.tolist())
        order = np.argsort(names)
        proba = cal.predict_proba(Z)
        if isinstance(cal, FedTempCalibrator):
            np.testing.assert_allclose(proba, plain.predict_proba(Z)[:, order])
        np.testing.assert_array_equal(
            cal.predict(Z), cal.classes_[cal.decision_function(Z).argmax(axis=1)]
        )
    assert (cal.predict(Z) == names[Z.argmax(axis=1)]).mean() > 0.8


def test_without_classes_string_labels_follow_sorted_columns():
    Z, y = draw()
    cal = FedTempCalibrator().fit(Z, np.array(["a", "b", "c"])[y])
    assert cal.temperature_ == FedTempCalibrator().fit(Z, y).temperature_
    assert cal.classes_.tolist() == ["a", "b", "c"]
    shifted = FedTempCalibrator().fit(Z, y - 1)
    assert shifted.classes_.tolist() == [-1, 0, 1]
    assert FedTempCalibrator().fit(Z[:, :2], y > 0).classes_.tolist() == [False, True]
    for dtype in (np.uint8, np.int16, np.uint64):
        assert FedTempCalibrator().fit(Z, y.astype(dtype)).classes_.dtype == dtype


@pytest.mark.parametrize(
    ("classes", "labels", "message"),
    [
        ([0, 1, 1], [0, 1], r"must hold 3 distinct labels.*got \[0, 1, 1\]"),
        ([0, 1, 2, 3, 4], [0, 1], "must hold 3 distinct labels"),
        ([0], [0, 1], "must hold 3 distinct labels"),
        ([0, 1, 5], [0, 2], r"y contains labels not in `classes`: \[2\]"),
        ([0, 1, 2], ["0", "1"], r"not in `classes`: \['0', '1'\]"),
        (["0", "1", "2"], [0, 1], r"not in `classes`: \[0, 1\]"),
        (None, [0, np.nan], "Input y contains NaN or infinity"),
        (None, [0.5, 1.5], "Unknown label type: continuous"),
        (None, [None, 1], "Unknown label type"),
        (None, [10, 20, 30, 40, 50], r"3 logit columns but y has 5 classes \(\[10, 20"),
    ],
)
def test_labels_that_do_not_fit_are_refused(classes, labels, message):
    Z = np.random.default_rng(0).normal(size=(60, 3))
    y = np.array((labels * 60)[:60], dtype=object if None in labels else None)
    with pytest.raises(ValueError, match=message):
        FedTempCalibrator(classes=classes).fit(Z, y)


def test_empty_and_one_class_clients_are_clients():
    Z, y = draw()
    empty = (np.empty((0, 3)), np.empty(0, dtype=int))
    no_columns = (np.empty(0), [])
    clients = [empty, (Z, y), empty, (Z[y == 1], y[y == 1]), no_columns]
    for cal in (FedTempCalibrator(), FedBinCalibrator()):
        cal.fit(clients)
        assert cal.n_clients_ == 5
        pooled = type(cal)().fit(np.r_[Z, Z[y == 1]], np.r_[y, y[y == 1]])
        np.testing.assert_allclose(cal.predict_proba(Z), pooled.predict_proba(Z))


def test_probabilities_are_declared_and_never_guessed():
    Z, y = draw()
    proba = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
    with pytest.warns(LogitsWarning, match="input_type='proba'"):
        FedTempCalibrator().fit(proba, y)
    logits = FedTempCalibrator().fit(Z, y)
    for kind, X in (("proba", proba), ("log_proba", np.log(proba))):
        cal = FedTempCalibrator(input_type=kind).fit(X, y)
        assert cal.temperature_ == pytest.approx(logits.temperature_, rel=1e-9)
        np.testing.assert_allclose(cal.predict_proba(X), logits.predict_proba(Z))
        with pytest.raises(ValueError, match="pass input_type='logits'"):
            FedTempCalibrator(input_type=kind).fit(Z, y)
        with pytest.raises(ValueError, match="pass input_type='logits'"):
            cal.predict_proba(Z)
    with pytest.raises(
        ValueError, match="log_proba' needs one column per class, got 2"
    ):
        FedTempCalibrator(input_type="log_proba", classes=[0, 1, 2]).fit(Z[:, :2], y)
    # A row that sums to 1 is read the same way next to any other row.
    row, other = np.array([[0.2, 0.3, 0.5]]), np.array([[9.0, -3.0, 1.0]])
    with pytest.warns(LogitsWarning, match="input_type='proba'") as told:
        alone = logits.predict_proba(row)[0]
    assert told[0].filename == __file__
    np.testing.assert_array_equal(alone, logits.predict_proba(np.r_[row, other])[0])


def test_probabilities_of_all_classes_but_the_first():
    rng = np.random.default_rng(0)
    p = rng.random(400)
    y = (rng.random(400) < p).astype(int)
    a = FedTempCalibrator(input_type="proba").fit(p, y)
    b = FedTempCalibrator(input_type="proba").fit(np.column_stack([1 - p, p]), y)
    assert a.temperature_ == pytest.approx(b.temperature_, rel=1e-9)
    zero_one = FedTempCalibrator(input_type="proba").fit(
        [0.0, 1.0, 0.4, 0.3], [0, 1, 1, 0]
    )
    assert np.isfinite(zero_one.predict_log_proba([0.0, 1.0, 0.5])).all()


@pytest.mark.parametrize("solver", ["newton", "grid", "average", "bins"])
def test_weights_stand_for_repeated_rows(solver):
    Z, y = draw(n=120)
    ids = np.arange(120) // 10
    weights = np.random.default_rng(0).integers(0, 4, 120)
    weights[:10] = 0  # a client with nothing left
    cal = FedBinCalibrator(n_bins=5)
    if solver != "bins":
        cal = FedTempCalibrator(solver=solver)
    cal.fit(Z, y, client_ids=ids, sample_weight=weights)
    rows = np.repeat(np.arange(120), weights)
    repeated = type(cal)(**cal.get_params()).fit(Z[rows], y[rows], client_ids=ids[rows])
    np.testing.assert_allclose(
        cal.predict_log_proba(Z), repeated.predict_log_proba(Z), rtol=1e-7
    )


def test_weights_follow_their_rows_in_every_form():
    Z, y = draw()
    weights = np.random.default_rng(0).random(len(y))
    ids = np.arange(len(y)) % 9
    expected = FedTempCalibrator().fit(Z, y, sample_weight=weights).temperature_
    parts = [np.flatnonzero(ids == i) for i in range(9)]
    pairs = [(Z[p], y[p]) for p in parts]
    empty = (np.empty((0, 3)), [])
    own = [weights[p] for p in parts]
    for cal in (
        FedTempCalibrator().fit(Z, y, client_ids=ids, sample_weight=weights.tolist()),
        FedTempCalibrator().fit(pairs, sample_weight=own),
        FedTempCalibrator().fit([*pairs, empty], sample_weight=[*own, []]),
        FedTempCalibrator().fit(Z, y, sample_weight=pd.Series(2 * weights)),
        FedTempCalibrator().fit([Z], [y], sample_weight=[weights]),
    ):
        assert cal.temperature_ == pytest.approx(expected, rel=1e-9)
    assert FedTempCalibrator().fit(
        Z, y, sample_weight=3.0
    ).temperature_ == pytest.approx(
        FedTempCalibrator().fit(Z, y).temperature_, rel=1e-9
    )


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(199), r"sample_weight has shape \(199,\), expected \(200,\)"),
        (np.ones((200, 1)), r"shape \(200, 1\)"),
        (-np.ones(200), "finite and not negative"),
        (np.full(200, np.nan), "finite and not negative"),
        (np.full(200, np.inf), "finite and not negative"),
        (np.zeros(200), "sample_weight is zero for every row"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    Z, y = draw()
    with pytest.raises(ValueError, match=message):
        FedTempCalibrator().fit(Z, y, sample_weight=weights)
    if len(weights) == 200 and weights.any():
        with pytest.raises(ValueError, match="client 'b'"):
            FedTempCalibrator().fit(
                {"a": (Z, y), "b": (Z, y)}, sample_weight=[np.ones(200), weights]
            )


def test_constant_logits_say_so():
    with pytest.warns(CalibrationWarning, match="stopped at T ="):
        cal = FedTempCalibrator().fit(np.zeros((6, 2)), [0, 1] * 3)
    assert cal.temperature_ == 1 and not cal.converged_


def test_bfloat16_tensors_are_read():
    torch = pytest.importorskip("torch")

    rows = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]], dtype=torch.bfloat16)
    labels = np.array([0, 1, 1])
    plain = FedTempCalibrator().fit(rows.float().numpy(), labels)
    for cal in (
        FedTempCalibrator().fit(rows, labels),
        FedTempCalibrator().fit([(rows, labels)]),
    ):
        assert cal.temperature_ == plain.temperature_


def test_columns_named_by_the_labels_are_in_that_order():
    rng = np.random.default_rng(0)
    names = np.array(["c", "a", "b"])
    rows = rng.normal(size=(500, 3)) * 2
    labels = names[(rows + rng.gumbel(size=rows.shape)).argmax(axis=1)]
    frame = pd.DataFrame(rows, columns=names)
    cal = FedTempCalibrator().fit(frame, labels)
    given = FedTempCalibrator(classes=names).fit(rows, labels)
    assert cal.temperature_ == given.temperature_
    np.testing.assert_array_equal(cal.predict_proba(frame), given.predict_proba(rows))


def _pairs(sizes, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    rows = [rng.normal(size=(n, 3)).astype(dtype) for n in sizes]
    return [(Z, rng.integers(0, 3, len(Z))) for Z in rows]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("sizes", [[5, 4, 7], [3, 0, 6, 0], [0, 9]])
def test_plain_arrays_and_lists_are_the_same_clients(sizes, dtype):
    pairs = _pairs(sizes, dtype)
    # A client that holds lists is checked by itself, and with it all others are.
    checked = [(Z, list(y)) for Z, y in pairs]
    options = {"classes": [0, 1, 2]}
    found = [dataset(clients, **options) for clients in (pairs, checked)]
    for name in ("rows", "labels", "offsets"):
        quick, slow = (getattr(data, name) for data in found)
        np.testing.assert_array_equal(quick, slow)
        assert quick.dtype == slow.dtype
    assert found[0].names == found[1].names


def test_what_is_not_uniform_is_still_named():
    good = _pairs([4, 4, 4])
    for change, message in (
        ((good[0][0][:3], good[0][1]), "Client 1 has 3 rows of logits but 4 labels"),
        ((good[0][0][:, :2], good[0][1]), "Client 1 has 2 logit columns"),
        ((good[0][0][None], good[0][1][:1]), r"Client 1 has logits of shape \(1, 4"),
        ((good[0][0], np.array(3)), "Client 1 must be a"),
        ((good[0][0].astype("M8[s]"), good[0][1]), "dates or durations"),
    ):
        clients = [good[0], change, good[2]]
        with pytest.raises((ValueError, TypeError), match=message):
            dataset(clients)
    with pytest.raises(ValueError, match="every client is empty"):
        dataset([(good[0][0][:0], good[0][1][:0])] * 2)
    mixed = [good[0], (good[1][0].astype(np.float64), good[1][1])]
    assert dataset(mixed).rows.dtype == np.float64
    texts = [(Z, np.array(["a", "b", "c"])[y]) for Z, y in _pairs([30, 30])]
    expected = np.concatenate([y for _, y in _pairs([30, 30])])
    np.testing.assert_array_equal(dataset(texts).labels, expected)


def test_the_client_column_of_an_earlier_fit_is_forgotten():
    Z, y = draw()
    frame = pd.DataFrame(Z, columns=list("abc")).assign(site=np.arange(len(y)) % 4)
    cal = FedTempCalibrator().fit(frame, y, client_ids="site")
    assert cal.n_clients_ == 4
    cal.fit([(frame[list("abc")], y)])
    with pytest.raises(ValueError, match="site"):
        cal.predict_proba(frame)


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint16])
def test_classes_that_are_column_numbers_are_as_any_others(kind):
    X, y = np.zeros((6, 3)), np.array([2, 0, 0, 2, 2, 0], dtype=kind)
    mine = np.arange(3)
    for given in (range(3), mine, [0.0, 1.0, 2.0]):  # numbers that are not whole
        read = make_dataset(
            FedTempCalibrator(), X, y, None, classes=given, input_type="logits"
        )
        mine[0] += 7
        assert read[1].classes.tolist() == [0, 1, 2]
        assert read[1].order.tolist() == [0, 1, 2]
        assert read[0].labels.tolist() == y.tolist()
        mine[0] -= 7
    for wrong, labels, message in (
        (range(2), y, "must hold 3 distinct labels"),
        (range(5), y, "must hold 3 distinct labels"),
        (range(1, 4), y, r"not in `classes`: \[0\]"),
        (range(3), y + kind(1), r"not in `classes`: \[3\]"),
    ):
        with pytest.raises(ValueError, match=message):
            dataset(X, labels, classes=wrong)


@pytest.mark.parametrize("form", ["arrays", "pairs", "names"])
def test_the_warning_about_probabilities_points_at_the_fit(form):
    proba = np.random.default_rng(0).dirichlet(np.ones(3), 60)
    y = np.arange(60) % 3
    given = {
        "arrays": (proba, y),
        "pairs": ([(proba, y)],),
        "names": ({"a": (proba, y)},),
    }
    with pytest.warns(LogitsWarning, match="sum to 1") as caught:
        FedTempCalibrator().fit(*given[form])
    about = [w for w in caught if issubclass(w.category, LogitsWarning)]
    assert [w.filename for w in about] == [__file__]
