"""FEMNIST and Shakespeare: the JSON files of LEAF."""

import json

import numpy as np
import pytest

from skfedcal.datasets import load_femnist, load_shakespeare

RNG = np.random.default_rng(4)

# Copied from LEAF's language_utils.py.
ALL_LETTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)


def write(folder, name, users, **entries):
    """Write a file of LEAF; `users` maps names to (x, y)."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / f"{name}.json").write_text(json.dumps(content | entries))


def images(n_rows):
    pixels = (RNG.integers(256, size=(n_rows, 784)) / 255).tolist()
    return pixels, RNG.integers(62, size=n_rows).tolist()


def texts(n_rows):
    draws = RNG.integers(80, size=(n_rows, 81))
    rows = ["".join(ALL_LETTERS[i] for i in row) for row in draws]
    return [row[:80] for row in rows], [row[80] for row in rows]


KINDS = [
    pytest.param(load_femnist, "femnist", images, id="femnist"),
    pytest.param(load_shakespeare, "shakespeare", texts, id="shakespeare"),
]


def decoded(x, y):
    """What the reader must return, the slow way."""
    if isinstance(y[0], int):
        return np.array(x, np.float32).reshape(-1, 28, 28), np.array(y)
    places = [[ALL_LETTERS.find(letter) for letter in row] for row in x]
    return np.array(places), np.array([ALL_LETTERS.find(letter) for letter in y])


@pytest.mark.parametrize(("load", "name", "draw"), KINDS)
@pytest.mark.parametrize("place", ["", "data", "{}/data", "{}", "data/{}/data"])
def test_users_come_back_sorted_with_their_rows(tmp_path, load, name, draw, place):
    users = {"w3": draw(4), "w1": draw(1), "w2": draw(6)}
    folder = tmp_path / place.format(name)
    write(folder / "train", "all_data_1", {"w1": users["w1"]}, hierarchies=["a"])
    write(folder / "train", "all_data_0", {u: users[u] for u in ("w3", "w2")})
    found = load(tmp_path)
    assert found.client_names.tolist() == ["w1", "w2", "w3"]
    assert found.client_ids.tolist() == [0] + [1] * 6 + [2] * 4
    clients = load(tmp_path, as_clients=True)
    assert list(clients) == ["w1", "w2", "w3"]
    for (user, (X, y)), pair in zip(clients.items(), found.clients, strict=True):
        rows, labels = decoded(*users[user])
        np.testing.assert_array_equal(X, rows)
        np.testing.assert_array_equal(y, labels)
        np.testing.assert_array_equal(pair[0], rows)
        assert y.dtype == np.int64
    X, y = load(tmp_path, return_X_y=True)
    np.testing.assert_array_equal(X, found.data)
    np.testing.assert_array_equal(y, np.concatenate([y for _, y in found.clients]))


@pytest.mark.parametrize(("load", "name", "draw"), KINDS)
def test_all_joins_the_parts_of_each_user(tmp_path, load, name, draw):
    train, test = {"b": draw(3), "a": draw(2)}, {"a": draw(1), "c": draw(2)}
    write(tmp_path / "train", "train", train)
    write(tmp_path / "test", "test", test)
    clients = load(tmp_path, split="all", as_clients=True)
    assert {user: len(y) for user, (_, y) in clients.items()} == {
        "a": 3,
        "b": 3,
        "c": 2,
    }
    expected = [decoded(*train["a"])[0], decoded(*test["a"])[0]]
    np.testing.assert_array_equal(clients["a"][0], np.concatenate(expected))


@pytest.mark.parametrize(("load", "name", "draw"), KINDS)
def test_small_users_are_counted_over_both_parts(tmp_path, load, name, draw):
    write(tmp_path / "train", "t", {"a": draw(3), "b": draw(4), "c": draw(5)})
    write(tmp_path / "test", "t", {"a": draw(2), "b": draw(0), "c": draw(1)})
    for split, sizes in (("train", [3, 5]), ("test", [2, 1]), ("all", [5, 6])):
        clients = load(tmp_path, split=split, min_samples=5, as_clients=True)
        assert list(clients) == ["a", "c"]
        assert [len(y) for _, y in clients.values()] == sizes
    with pytest.raises(ValueError, match="none of 3 users has min_samples=7 rows"):
        load(tmp_path, min_samples=7)


def test_names_of_classes(tmp_path):
    write(tmp_path / "train", "t", {"a": images(1)})
    names = load_femnist(tmp_path).target_names
    # 0-9, then 10-35 capital, then 36-61 small, as LEAF's data_to_json.py has it.
    assert (names[7], names[10], names[35], names[36], names[61]) == tuple("7AZaz")
    write(tmp_path / "train", "t", {"a": texts(1)})
    found = load_shakespeare(tmp_path)
    assert "".join(found.target_names) == ALL_LETTERS and len(ALL_LETTERS) == 80
    assert found.data.dtype == np.uint8


def test_characters_outside_of_the_alphabet(tmp_path):
    write(tmp_path / "train", "t", {"a": (["é" + "x" * 79], ["*"])})
    with pytest.raises(ValueError, match=r"t\.json, user 'a': 'é' is not in LEAF's"):
        load_shakespeare(tmp_path)
    X, y = load_shakespeare(tmp_path, unknown=" ", return_X_y=True)
    assert X[0, 0] == y[0] == ALL_LETTERS.find(" ") and X[0, 1] == ALL_LETTERS.find("x")
    for wrong in ("é", "ab", ""):
        with pytest.raises(ValueError, match="unknown must be one character"):
            load_shakespeare(tmp_path, unknown=wrong)


def test_the_same_user_in_two_files_is_refused(tmp_path):
    write(tmp_path / "train", "one", {"a": images(1)})
    write(tmp_path / "train", "two", {"a": images(1)})
    with pytest.raises(ValueError, match=r"'a' is in .*one\.json and again in .*two"):
        load_femnist(tmp_path)


ROW = [0.5] * 784


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], r"is \[1\]; expected an object"),
        ({"users": []}, "'num_samples' is missing; expected list"),
        ({"users": {}, "num_samples": [], "user_data": {}}, "'users' is {}; expected"),
        ({"users": ["a"], "num_samples": [], "user_data": {}}, "found 1 and 0"),
        ({"users": ["a"], "num_samples": [1], "user_data": {}}, "x and y of user 'a'"),
        (
            {"users": ["a"], "num_samples": [1], "user_data": {"a": {"raw": "x"}}},
            r"x and y of user 'a' in user_data, found \['raw'\]",
        ),
        (
            {
                "users": ["a"],
                "num_samples": [2],
                "user_data": {"a": {"x": [ROW], "y": [1]}},
            },
            "expected 2 rows of user 'a', found 1 in x and 1 in y",
        ),
        (
            {"users": [], "num_samples": [], "user_data": {}},
            "none of 0 users",
        ),
    ],
)
def test_wrong_files_are_named(tmp_path, content, message):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "t.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load_femnist(tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([ROW[:-1]], [1]), "expected 784 numbers"),
        (([ROW, ROW[:5]], [1, 2]), "expected 784 numbers"),
        (([["a"] * 784], [1]), "expected 784 numbers"),
        (([[255.0] * 784], [1]), "pixels from 0 to 1, found 255.0"),
        (([ROW], [62]), "label 62, expected 0 to 61"),
        (([ROW], [1.5]), "whole numbers as labels"),
    ],
)
def test_wrong_images_are_named(tmp_path, rows, message):
    write(tmp_path / "train", "t", {"a": rows})
    with pytest.raises(ValueError, match=message) as caught:
        load_femnist(tmp_path)
    assert "t.json, user 'a'" in str(caught.value)


def test_pixels_that_are_no_numbers_are_refused(tmp_path):
    write(tmp_path / "train", "t", {"a": ([[float("nan")] * 784], [1])})
    with pytest.raises(ValueError, match=r"t\.json is not .*: NaN is not a finite"):
        load_femnist(tmp_path)


@pytest.mark.parametrize(
    "rows", [(["x" * 79], ["y"]), (["x" * 80], ["yy"]), ([[1] * 80], [1])]
)
def test_wrong_texts_are_named(tmp_path, rows):
    write(tmp_path / "train", "t", {"a": rows})
    with pytest.raises(ValueError, match="user 'a': expected strings of 80 characters"):
        load_shakespeare(tmp_path)


def test_cuts_are_named(tmp_path):
    write(tmp_path / "train", "t", {"a": texts(1)})
    path = tmp_path / "train" / "t.json"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"t\.json is not valid JSON"):
            load_shakespeare(tmp_path)


def test_missing_files_say_how_leaf_makes_them(tmp_path):
    message = r"found no train in any of .*TalwalkarLab/leaf, run `cd data/femnist"
    with pytest.raises(FileNotFoundError, match=message):
        load_femnist(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match=r"expected \.json files, found none"):
        load_femnist(tmp_path)
