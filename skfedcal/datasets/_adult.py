"""The Adult (census income) data of UCI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import check_choice
from skfedcal.datasets._layout import (
    Home,
    Layout,
    deliver_clients,
    fetch,
    loader_documented,
    nonempty_lines,
    parts_of,
)

MISSING = "?"

COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)

# The others have a value in every row of both files.
CAN_MISS = ("workclass", "occupation", "native-country")

_LISTED = {
    "workclass": """Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov,
        State-gov, Without-pay, Never-worked""",
    "education": """Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm,
        Assoc-voc, 9th, 7th-8th, 12th, Masters, 1st-4th, 10th, Doctorate, 5th-6th,
        Preschool""",
    "marital-status": """Married-civ-spouse, Divorced, Never-married, Separated,
        Widowed, Married-spouse-absent, Married-AF-spouse""",
    "occupation": """Tech-support, Craft-repair, Other-service, Sales,
        Exec-managerial, Prof-specialty, Handlers-cleaners, Machine-op-inspct,
        Adm-clerical, Farming-fishing, Transport-moving, Priv-house-serv,
        Protective-serv, Armed-Forces""",
    "relationship": """Wife, Own-child, Husband, Not-in-family, Other-relative,
        Unmarried""",
    "race": "White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black",
    "sex": "Female, Male",
    # Spelt as in the files.
    "native-country": """United-States, Cambodia, England, Puerto-Rico, Canada,
        Germany, Outlying-US(Guam-USVI-etc), India, Japan, Greece, South, China, Cuba,
        Iran, Honduras, Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, Portugal,
        Ireland, France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia,
        Hungary, Guatemala, Nicaragua, Scotland, Thailand, Yugoslavia, El-Salvador,
        Trinadad&Tobago, Peru, Hong, Holand-Netherlands""",
}

CATEGORIES = {
    name: tuple(value.strip() for value in text.split(","))
    for name, text in _LISTED.items()
}

SPLITS = ("train", "test", "all")
LABELS = {"<=50K": 0, ">50K": 1}
FILES = {"train": "adult.data", "test": "adult.test"}
URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
LAYOUT = Layout(
    "Adult",
    ("adult", "Adult", ""),
    f"Pass the folder that holds adult.data and adult.test of {URL}, or download=True.",
)


@loader_documented
def load_adult(
    data_home: Home,
    *,
    split: str = "train",
    encoding: str = "onehot",
    client_column: str = "occupation",
    download: bool = False,
    return_X_y: bool = False,
    as_clients: bool = False,
) -> Any:
    """Read the Adult data of UCI: does a person earn more than 50,000 a year.

    Parameters
    ----------
    data_home : str or path-like
        Folder with ``adult.data`` and ``adult.test``, or one that has them in
        ``adult``.
    split
    encoding : {"onehot", "ordinal"}, default="onehot"
        "onehot": a column of zeros and ones for each category, and for a missing value
        in the columns that can have one; 108 columns in all. "ordinal": the position in
        the list of categories, NaN for a missing value; 14 columns. The lists are those
        of ``adult.names``, not those of the rows, so that files and clients agree.
    client_column : str, default="occupation"
        Column of categories that says which client a row belongs to; missing values
        are the client "?".
    download : bool, default=False
        Fetch files that are missing from UCI, and check them.
    return_X_y, as_clients

    Returns
    -------
    adult : :class:`~sklearn.utils.Bunch`
        With these entries:

        data : ndarray of shape (n, n_columns)
            Features, float64, not scaled.
        target : ndarray of shape (n,)
            1 for more than 50,000, else 0.
        target_names : list of str
            ``["<=50K", ">50K"]``.
        feature_names : list of str
            Such as "age", or "sex=Male" for a category.
        clients : list of (ndarray, ndarray)
            Features and labels of each client.
        client_ids : ndarray of shape (n,)
            Position in `client_names`.
        client_names : ndarray of str
            Values of `client_column` that occur, sorted.

    See Also
    --------
    split_clients : Rows for training, calibration and testing at each client.

    Examples
    --------
    >>> import os, tempfile
    >>> from skfedcal.datasets import load_adult
    >>> line = ("39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, "
    ...         "Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K")
    >>> with tempfile.TemporaryDirectory() as home:
    ...     with open(os.path.join(home, "adult.data"), "w") as file:
    ...         _ = file.write(line)
    ...     adult = load_adult(home)
    >>> adult.data.shape, adult.target, adult.client_names
    ((1, 108), array([0]), array(['Adm-clerical'], dtype='<U12'))
    """
    check_choice("split", split, SPLITS)
    check_choice("encoding", encoding, ("onehot", "ordinal"))
    check_choice("client_column", client_column, tuple(CATEGORIES))
    names = [FILES[part] for part in parts_of(split)]
    get = (lambda home: _fetch(home, names)) if download else None
    paths = LAYOUT.require(data_home, [[name] for name in names], get)
    parts = [_read(path) for path in paths]
    codes = np.concatenate([rows for rows, _ in parts])
    target = np.concatenate([labels for _, labels in parts])
    values = (*CATEGORIES[client_column], MISSING)
    column = codes[:, COLUMNS.index(client_column)]
    owners = np.array(values)[np.where(np.isnan(column), -1, column).astype(int)]
    client_names, client_ids = np.unique(owners, return_inverse=True)
    features, X = _encode(codes, encoding)
    return deliver_clients(
        X,
        target,
        client_ids,
        client_names.tolist(),
        return_X_y=return_X_y,
        as_clients=as_clients,
        target_names=list(LABELS),
        feature_names=features,
    )


def _fetch(home: Path, names: list[str]) -> None:
    for name in names:
        if LAYOUT.find(home, [name]) is None:
            fetch(URL + name, home / name, algorithm="sha256", checksum=SHA256[name])


def _read(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Numbers, positions of categories and NaN; and labels."""
    listed = {
        name: {value: float(place) for place, value in enumerate(values)}
        for name, values in CATEGORIES.items()
    }
    places = [listed.get(name) for name in COLUMNS]
    rows, labels = [], []
    for number, line in nonempty_lines(path):
        if line.startswith("|"):  # a remark, on top of adult.test
            continue
        values = [value.strip() for value in line.split(",")]
        where = f"{path}, line {number}"
        if len(values) != len(COLUMNS) + 1:
            raise ValueError(
                f"{where}: expected {len(COLUMNS) + 1} values between commas, found "
                f"{len(values)}. The file is damaged or of another data set."
            )
        # Labels of adult.test end with a dot.
        label = LABELS.get(values.pop().removesuffix("."))
        if label is None:
            raise ValueError(f"{where}: expected one of {list(LABELS)} as last value.")
        columns = zip(values, COLUMNS, places, strict=True)
        rows.append([_number(*column, where) for column in columns])
        labels.append(label)
    if not rows:
        raise ValueError(
            f"{path}: expected rows of {len(COLUMNS) + 1} values, found none. The file "
            "is cut short or damaged; fetch it again."
        )
    return np.array(rows, dtype=np.float64), np.array(labels, np.int64)


def _number(
    value: str, column: str, listed: dict[str, float] | None, where: str
) -> float:
    if value == MISSING:
        return np.nan
    try:
        return float(value) if listed is None else listed[value]
    except (KeyError, ValueError):
        wanted = "a number" if listed is None else "a category of adult.names"
        raise ValueError(
            f"{where}: expected {wanted} as {column}, found {value!r}."
        ) from None


def _encode(codes: NDArray[Any], encoding: str) -> tuple[list[str], NDArray[Any]]:
    """Names and values of the columns that are returned."""
    if encoding == "ordinal":
        return list(COLUMNS), codes
    names: list[str] = []
    blocks: list[NDArray[Any]] = []
    for name, column in zip(COLUMNS, codes.T, strict=True):
        if name not in CATEGORIES:
            names.append(name)
            blocks.append(column[:, None])
            continue
        values = list(CATEGORIES[name])
        block = (column[:, None] == np.arange(len(values))).astype(np.float64)
        if name in CAN_MISS:
            values.append(MISSING)
            block = np.column_stack([block, np.isnan(column)])
        names += [f"{name}={value}" for value in values]
        blocks.append(block)
    return names, np.concatenate(blocks, axis=1)
