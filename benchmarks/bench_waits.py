"""What users wait for: forms of input, a million clients, and whole commands.

python -m benchmarks.bench_waits

Forms of input hold the same rows, 10 of each client; beside ours is what numpy or
pandas needs for the conversion alone. Commands run in a process of their own, without
stored cells; their time is processor time of that process and its workers.
"""

import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    OURS,
    arguments,
    compare,
    cpu_spread,
    make_logits,
    optional,
    print_table,
    process_seconds,
    record,
    write_json,
)

import numpy as np

from skfedcal import FedBBQCalibrator, FedTempCalibrator
from skfedcal.clients.forms import make_dataset

Rows = list[dict[str, Any]]
N_CLIENTS, ROWS, N_CLASSES = 100_000, 10, 10
# Nested lists of all clients would take gigabytes.
N_NESTED = 10_000
COMMANDS = {
    "compare, Table 2 grid, 6000 x 10": "compare FILE --preset printed --eps none "
    "--seeds 1 --fresh",
    "compare, eps none and 1, 6000 x 10": "compare FILE --eps none 1 --seeds 1 --fresh",
    "report, 6000 x 10": "report FILE --eps none 1 --seeds 1 --fresh -o OUT",
    "demo": "demo -o OUT --force",
    "audit": "audit",
    "reproduce 000 --quick, Table 2": "reproduce 000 --table 2 --quick --fresh",
}
LONG_COMMANDS = {"reproduce --quick": "reproduce --quick --fresh"}


def read(X: Any, y: Any = None, client_ids: Any = None) -> object:
    """Clients of a fit, as the estimators read them."""
    options: dict[str, Any] = {"classes": None, "input_type": "logits"}
    return make_dataset(FedTempCalibrator(), X, y, client_ids, **options)


def forms(n_clients: int, seconds: float) -> Rows:
    """Lists of clients, next to rows in one array and to numpy alone."""
    logits, labels = make_logits(n_clients * ROWS, N_CLASSES, np.float32)
    ids = np.repeat(np.arange(n_clients), ROWS)
    cut = [slice(i, i + ROWS) for i in range(0, len(labels), ROWS)]
    pairs = [(logits[part].copy(), labels[part].copy()) for part in cut]
    nested = [(X.tolist(), y.tolist()) for X, y in pairs[:N_NESTED]]
    n_nested = len(nested)
    packed = slice(n_nested * ROWS)
    found = []
    for case, calls in (
        (
            f"{n_clients} clients, pairs of arrays",
            {
                OURS: lambda: read(pairs),
                f"{OURS}, packed": lambda: read(logits, labels, ids),
                "numpy.concatenate": lambda: [
                    np.concatenate([pair[i] for pair in pairs]) for i in (0, 1)
                ],
            },
        ),
        (
            f"{n_nested} clients, nested lists",
            {
                OURS: lambda: read(nested),
                f"{OURS}, packed": lambda: read(
                    logits[packed], labels[packed], ids[packed]
                ),
                "numpy.array": lambda: [(np.array(X), np.array(y)) for X, y in nested],
            },
        ),
    ):
        found += compare("forms of clients", case, calls, seconds=seconds)
    return found


def ids(n_clients: int, seconds: float) -> Rows:
    """Ids of rows in random order and client by client, next to `pandas.factorize`.

    A whole fit is what a user waits for; reading is the part that ids decide. The ratio
    of a whole fit is that to integer ids in the same order.
    """
    pandas = optional("pandas")
    logits, labels = make_logits(n_clients * ROWS, N_CLASSES, np.float32)
    drawn = np.random.default_rng(0).integers(0, n_clients, len(labels))
    found = []
    for order, numbers in (("random order", drawn), ("packed", np.sort(drawn))):
        for kind, values in _kinds(numbers, n_clients, pandas).items():
            calls = {
                OURS: lambda given=values: read(logits, labels, given),
                f"{OURS}, whole fit": lambda given=values: FedTempCalibrator().fit(
                    logits, labels, client_ids=given
                ),
            }
            if pandas is not None and not isinstance(values, list):
                calls["pandas.factorize"] = lambda given=values: pandas.factorize(given)
            case = f"{len(labels)} rows, {n_clients} clients, {order}, {kind}"
            found += compare("client_ids", case, calls, seconds=seconds)
    return _to_integers(found)


def _to_integers(rows: Rows) -> Rows:
    """Set the ratio of each whole fit to that by integer ids in the same order."""
    found, least = [], 1.0
    for row in rows:
        if row["library"] == f"{OURS}, whole fit":
            # Integers come first.
            least = row["value"] if row["case"].endswith(", integers") else least
            row = row | {"ratio": row["value"] / least}
        found.append(row)
    return found


def _kinds(numbers: np.ndarray, n_clients: int, pandas: Any) -> dict[str, Any]:
    """The same ids in all the types that rows have them in."""
    texts = np.array([f"client-{i:06}" for i in range(n_clients)])[numbers]
    kinds: dict[str, Any] = {"integers": numbers, "strings": texts}
    kinds["objects"] = texts.astype(object)
    kinds["a list of strings"] = texts.tolist()
    if pandas is not None:
        kinds["pandas strings"] = pandas.Series(texts)
        kinds["categorical"] = pandas.Categorical(texts)
    return kinds


def clients(n_clients: int) -> Rows:
    """Private fits of very many clients, timed once."""
    logits, labels = make_logits(n_clients * ROWS, N_CLASSES, np.float32)
    given = np.repeat(np.arange(n_clients), ROWS)
    found = []
    for model in (FedTempCalibrator, FedBBQCalibrator):
        own = model(eps=1.0, classes=np.arange(N_CLASSES), random_state=0)
        (spent, _, _) = cpu_spread(
            {OURS: lambda own=own: own.fit(logits, labels, client_ids=given)},
            seconds=0.01,
        )[OURS]
        case = f"{n_clients} clients x {ROWS} rows, {model.__name__}, eps = 1"
        note = f"{1e9 * spent / logits.size:.1f} ns per entry"
        found.append(record("many clients", case, OURS, spent, "s") | {"note": note})
    return found


def commands(given: dict[str, str]) -> Rows:
    """Processor seconds of whole commands."""
    logits, labels = make_logits(6000, 10, np.float32)
    owner = np.random.default_rng(0).integers(0, 100, len(labels))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "model.npz"))
        np.savez(file, logits=logits, labels=labels, client=owner)
        for i, (case, text) in enumerate(given.items()):
            places = {"FILE": file, "OUT": str(Path(folder, f"{i}.html"))}
            words = [places.get(word, word) for word in text.split()]
            try:
                used = process_seconds(["-m", "skfedcal", *words], folder)
            except subprocess.CalledProcessError as error:
                print(f"skipped {case}: {error.stderr.decode()[-200:]}")
                continue
            found.append(record("commands", case, OURS, used, "s") | {"note": text})
    return found


def questions(seconds: float, quick: bool = True) -> Rows:
    """All rows; the long form has all papers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            *forms(N_CLIENTS, seconds),
            *ids(N_CLIENTS, seconds),
            *clients(10 * N_CLIENTS),
            *commands(COMMANDS if quick else {**COMMANDS, **LONG_COMMANDS}),
        ]


def main() -> None:
    """Print and write the table."""
    options = arguments("waits", __doc__).parse_args()
    rows = questions(options.seconds)
    print_table(rows)
    write_json(options.out, rows)


if __name__ == "__main__":
    main()
