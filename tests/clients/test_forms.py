"""All accepted forms of `fit` arguments mean the same; unclear ones are refused."""

import warnings

import numpy as np
import pytest

from skfedcal import FedBinCalibrator, FedTempCalibrator
from skfedcal.clients.forms import make_dataset, parse_clients, resolve_classes

SIZES = (40, 0, 7, 1, 52)


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    out = []
    for size in SIZES:
        logits = rng.normal(size=(size, 3)) * 2
        out.append(
            (logits, (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1))
        )
    return out


@pytest.fixture
def pooled(clients):
    return tuple(np.concatenate([c[i] for c in clients]) for i in (0, 1))


def forms(clients):
    """Every call form of five clients, one of them empty."""
    Z, y = (np.concatenate([c[i] for c in clients]) for i in (0, 1))
    names = list("abcde")
    ids = np.repeat(names, SIZES)
    shuffle = np.random.default_rng(1).permutation(len(y))
    return {
        "pairs": ((clients,), {}, 5),
        "tuple of pairs": ((tuple(clients),), {}, 5),
        "lists as pairs": (([list(c) for c in clients],), {}, 5),
        "named pairs": ((clients,), {"client_ids": names}, 5),
        "dict": ((dict(zip(names, clients, strict=True)),), {}, 5),
        "two lists": (([c[0] for c in clients], [c[1] for c in clients]), {}, 5),
        "two tuples": (
            (tuple(c[0] for c in clients), tuple(c[1] for c in clients)),
            {"client_ids": names},
            5,
        ),
        "nested lists": (
            ([(c[0].tolist(), c[1].tolist()) for c in clients if len(c[1])],),
            {},
            4,
        ),
        "one client": ((Z, y), {}, 1),
        "one client in a list": (([(Z, y)],), {}, 1),
        "python lists": ((Z.tolist(), y.tolist()), {}, 1),
        "ids": ((Z, y), {"client_ids": ids}, 4),
        "ids as a column": ((Z, y[:, None].ravel()), {"client_ids": ids[:, None]}, 4),
        "ids reversed": ((Z[::-1], y[::-1]), {"client_ids": ids[::-1]}, 4),
        "ids shuffled": ((Z[shuffle], y[shuffle]), {"client_ids": ids[shuffle]}, 4),
    }


@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
@pytest.mark.parametrize("name", list(forms([(np.empty((0, 3)), np.empty(0))] * 5)))
def test_every_call_form_gives_the_same_fit(name, clients):
    args, options, n_clients = forms(clients)[name]
    temp = FedTempCalibrator().fit(*args, **options)
    reference = FedTempCalibrator().fit(clients)
    assert temp.n_clients_ == n_clients
    assert temp.temperature_ == pytest.approx(reference.temperature_, rel=1e-9)
    bins = FedBinCalibrator(n_bins=4).fit(*args, **options)
    np.testing.assert_array_equal(
        bins.positive_, FedBinCalibrator(n_bins=4).fit(clients).positive_
    )


def test_two_lists_are_clients_only_if_every_entry_of_y_is_a_sequence():
    rows, labels = [[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]], ["left", "right", "left"]
    assert parse_clients(rows, labels).from_arrays
    assert parse_clients(rows, tuple(labels)).from_arrays
    assert not parse_clients([rows, rows], [labels, labels]).from_arrays
    assert parse_clients([rows, rows], [labels, labels]).names == [0, 1]


def test_names_come_from_the_dict_or_from_client_ids(clients):
    named = dict(zip("vwxyz", clients, strict=True))
    assert parse_clients(named).names == list("vwxyz")
    assert parse_clients(named, client_ids=range(5)).names == [0, 1, 2, 3, 4]
    assert parse_clients(clients, client_ids=list("vwxyz")).names == list("vwxyz")


ZEROS, TWO = np.zeros((4, 2)), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (((ZEROS, TWO),), {}, r"pair, got ndarray.*Did you mean fit\(\[\(X, y\)\]\)\?"),
        (
            ([[1.0, 2.0], [3.0, 4.0]],),
            {},
            r"Client 0 must be a .*requires y to be pass",
        ),
        (
            (([[1.0, 2.0], [3.0, 4.0]], [0, 1]),),
            {},
            r"Did you mean fit\(\[\(X, y\)\]\)",
        ),
        (
            (ZEROS,),
            {},
            "requires y to be passed, but the target y is None.*got ndarray",
        ),
        (([],), {}, "Found 0 clients; at least one"),
        (({},), {}, "Found 0 clients; at least one"),
        (([ZEROS, ZEROS, ZEROS],), {}, "Client 0 must be a .* pair, got ndarray"),
        (([(ZEROS, TWO), ZEROS],), {}, "Client 1 must be a .* pair, got ndarray"),
        (([(ZEROS, TWO, TWO)],), {}, "Client 0 must be a .* pair, got tuple"),
        (({"a": ZEROS},), {}, "Client 'a' must be a .* pair"),
        (
            (ZEROS, [TWO]),
            {},
            "y is a list of 1 clients, so X must be .*; got ndarray of",
        ),
        (([ZEROS], [TWO, TWO]), {}, "y is a list of 2 clients.* got list of length 1"),
        ((3.0, [TWO, TWO]), {}, "got float without a length"),
        (([(ZEROS, TWO)],), {"client_ids": TWO}, "names 4 clients but 1 were given"),
        (
            ([(ZEROS, TWO)] * 2,),
            {"client_ids": ["a", "a"]},
            "client_ids contains a duplicate name",
        ),
        (
            (ZEROS, TWO),
            {"client_ids": [1, 2]},
            "client_ids has 2 entries for 4 rows; pass one id per row",
        ),
        (
            (
                [
                    (ZEROS, TWO),
                    (np.where(np.eye(4)[:, : ZEROS.shape[1]], np.nan, 0), TWO),
                ],
            ),
            {},
            rf"in {ZEROS.shape[1]} of 8 rows \(first in row 4, counted from 0\)",
        ),
        (
            (ZEROS, TWO),
            {"client_ids": np.ones((4, 2))},
            r"client_ids has shape \(4, 2\)",
        ),
        (
            (ZEROS, TWO),
            {"client_ids": [1, None, 2, 3]},
            "client_ids contains None or NaN",
        ),
        (
            (ZEROS, TWO),
            {"client_ids": [1, np.nan, 2, 3]},
            "client_ids contains None or NaN",
        ),
        (
            ([(ZEROS, TWO)],),
            {"sample_weight": np.ones(4)},
            "pass sample_weight as a list of 1 arrays, one per client",
        ),
        (
            ([(ZEROS, TWO)] * 2,),
            {"sample_weight": [np.ones(4)]},
            "pass sample_weight as a list of 2 arrays",
        ),
        (([ZEROS], [[0, 1, 0]]), {}, "Client 0 has 4 rows of logits but 3 labels"),
        (
            ([np.zeros((2, 2)), np.zeros((2, 3))], [[0, 1], [0, 1]]),
            {},
            "Client 1 has 3 logit columns, earlier clients have 2",
        ),
        (
            ([np.zeros((2, 2, 2))], [[0, 1]]),
            {},
            r"Client 0 has logits of shape \(2, 2, 2",
        ),
        (([(np.empty((0, 2)), [])] * 2,), {}, "Found 0 samples: every client is empty"),
    ],
)
def test_unclear_arguments_are_refused_with_the_way_out(args, options, message):
    with pytest.raises(ValueError, match=message):
        FedTempCalibrator().fit(*args, **options)


def test_client_ids_of_mixed_types_are_refused_by_name(pooled):
    ids = np.array(["a", 1] * 50, dtype=object)
    with pytest.raises(TypeError, match=r"client_ids mixes \['int', 'str'\]"):
        FedTempCalibrator().fit(*pooled, client_ids=ids)


@pytest.mark.parametrize(
    ("dtype", "n_columns"),
    [(np.int8, 300), (np.uint8, 300), (np.int16, 40_000), (np.float16, 2100)],
)
def test_classes_have_a_type_that_holds_all_columns(dtype, n_columns):
    """Labels that occur may need fewer bits than the number of columns."""
    y = np.arange(100).astype(dtype)
    classes = resolve_classes(y, None, n_columns=n_columns)
    np.testing.assert_array_equal(classes.classes, np.arange(n_columns))
    np.testing.assert_array_equal(classes.columns(y), np.arange(100))
    few = resolve_classes(y, None, n_columns=100)
    assert few.classes.dtype == dtype


def test_predictions_of_small_labels_are_the_columns():
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(400, 300)), np.arange(400) % 100
    fitted = FedTempCalibrator().fit(logits, y.astype(np.int8))
    np.testing.assert_array_equal(fitted.predict(logits), logits.argmax(axis=1))


def test_forms_raise_no_warning(clients):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FedTempCalibrator().fit(clients)
        FedTempCalibrator().fit(dict(enumerate(clients)))


@pytest.mark.parametrize("make", [tuple, list])
def test_pairs_that_are_checked_together_are_as_single_ones(make):
    rng = np.random.default_rng(0)
    sizes = [3, 0, 2, 1]
    pairs = [make((rng.normal(size=(n, 3)), rng.integers(3, size=n))) for n in sizes]
    options = {"classes": range(3), "input_type": "logits"}
    one = make_dataset(FedTempCalibrator(), pairs, None, None, **options)[0]
    # One client of another type: each is asked.
    mixed = [(pairs[0][0].tolist(), pairs[0][1].tolist()), *pairs[1:]]
    other = make_dataset(FedTempCalibrator(), mixed, None, None, **options)[0]
    for data in (one, other):
        assert data.sizes.tolist() == sizes
        np.testing.assert_array_equal(data.rows, np.vstack([X for X, _ in pairs]))
        expected = np.concatenate([y for _, y in pairs])
        np.testing.assert_array_equal(data.labels, expected)
    for wrong, message in (
        (make((pairs[2][0], np.array(1))), "Client 4 must be a"),
        (make((pairs[2][0],)), "Client 4 must be a"),
        (make((pairs[2][0], pairs[0][1])), "Client 4 has 2 rows of logits but 3"),
        (make((pairs[2][0][0], pairs[3][1])), "Client 4 has 3 rows of logits but 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make_dataset(FedTempCalibrator(), [*pairs, wrong], None, None, **options)
