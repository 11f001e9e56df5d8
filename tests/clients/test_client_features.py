"""Clients of raw features: forms, classes, errors."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator

from skfedcal.clients.features import check_features, read_features
from skfedcal.clients.forms import LABELS_PUBLIC
from skfedcal.exceptions import PrivacyWarning


class Reader(BaseEstimator):
    """Where scikit-learn's validation writes to."""


def packed(read):
    """Rows and labels of each client."""
    data = read.dataset
    out = []
    for i in range(len(data)):
        part = data.slice(i, i + 1).compact()
        out.append((part.rows, read.classes[part.labels]))
    return out


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(20, 3)), rng.choice(["x", "y", "z"], 20)


def test_all_forms_are_the_same_clients(rows):
    X, y = rows
    ids = np.arange(20) % 3
    pairs = [(X[ids == k], y[ids == k]) for k in range(3)]
    forms = [
        read_features(Reader(), X, y, ids),
        read_features(Reader(), pairs),
        read_features(Reader(), [p[0] for p in pairs], [p[1] for p in pairs]),
        read_features(Reader(), dict(zip("abc", pairs, strict=True))),
        read_features(Reader(), pd.DataFrame(X), pd.Series(y), ids.astype(str)),
    ]
    for form in forms:
        assert form.classes.tolist() == ["x", "y", "z"]
        for (got, labels), (expected, truth) in zip(packed(form), pairs, strict=True):
            np.testing.assert_array_equal(got, expected)
            np.testing.assert_array_equal(labels, truth)
    assert list(forms[3].dataset.names) == ["a", "b", "c"]
    assert len(read_features(Reader(), X, y).dataset) == 1


def test_empty_clients_and_images_are_allowed():
    X = np.zeros((6, 4, 5), np.float32)
    y = np.array([0, 1, 1, 0, 1, 0])
    read = read_features(
        Reader(), [(X[:2], y[:2]), (X[:0], y[:0]), (X[2:], y[2:])], allow_nd=True
    )
    assert read.dataset.sizes.tolist() == [2, 0, 4]
    assert read.dataset.rows.shape == (6, 4, 5)
    assert read.dataset.rows.dtype == np.float32


def test_tensors_are_read():
    torch = pytest.importorskip("torch")
    X, y = torch.randn(8, 2, requires_grad=True), torch.arange(8) % 2
    read = read_features(Reader(), [(X[:3], y[:3]), (X[3:], y[3:])])
    np.testing.assert_array_equal(read.dataset.rows, X.detach().numpy())
    assert read_features(Reader(), X, y).dataset.labels.tolist() == y.tolist()


def test_given_classes_may_be_unseen_and_are_sorted(rows):
    X, y = rows
    read = read_features(Reader(), X, y, classes=["z", "a", "y", "x"])
    assert read.classes.tolist() == ["a", "x", "y", "z"]
    assert read.dataset.n_classes == 4
    np.testing.assert_array_equal(read.classes[read.dataset.labels], y)


def test_labels_are_public_only_if_nobody_gave_them(rows):
    X, y = rows
    with pytest.warns(PrivacyWarning, match="read from y, which is private"):
        read = read_features(Reader(), X, y, private=True)
    assert read.assumptions == (LABELS_PUBLIC,)
    assert not read_features(
        Reader(), X, y, classes=["x", "y", "z"], private=True
    ).assumptions
    assert not read_features(Reader(), X, y).assumptions


def test_wrong_input_says_what_is_wrong(rows):
    X, y = rows
    frame = pd.DataFrame(X, columns=list("abc"))
    for args, how, message in (
        (([(X, y), (X[:2], y[:3])],), {}, "Client 1 has 2 rows of features but 3 lab"),
        (([(X, y), (X[:, :2], y)],), {}, r"Client 1 has rows of shape \(2,\), earlier"),
        (([(frame, y), (frame[["b", "a", "c"]], y)],), {}, "different column names"),
        (([(X[:0], y[:0])],), {}, "every client is empty"),
        ((X, np.zeros(20)), {}, r"only one class \(\[0.0\]\)"),
        ((X, y), {"classes": ["x", "y"]}, r"labels not in `classes`: \['z'\]"),
        ((X, y), {"classes": ["x", "x", "y", "z"]}, "each once"),
        ((X, np.full(20, np.nan)), {}, "y contains NaN"),
        ((X, np.linspace(0, 1, 20)), {}, "continuous|Unknown label type"),
        ((X[:5], y), {}, "inconsistent numbers of samples"),
    ):
        with pytest.raises(ValueError, match=message):
            read_features(Reader(), *args, **how)


def test_messages_about_clients_speak_of_features(rows):
    X, y = rows
    for args in ((X,), ([],), ([(X, y), X],), ([X], [y, y])):
        with pytest.raises(ValueError, match="features") as found:
            read_features(Reader(), *args)
        assert "logit" not in str(found.value)


def test_rows_to_predict_must_fit_those_of_the_fit(rows):
    X, y = rows
    reader = Reader()
    read_features(reader, X, y)
    assert check_features(reader, X[:2], reset=False).shape == (2, 3)
    with pytest.raises(ValueError, match="X has 2 features"):
        check_features(reader, X[:, :2], reset=False)
