"""``skfedcal demo``."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from skfedcal.cli._command import SEED_WARNING, Command, Console, add_seed_option
from skfedcal.cli._input import check_output

if TYPE_CHECKING:
    import numpy as np

DESCRIPTION = """\
Train a net on scikit-learn's digits by federated averaging, calibrate it over 100 other
clients with and without differential privacy, print what it gained and what it cost,
and write a report as an HTML page. Needs no files and no network, and takes a few
seconds.

The digits are 8 x 8 images, here with noise on the pixels and moved by up to one pixel.
200 train the net at 40 clients; 600 belong to the 100 clients of the calibration, all
in nine views each. Most clients have few of the ten classes (Dirichlet, alpha = 0.1),
so that the net favours some classes. The other 997, in one view each, are the test. No
digit is in two places.
"""

EXAMPLES = """\
Columns are those of `skfedcal compare`, and are explained below the result; base is the
net as it is.

examples:
  skfedcal demo
  skfedcal demo -o report.html
  skfedcal demo --seed 1 --json
"""

WIDTH = 80

DEFAULT_OUTPUT = "skfedcal_demo.html"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal demo``."""
    add_seed_option(
        parser,
        "repeatable digits, net and noise: a simulation without any guarantee "
        "(default: noise from the operating system)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help=f"HTML report to write (default: {DEFAULT_OUTPUT} in this folder)",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing PATH")


def run(args: argparse.Namespace, console: Console) -> None:
    """Run the experiment and print the table."""
    output = _output(args, console)
    if args.seed is not None:
        console.warning(SEED_WARNING)
    # Said before scikit-learn is imported, which takes a second or two.
    console.progress("loading scikit-learn and its digits")

    from skfedcal.cli.commands._comparison import COLUMNS, shown
    from skfedcal.experiments.report import verdict_of

    result = run_experiment(console.progress, console.detail, seed=args.seed)
    comparison = result.comparison
    if output is not None:
        comparison.to_html(output)
    console.progress("done")
    text = shown(comparison, "text", WIDTH)
    text += f"\n{textwrap.fill(result.privacy, WIDTH)}\n\n{COLUMNS}"
    if output is not None:
        text += f"\nReport, to open in a browser: {os.path.abspath(output)}"
    data = {
        **json.loads(comparison.to_json()),
        "simulated": result.simulated,
        "total_eps": result.total_eps,
        "total_delta": result.total_delta,
        "meaning": [*verdict_of(comparison).sentences, result.privacy],
        "report": output,
    }
    console.result(text, data)


def _output(args: argparse.Namespace, console: Console) -> str | None:
    """Where the report goes; a file that is not a report is not replaced."""
    if args.output is not None:
        check_output(args)
        return str(args.output)
    target = argparse.Namespace(output=DEFAULT_OUTPUT, force=_is_report(DEFAULT_OUTPUT))
    try:
        check_output(target)
    except OSError as error:
        console.warning(f"No report is written: {error} Pass -o PATH for another.")
        return None
    return DEFAULT_OUTPUT


def _is_report(path: str) -> bool:
    """Whether a file is a report that an earlier demo wrote."""
    try:
        with open(path, encoding="utf-8") as stream:
            return 'name="generator" content="skfedcal' in stream.read(600)
    except (OSError, UnicodeDecodeError):
        return False


DEMO = Command(
    name="demo",
    summary="see on scikit-learn's digits what calibration gains and privacy costs",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)


# The experiment: a comparison on scikit-learn's digits. numpy is imported late, so that
# --help is quick.

# Clients per round, passes over a client's rows, rows per step, and step size.
COHORT, EPOCHS, BATCH, LEARNING_RATE = 8, 4, 20, 0.1


@dataclass(frozen=True, slots=True)
class Net:
    """One hidden layer."""

    weights: tuple[np.ndarray, ...]

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Scores of each class."""
        import numpy as np

        hidden, offset, last, bias = self.weights
        return np.maximum(features @ hidden + offset, 0) @ last + bias


def train_federated(
    features: np.ndarray,
    labels: np.ndarray,
    client_ids: np.ndarray,
    *,
    n_hidden: int,
    n_rounds: int,
    rng: np.random.Generator,
) -> Net:
    """Average the nets that the clients of each round train on their own rows."""
    import numpy as np

    n_features, n_classes = features.shape[1], int(labels.max()) + 1
    first = rng.standard_normal((n_features, n_hidden)) * np.sqrt(2 / n_features)
    last = rng.standard_normal((n_hidden, n_classes)) * np.sqrt(1 / n_hidden)
    weights = [first, np.zeros(n_hidden), last, np.zeros(n_classes)]
    clients = [np.flatnonzero(client_ids == name) for name in np.unique(client_ids)]
    for _ in range(n_rounds):
        chosen = rng.choice(len(clients), min(COHORT, len(clients)), replace=False)
        batches = [_batches(clients[i], rng) for i in chosen]
        trained = train_clients(weights, features, labels, batches)
        sizes = [len(clients[i]) for i in chosen]
        weights = [np.average(layer, axis=0, weights=sizes) for layer in trained]
    return Net(tuple(weights))


def _batches(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows of each step of a client, shape (n_steps, BATCH); -1 is no row."""
    import numpy as np

    missing = np.full(-len(rows) % BATCH, -1)
    order = [np.append(rng.permutation(rows), missing) for _ in range(EPOCHS)]
    return np.concatenate(order).reshape(-1, BATCH)


def train_clients(
    weights: list[np.ndarray],
    features: np.ndarray,
    labels: np.ndarray,
    batches: list[np.ndarray],
) -> list[np.ndarray]:
    """Weights of each client after its own steps down the gradient of the log loss.

    All clients take a step together, which is several times faster than one by one.

    batches: Rows of each step of each client; -1 is no row.
    Result: As `weights`, with one more axis for the clients.
    """
    import numpy as np

    # Clients with most steps first: those that still train are the first ones.
    order = sorted(range(len(batches)), key=lambda i: -len(batches[i]))
    n_steps = [len(batches[i]) for i in order]
    rows = np.full((n_steps[0], len(order), BATCH, 1), -1)
    for place, i in enumerate(order):
        rows[: n_steps[place], place, :, 0] = batches[i]
    used = rows >= 0
    rates = used * (LEARNING_RATE / np.maximum(used.sum(axis=2, keepdims=True), 1))
    one_hot = np.eye(len(weights[3]))[labels]
    layers = [np.stack([layer] * len(batches)) for layer in weights]
    for step in range(n_steps[0]):
        n_left = sum(n > step for n in n_steps)
        hidden, offset, last, bias = (layer[:n_left] for layer in layers)
        chosen = rows[step, :n_left, :, 0]
        own = features[chosen]
        active = own @ hidden
        active += offset[:, None]
        np.maximum(active, 0, out=active)
        error = active @ last
        error += bias[:, None]
        error -= np.maximum.reduce(error, axis=2, keepdims=True)
        np.exp(error, out=error)
        error /= np.add.reduce(error, axis=2, keepdims=True)
        error -= one_hot[chosen]
        error *= rates[step, :n_left]
        back = error @ last.swapaxes(1, 2)
        back *= active > 0
        last -= active.swapaxes(1, 2) @ error
        hidden -= own.swapaxes(1, 2) @ back
        offset -= np.add.reduce(back, axis=1)
        bias -= np.add.reduce(error, axis=1)
    places = np.argsort(order)
    return [layer[places] for layer in layers]


# Standard deviation of the noise on pixels in [0, 1]; with clean digits the base model
# is right too often to have much to calibrate.
PIXEL_NOISE = 0.2

# Seed of the digits and the base model if the user gives none: both are public.
PUBLIC_SEED = 0


@dataclass(frozen=True, slots=True)
class DemoSize:
    """Size of the demo."""

    n_train: int = 200
    n_calibration: int = 600
    n_clients: int = 100
    alpha: float = 0.1
    n_trainers: int = 40
    n_hidden: int = 64
    n_rounds: int = 150


@dataclass(frozen=True, slots=True)
class DigitsFederation:
    """Logits of the base model, for the clients and for the test."""

    logits: np.ndarray
    labels: np.ndarray
    client_ids: np.ndarray
    test_logits: np.ndarray
    test_labels: np.ndarray


def digit_views(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return nine views of each image: moved by up to one pixel, with fresh noise.

    images of shape (n, 8, 8): Pixels in [0, 1].
    rng: Source of the noise.
    Result of shape (n, 9, 64): Views of one image are neighbours.
    """
    import numpy as np

    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    moved = [padded[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    views = np.stack(moved, axis=1).reshape(len(images), 9, -1)
    return views + PIXEL_NOISE * rng.standard_normal(views.shape)


def make_digits_federation(size: DemoSize, seed: int) -> DigitsFederation:
    """Train the base model and compute its logits for the digits of clients and test.

    A digit is used in one place only, and all its views belong to one client. A test
    digit is shown once, so that test rows are independent, which the finite-sample
    floor assumes.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    from skfedcal.clients import DirichletPartitioner

    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    views = digit_views(images[order].reshape(-1, 8, 8) / 16, rng)
    train, clients, test = np.split(
        np.arange(len(labels)), [size.n_train, size.n_train + size.n_calibration]
    )
    labels = labels[order]
    # Few classes per client in training: the net favours some of them.
    trainers = DirichletPartitioner(
        size.n_trainers, size.alpha, min_size=0, random_state=seed
    )
    net = train_federated(
        views[train].reshape(-1, 64),
        np.repeat(labels[train], 9),
        np.repeat(trainers.assign(labels[train]), 9),
        n_hidden=size.n_hidden,
        n_rounds=size.n_rounds,
        rng=rng,
    )
    partitioner = DirichletPartitioner(size.n_clients, size.alpha, random_state=seed)
    shown = rng.integers(9, size=len(test))
    return DigitsFederation(
        logits=net.logits(views[clients].reshape(-1, 64)),
        labels=np.repeat(labels[clients], 9),
        client_ids=np.repeat(partitioner.assign(labels[clients]), 9),
        test_logits=net.logits(views[test, shown]),
        test_labels=labels[test],
    )


@dataclass(frozen=True, slots=True)
class DemoResult:
    """A `Comparison`, and what all its private fits spent together."""

    comparison: Any
    total_eps: float
    total_delta: float
    simulated: bool

    @property
    def privacy(self) -> str:
        """Say what the private fits cost."""
        if self.simulated:
            return "Seeded run: the noise can be repeated, so this is a simulation."
        return (
            "All private fits together cost each client eps = "
            f"{self.total_eps:.3g} at delta = {self.total_delta:g}; the fits without "
            "eps show the server exact sums."
        )


def run_experiment(
    progress: Callable[[str], None],
    detail: Callable[[str], None],
    *,
    seed: int | None = None,
    size: DemoSize | None = None,
) -> DemoResult:
    """Train, calibrate and measure.

    progress: Told what is being done.
    detail: Told the guarantee of each private fit.
    seed: Seed of everything. None takes the noise of private fits from the operating
        system, and a fixed seed for digits and base model.
    size: Smaller for tests.
    """
    from skfedcal import FedBBQCalibrator, FedBiasTempCalibrator, FedTempCalibrator
    from skfedcal.experiments import compare
    from skfedcal.privacy import PrivacyLedger

    size = DemoSize() if size is None else size
    progress(
        f"training a small net on {size.n_train} noisy digits at {size.n_trainers} "
        "clients, by federated averaging"
    )
    data = make_digits_federation(size, PUBLIC_SEED if seed is None else seed)
    progress(f"calibrating: {size.n_clients} clients, {len(data.labels)} rows")
    ledger = PrivacyLedger()
    found = compare(
        (data.logits, data.labels),
        (data.test_logits, data.test_labels),
        client_ids=data.client_ids,
        methods={
            "FedTemp": FedTempCalibrator(ledger=ledger),
            "FedBBQ": FedBBQCalibrator(ledger=ledger),
            "FedBiasTemp": FedBiasTempCalibrator(ledger=ledger),
        },
        eps=[None, 1.0],
        seeds=None if seed is None else [seed],
        # It is public that all digits are equally frequent.
        class_prior="uniform",
        progress=lambda done, total: progress(f"{done} of {total} fits measured"),
    )
    private = [run for run in found.runs if "eps spent" in run]
    for run in private:
        detail(
            f"{run['method']}: eps = {run['eps spent']:g}, delta = {run['delta']:g} "
            f"for one {run['unit']} ({run['accountant']}, noise multiplier "
            f"{run['noise']:.3g})"
        )
    command = "skfedcal demo" if seed is None else f"skfedcal demo --seed {seed}"
    about = {"file": "the digits of scikit-learn", "command": command}
    delta = max(run["delta"] for run in private)
    return DemoResult(
        replace(found, settings={**found.settings, **about}),
        ledger.spent(delta),
        delta,
        simulated=seed is not None,
    )
