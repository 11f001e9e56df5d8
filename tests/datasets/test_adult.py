"""Adult: the layout of UCI's files."""

import hashlib

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import OneHotEncoder

from skfedcal.datasets import _adult, load_adult
from skfedcal.datasets._adult import CATEGORIES, COLUMNS

# The first lines of the original, and two of its rows with missing values.
TRAIN = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
50, Self-emp-not-inc, 83311, Bachelors, 13, Married-civ-spouse, Exec-managerial, Husband, White, Male, 0, 0, 13, United-States, <=50K
40, Private, 121772, Assoc-voc, 11, Married-civ-spouse, Craft-repair, Husband, Asian-Pac-Islander, Male, 0, 0, 40, ?, >50K
54, ?, 180211, Some-college, 10, Married-civ-spouse, ?, Husband, Asian-Pac-Islander, Male, 0, 0, 60, South, >50K
28, Private, 338409, Bachelors, 13, Married-civ-spouse, Prof-specialty, Wife, Black, Female, 0, 0, 40, Cuba, <=50K

"""  # noqa: E501
TEST = """\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, Male, 0, 0, 40, United-States, <=50K.
28, Local-gov, 336951, Assoc-acdm, 12, Married-civ-spouse, Protective-serv, Husband, White, Male, 0, 0, 40, United-States, >50K.
18, ?, 103497, Some-college, 10, Never-married, ?, Own-child, White, Female, 0, 0, 30, United-States, <=50K.

"""  # noqa: E501


@pytest.fixture
def home(tmp_path):
    (tmp_path / "adult.data").write_text(TRAIN)
    (tmp_path / "adult.test").write_text(TEST)
    return tmp_path


def by_pandas(path, skip=0):
    names = [*COLUMNS, "income"]
    table = pd.read_csv(path, names=names, skiprows=skip, skipinitialspace=True)
    return table, (table.pop("income").str.rstrip(".") == ">50K").to_numpy(int)


@pytest.mark.parametrize("split", ["train", "test"])
def test_pandas_and_an_encoder_agree(home, split):
    name, skip = ("adult.data", 0) if split == "train" else ("adult.test", 1)
    table, labels = by_pandas(home / name, skip)
    adult = load_adult(home, split=split)
    np.testing.assert_array_equal(adult.target, labels)
    found = pd.DataFrame(adult.data, columns=adult.feature_names)
    numbers = table.select_dtypes("number")
    pd.testing.assert_frame_equal(found[numbers.columns], numbers.astype(float))
    texts = table.drop(columns=numbers.columns)
    encoder = OneHotEncoder(sparse_output=False).fit(texts)
    columns = [
        f"{column}={value}"
        for column, values in zip(texts.columns, encoder.categories_, strict=True)
        for value in values
    ]
    np.testing.assert_array_equal(found[columns], encoder.transform(texts))
    others = found.columns.difference([*columns, *numbers.columns])
    assert not found[others].any(axis=None)


def test_columns_depend_on_the_lists_only(home):
    train, test = (load_adult(home, split=split) for split in ("train", "test"))
    assert train.feature_names == test.feature_names
    assert len(set(train.feature_names)) == train.data.shape[1] == 108
    assert [len(values) for values in CATEGORIES.values()] == [
        8,
        16,
        7,
        14,
        6,
        5,
        2,
        41,
    ]


def test_ordinal_codes_are_places_in_the_lists(home):
    adult = load_adult(home, encoding="ordinal")
    assert adult.feature_names == list(COLUMNS) and adult.data.shape == (5, 14)
    table, _ = by_pandas(home / "adult.data")
    for name, column in zip(COLUMNS, adult.data.T, strict=True):
        if name not in CATEGORIES:
            np.testing.assert_array_equal(column, table[name])
            continue
        names = [*CATEGORIES[name], "?"]
        codes = np.where(np.isnan(column), len(names) - 1, column).astype(int)
        assert [names[code] for code in codes] == table[name].tolist()


def test_all_is_train_and_then_test(home):
    X, y = load_adult(home, split="all", return_X_y=True)
    for part, rows in (("train", slice(5)), ("test", slice(5, None))):
        own = load_adult(home, split=part)
        np.testing.assert_array_equal(X[rows], own.data)
        np.testing.assert_array_equal(y[rows], own.target)


@pytest.mark.parametrize("column", ["occupation", "sex", "native-country"])
def test_clients_are_the_values_of_a_column(home, column):
    adult = load_adult(home, split="all", client_column=column)
    tables = [by_pandas(home / "adult.data"), by_pandas(home / "adult.test", 1)]
    owners = pd.concat([table for table, _ in tables])[column].to_numpy()
    assert adult.client_names.tolist() == sorted(set(owners))
    np.testing.assert_array_equal(adult.client_names[adult.client_ids], owners)
    clients = load_adult(home, split="all", client_column=column, as_clients=True)
    assert list(clients) == adult.client_names.tolist()
    for (name, (X, y)), pair in zip(clients.items(), adult.clients, strict=True):
        np.testing.assert_array_equal(X, adult.data[owners == name])
        np.testing.assert_array_equal(y, adult.target[owners == name])
        np.testing.assert_array_equal(X, pair[0])


LINE = TRAIN.splitlines()[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINE + "\n" + LINE[:50], "line 2: expected 15 values .* found 6"),
        (LINE + ", 1", "line 1: expected 15 values .* found 16"),
        (LINE.replace("<=50K", "50K"), "line 1: expected one of .* as last value"),
        (LINE.replace("39", "old"), "expected a number as age, found 'old'"),
        (LINE.replace("White", "Green"), "a category of adult.names as race"),
        ("\x80\xff", "expected text"),
    ],
)
def test_damage_is_named(tmp_path, text, message):
    (tmp_path / "adult.data").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message) as caught:
        load_adult(tmp_path)
    assert str(tmp_path / "adult.data") in str(caught.value)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"split": "val"}, "split must be"),
        ({"encoding": "binary"}, "encoding must be"),
        ({"client_column": "age"}, "client_column must be one of"),
        ({"return_X_y": True, "as_clients": True}, "exclude each other"),
    ],
)
def test_wrong_choices_are_named(home, params, message):
    with pytest.raises(ValueError, match=message):
        load_adult(home, **params)


def test_missing_file_names_its_source(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"adult\.data .*archive\.ics\.uci\.edu"
    ):
        load_adult(tmp_path)


def test_download_from_a_server(server, home, tmp_path, monkeypatch):
    monkeypatch.setattr(_adult, "URL", server)
    sums = {
        name: hashlib.sha256((home / name).read_bytes()).hexdigest()
        for name in ("adult.data", "adult.test")
    }
    monkeypatch.setattr(_adult, "SHA256", sums)
    new = tmp_path / "deep" / "new"
    found = load_adult(new, split="all", download=True)
    np.testing.assert_array_equal(found.data, load_adult(home, split="all").data)
    assert sorted(path.name for path in new.iterdir()) == sorted(sums)
    # What is there is not fetched again.
    monkeypatch.setattr(_adult, "URL", "http://127.0.0.1:9/")
    load_adult(new, split="all", download=True)


def test_another_file_than_the_original_is_refused(server, home, tmp_path, monkeypatch):
    monkeypatch.setattr(_adult, "URL", server)
    new = tmp_path / "new"
    with pytest.raises(ValueError, match="expected a file with sha256 5b002646"):
        load_adult(new, download=True)
    assert list(new.iterdir()) == []


def test_no_network_is_said(server, tmp_path, monkeypatch):
    monkeypatch.setattr(_adult, "URL", server + "nowhere/")
    with pytest.raises(OSError, match=r"Could not download .*404.* fetch the file"):
        load_adult(tmp_path / "new", download=True)


@pytest.mark.parametrize("text", ["", "|1x3 Cross validator\n"])
def test_a_file_without_rows_is_damaged(home, text):
    (home / "adult.data").write_text(text)
    with pytest.raises(ValueError, match=r"adult.data: expected rows .* found none"):
        load_adult(home)
