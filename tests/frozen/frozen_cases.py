"""Fixed rows, and every method with every privacy model that fits it.

Rows are whole numbers divided by a prime: the same floats on every machine, without
ties and away from the edges of bins.
"""

import hashlib
import warnings

import frozen_adapt as adapt
import numpy as np

import skfedcal as sf
from skfedcal.evaluation.paired_rounds import PairedScoreCounts
from skfedcal.federation import (
    Aggregators,
    InProcessTransport,
    RemoteClients,
    Site,
    SitePolicy,
    SiteRows,
)
from skfedcal.methods import registry
from skfedcal.methods.score_curves.rounds import ScoreCounts

NAMES = [f"site-{i}" for i in range(6)]
SIZES = (9, 14, 11, 8, 13, 12)


def make_rows(n, n_classes, seed, wiggle=0.0):
    """Logits on a grid of 1 / 9973, and labels that follow them two times in three.

    `wiggle` is the relative size of a change far beyond the last bits of a float.
    """
    rng = np.random.default_rng(seed)
    rows = rng.integers(-30000, 30000, (n, n_classes)) / 9973.0
    best = rows.argmax(axis=1)
    labels = np.where(
        rng.integers(0, 3, n) > 0, best, rng.integers(0, n_classes, n)
    ).astype(np.int64)
    if wiggle:
        # Changes of all rows, each its own: last bits do not change together either.
        other = np.random.default_rng(seed + 10**6 + round(-np.log10(abs(wiggle))))
        factors = 1 + wiggle * other.integers(-99, 100, rows.shape) / 99
        factors[:, 0] = 1.0  # which rows a first round takes is a hash of this entry
        rows = rows * factors
    return rows, labels


def make_clients(n_classes, seed=0, wiggle=0.0):
    rows, labels = make_rows(sum(SIZES), n_classes, 100 * n_classes + seed, wiggle)
    ends = np.cumsum((0, *SIZES))
    return {
        name: (rows[a:b], labels[a:b])
        for name, a, b in zip(NAMES, ends[:-1], ends[1:], strict=True)
    }


def _calibrator(name, n_classes=3, rounds=2, **params):
    def fit(clients, runner, privacy):
        made = getattr(sf, name)(
            privacy=privacy,
            classes=list(range(n_classes)),
            runner=runner if rounds is None else runner.set_params(n_rounds=rounds),
            random_state=7,
            **params,
        )
        return made.fit(clients)

    fit.estimator = name
    return n_classes, fit


def _statistic(function, n_classes, **params):
    def fit(clients, runner, privacy):
        return function(
            clients,
            classes=list(range(n_classes)),
            privacy=privacy,
            runner=runner,
            random_state=7,
            **params,
        )

    # A class method, or a function of several methods.
    fit.estimator = getattr(getattr(function, "__self__", None), "__name__", "")
    return n_classes, fit


def _scores(n_classes, population="rows", **params):
    return _statistic(sf.ScoreHistogram.fit, n_classes, population=population, **params)


def _score_counts(clients, runner, privacy):
    """The one algorithm that no estimator uses by itself."""
    if not isinstance(clients, dict):
        raise TypeError("Scores of sites are read by ClassScoreCounts.")
    pairs = list(clients.values())
    # Whole numbers over a prime, between 0 and 1 and off the edges of all buckets.
    scores = np.concatenate([(rows[:, :1] + 3.01) / 6.03 for rows, _ in pairs])
    labels = np.concatenate([labels for _, labels in pairs])
    data = sf.FederatedDataset(scores, labels, np.cumsum((0, *SIZES)), NAMES, 2)
    clip = None if privacy is None else 1.0
    counts = ScoreCounts(levels=(2, 4), max_examples=1, clip=clip)
    adapt.run_algorithm(counts, data, privacy, runner, seed=7)


def sparse_areas(clients, **options):
    """Areas of scores of all classes, or of the most probable other one."""
    n_others = 2 if options["privacy"] is None else 1
    return sf.federated_roc_auc_score(
        clients, multi_class="ovr", n_others=n_others, **options
    )


def _paired_counts(clients, runner, privacy):
    """One of the three runs of a comparison of areas, by itself."""
    if not isinstance(clients, dict):
        raise TypeError("Scores of sites are read by PairedDifferences.")
    rows, labels = (
        np.concatenate(part) for part in zip(*clients.values(), strict=True)
    )
    data = sf.FederatedDataset(rows, labels, np.cumsum((0, *SIZES)), NAMES, 2)
    clip = None if privacy is None else 1.0
    counts = PairedScoreCounts(levels=(2,), max_examples=1, clip=clip, second=True)
    adapt.run_algorithm(counts, data, privacy, runner, seed=7)


def _paired_scores(metric):
    def fit(clients, runner, privacy):
        given = (clients, None)
        if isinstance(clients, dict):  # columns are the log-odds of two scores
            given = (
                {name: (rows[:, [k]], y) for name, (rows, y) in clients.items()}
                for k in (0, 1)
            )
        return sf.federated_compare_scores(
            *given,
            metric=metric,
            classes=[0, 1],
            privacy=privacy,
            runner=runner,
            random_state=7,
        )

    return 2, fit


HALF = sf.FedTempCalibrator(classes=[0, 1, 2])
HALF.fit(np.tile(2 * np.eye(3), (2, 1)), [0, 1, 2, 0, 2, 1])
HALF.temperature_ = 2.0


def _gain(clients, runner, privacy):
    """Comparison of a map, whose numbers are the same on every processor."""
    return sf.federated_gain(
        HALF, clients, privacy=privacy, runner=runner, random_state=7
    )


# Cases that sites cannot be asked for.
IN_PROCESS = ("scores, as given", "paired scores, counts")


# Number of classes, and ``fit(clients, runner, privacy)``.
METHODS = {
    "temperature": _calibrator("FedTempCalibrator", rounds=3),
    "temperature, grid": _calibrator("FedTempCalibrator", solver="grid"),
    "temperature, average": _calibrator("FedTempCalibrator", solver="average"),
    "temperature, two classes": _calibrator("FedTempCalibrator", 2),
    "accuracy": _calibrator("FedAccTempCalibrator"),
    "accuracy, two points": _calibrator("FedAccTempCalibrator", search="two_point"),
    "accuracy, bisect": _calibrator("FedAccTempCalibrator", search="bisect"),
    "accuracy, nll": _calibrator("FedAccTempCalibrator", objective="nll"),
    "accuracy, nll, bisect": _calibrator(
        "FedAccTempCalibrator", objective="nll", search="bisect"
    ),
    "accuracy, ece": _calibrator("FedAccTempCalibrator", objective="ece"),
    "accuracy, ece, golden": _calibrator(
        "FedAccTempCalibrator", objective="ece", search="golden"
    ),
    "bias": _calibrator("FedBiasTempCalibrator"),
    "clipped bias": _calibrator("FedBiasTempCalibrator", clip=0.04),
    "shape": _calibrator("FedShapeCalibrator", rounds=None),
    "shape, matrix": _calibrator("FedShapeCalibrator", rounds=None, matrix=True),
    "bias, residual": _calibrator("FedBiasTempCalibrator", residual="bins"),
    "bias, uniform prior": _calibrator("FedBiasTempCalibrator", class_prior="uniform"),
    "bias, private prior": _calibrator("FedBiasTempCalibrator", class_prior="private"),
    "bins": _calibrator("FedBinCalibrator", rounds=1, n_bins=5),
    "bins, held back": _calibrator(
        "FedBinCalibrator", rounds=1, n_bins=5, hold_back=True
    ),
    "bins, logit": _calibrator("FedBinCalibrator", rounds=1, n_bins=5, space="logit"),
    "bins, joint": _calibrator("FedBinCalibrator", rounds=1, n_bins=5, noise="joint"),
    "bins, per class": _calibrator(
        "FedBinCalibrator", rounds=1, n_bins=5, clip_per_class=True
    ),
    "bbq": _calibrator("FedBBQCalibrator", rounds=1, n_levels=4),
    "histogram": _calibrator("FedHistogramCalibrator", rounds=None, height=4),
    "histogram, two classes": _calibrator(
        "FedHistogramCalibrator", 2, rounds=None, height=4
    ),
    "network": _calibrator("FedMLPCalibrator", hidden=(4,), epochs=1),
    "network, plain": _calibrator(
        "FedMLPCalibrator", hidden=(3,), epochs=1, order_preserving=False
    ),
    "vector": _calibrator("FedVectorCalibrator"),
    "vector, average": _calibrator(
        "FedVectorCalibrator", solver="average", local_iter=5
    ),
    "matrix": _calibrator("FedMatrixCalibrator"),
    "matrix, average": _calibrator(
        "FedMatrixCalibrator", solver="average", local_solver="gd", local_iter=5
    ),
    "order preserving": _calibrator("FedOPVectorCalibrator"),
    "order preserving, average": _calibrator(
        "FedOPVectorCalibrator", solver="average", local_solver="gd", local_iter=5
    ),
    "top bins": _calibrator("FedTopBinCalibrator", rounds=1, n_bins=5),
    "one vs rest": _calibrator("FedOneVsRestCalibrator", rounds=3),
    "one vs rest, isotonic": _calibrator(
        "FedOneVsRestCalibrator", rounds=None, method="isotonic"
    ),
    "auto": _calibrator("FedAutoCalibrator", rounds=None),
    "auto, order": _calibrator("FedAutoCalibrator", rounds=None, keep_order=True),
    "scores": _scores(2, height=4),
    "scores, probabilities": _scores(2, height=4, space="prob"),
    "scores, clients": _scores(2, height=4, weighting="client"),
    "scores, top": _scores(3, height=4, kind="top"),
    "scores, coarse": _scores(2, height=2),
    "scores, top, coarse": _scores(3, height=2, kind="top"),
    "scores, population": _scores(2, height=2, population="clients"),
    "scores, as given": (2, _score_counts),
    "gain of a map": (3, _gain),
    "paired scores": _paired_scores("accuracy"),
    "paired scores, counts": (2, _paired_counts),
    "paired scores, areas": _paired_scores("roc_auc"),
    "residuals": _statistic(sf.ClasswiseResiduals.fit, 3, population="rows"),
    "one against rest": _statistic(sparse_areas, 3, height=4, population="rows"),
    "residuals, population": _statistic(sf.ClasswiseResiduals.fit, 3, n_bins=4),
    "one against rest, population": _statistic(sparse_areas, 3, height=2),
    "class scores": _statistic(
        sf.federated_roc_auc_score, 3, height=4, multi_class="ovr", population="rows"
    ),
    "class pairs": _statistic(
        sf.federated_roc_auc_score, 3, height=2, multi_class="ovo", population="rows"
    ),
    "predictions": _statistic(
        sf.federated_f1_score, 3, average="macro", population="rows"
    ),
    "class scores, population": _statistic(
        sf.federated_roc_auc_score, 3, height=3, multi_class="ovr"
    ),
    "class pairs, population": _statistic(
        sf.federated_roc_auc_score, 3, height=2, multi_class="ovo"
    ),
    "predictions, population": _statistic(sf.federated_f1_score, 3, average="macro"),
    "gaussian head": _calibrator("FedGaussianHead", rounds=None),
    "gaussian head, bounded": _calibrator("FedGaussianHead", rounds=None, max_norm=3.0),
    "gaussian head, quadratic": _calibrator(
        "FedGaussianHead", rounds=None, method="qda"
    ),
}
PRIVACY = {
    "exact": lambda: None,
    "central": lambda: sf.CentralDP(1.0, 1e-5),
    "central, rows": lambda: sf.CentralDP(1.0, 1e-5, unit="example"),
    "distributed": lambda: sf.DistributedDP(1.0, 1e-5, n_min=4),
    "distributed, replace": lambda: sf.DistributedDP(
        1.0, 1e-5, n_min=4, adjacency="replace"
    ),
    "distributed, rows": lambda: sf.DistributedDP(
        1.0, 1e-5, n_min=4, unit="example", mode="faithful"
    ),
    "shares": lambda: sf.DistributedDP(
        1.0, 1e-5, n_min=5, max_colluders=1, mode="faithful"
    ),
    "local": lambda: sf.LocalDP(2.0),
    "local reports": lambda: sf.LocalDP(2.0, mode="faithful"),
    "source": lambda: sf.SourceDP(1.0),
    "source reports": lambda: sf.SourceDP(1.0, mode="faithful"),
}

# Accountants and cohorts change noise and sums of one method as of any other.
SETTINGS = {
    **{
        f"temperature / {name} accountant": (
            "temperature",
            lambda name=name: sf.CentralDP(1.0, 1e-5, accountant=name),
            {},
        )
        for name in ("gdp", "pld", "zcdp")
    },
    **{
        f"temperature, grid / {cohort} cohorts, {name}": (
            "temperature, grid",
            PRIVACY[name],
            {"cohort": cohort, "cohort_size": 5 if cohort == "poisson" else 3},
        )
        for cohort in ("full", "permuted", "independent", "poisson")
        for name in ("exact", "central")
    },
}
CASES = {
    **{
        f"{method} / {privacy}": (method, PRIVACY[privacy], {})
        for method in METHODS
        for privacy in PRIVACY
    },
    **SETTINGS,
}


def in_core(name):
    """Whether all rows of a case go through the compiled core, and through it only."""
    return name.startswith("temperature") and name.endswith("exact")


# Models under which the server draws all noise: the only ones whose seed gives the same
# noise where sites are behind messages. "fast" models are refused there.
AT_SERVER = ("exact", "central", "central, rows")
# Privacy models of the normal suite and of the long form, by engine.
ENGINES = {
    "threads": (("exact",), tuple(PRIVACY)),
    "tree": (("exact", "central"), AT_SERVER),
    "messages": (("exact", "central, rows"), AT_SERVER),
    "aggregators": (("exact",), AT_SERVER),
    "masked": (("exact", "shares", "local reports"), tuple(PRIVACY)),
    "masked threads": ((), tuple(PRIVACY)),
    "masked messages": (("central",), AT_SERVER),
    "masked aggregators": (("exact",), AT_SERVER),
}


SHORT = {("messages", "exact"), ("masked", "exact")}


def engine_cases(long):
    """Pairs of engine and case whose sums must be those of one process."""
    for engine, models in ENGINES.items():
        for name in CASES:
            method, _, model = name.partition(" / ")
            if model not in PRIVACY:  # cohorts and accountants
                model = "central" if model.endswith(("central", "nt")) else "exact"
                if engine not in ("messages", "masked") and not long:
                    continue
            # Variants of a method in short form: once plain and once masked.
            variant = "," in method and (engine, model) not in SHORT
            if variant and not long:
                continue
            if method in IN_PROCESS and engine.endswith(("messages", "aggregators")):
                continue  # sites read scores by ClassScoreCounts
            if model in models[long]:
                yield engine, name


def remote(clients, groups=None):
    """The same clients as sites behind messages, with aggregators if asked to."""
    # Sums that list single rows are answered only by a policy that names them.
    policy = SitePolicy(methods=tuple(registry.algorithms()), allow_plain=True)
    sites = {n: Site(n, SiteRows(*rows), policy=policy) for n, rows in clients.items()}
    transport = InProcessTransport(sites)
    if groups is not None:
        transport = Aggregators(transport, groups)
    n_rows = sum(len(labels) for _, labels in clients.values())
    # Three or two columns: of logits as many as classes, and of features any number.
    n_columns = next(iter(clients.values()))[0].shape[1]
    return RemoteClients(transport, n_rows=n_rows, n_columns=n_columns)


def run_case(name, engine="in process", wiggle=0.0, seed=0):
    """Observed runs of one case on one engine."""
    method, model, options = CASES[name]
    n_classes, fit = METHODS[method]
    clients = make_clients(n_classes, seed, wiggle)
    runner = sf.FederatedRunner(**options)
    if engine.startswith("masked"):
        runner = runner.set_params(secure=True)
    if engine.endswith("threads"):
        runner = runner.set_params(n_jobs=2)
    if engine.endswith("messages"):
        clients = remote(clients)
    elif engine.endswith("aggregators"):
        clients = remote(clients, [NAMES[:2], NAMES[2:]])
    with warnings.catch_warnings(), adapt.observe(tree=engine == "tree") as seen:
        warnings.simplefilter("ignore")
        privacy = model()
        seen.estimates = isinstance(privacy, sf.LocalDP)
        try:
            fit(clients, runner, privacy)
        except (ValueError, TypeError) as error:
            seen.error = error
    return seen


def digest(seen):
    """SHA-256 of all released sums, as they were decoded."""
    sha = hashlib.sha256()
    for history in seen.histories:
        for record in history:
            for name, value in sorted(record.total.items()):
                sha.update(f"{name}{np.shape(value)}".encode())
                sha.update(np.ascontiguousarray(value, dtype="<f8").tobytes())
    return sha.hexdigest()


def released_integers(seen):
    """Released sums as integers, and whether they stand for reals (2**-40 each).

    Yields run, round, block, values and whether they are exact reals.
    """
    asked = {}
    for request in seen.requests:  # cohorts of one round are asked the same
        asked.setdefault((request.run, request.round_index), request)
    records = [
        (run, record)
        for run, history in enumerate(seen.histories)
        for record in history
    ]
    if len(asked) != len(records):
        raise AssertionError(f"{len(asked)} questions, {len(records)} releases")
    for request, (run, record) in zip(asked.values(), records, strict=True):
        steps = adapt.lattice(request)
        for name, value in sorted(record.total.items()):
            value = np.asarray(value, dtype=np.float64)
            step = steps[name] or 1.0
            # Counts of randomised reports are released as unbiased estimates.
            real = adapt.is_real(request, name) or seen.estimates
            if real:
                step = 2.0**-40
            whole = np.rint(value / step)
            if np.abs(whole).max(initial=0) >= 2.0**62:
                raise AssertionError(f"{name}: {np.abs(whole).max()} beyond 2**62")
            if not real and not np.allclose(whole * step, value, rtol=1e-14, atol=0):
                raise AssertionError(f"{name} is no multiple of {step}")
            yield run, record.round, name, whole.astype(np.int64), real


def integer_digest(seen, drop=0):
    """SHA-256 of released integers; of reals without the last `drop` bits."""
    sha = hashlib.sha256()
    for run, index, _, whole, real in released_integers(seen):
        if real and drop:
            whole = (whole + (1 << (drop - 1))) >> drop
        sha.update(f"{run} {index} {whole.shape}".encode())
        sha.update(np.ascontiguousarray(whole, dtype="<i8").tobytes())
    return sha.hexdigest()[:32]


def describe(seen):
    """Algorithms, rounds and blocks of a case, for a reader of the record."""
    blocks = {}
    for _, _, name, whole, _ in released_integers(seen):
        blocks.setdefault(name, list(whole.shape))
    return {
        "algorithms": [" of ".join(adapt.names_of(a)) for a in seen.algorithms],
        "rounds": [len(history) for history in seen.histories],
        "blocks": blocks,
    }
