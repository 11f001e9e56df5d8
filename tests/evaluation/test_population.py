"""Intervals for clients as the population, against direct sums and new clients."""

import tracemalloc
import warnings

import numpy as np
import pytest
from scipy import stats

from skfedcal import (
    CentralDP,
    FederatedDataset,
    FederatedRunner,
    LocalDP,
    ScoreHistogram,
    SecureAggregation,
    federated_accuracy_score,
    federated_roc_auc_score,
)
from skfedcal.contract import CellRows, Sums
from skfedcal.evaluation.population import few_clients
from skfedcal.evaluation.ranking import auc_with_gradient, average_precision
from skfedcal.evaluation.rounds import (
    ClassTables,
    ScoreMoments,
    TableMoments,
    _cells_of,
)
from skfedcal.evaluation.thresholds import weights
from skfedcal.exceptions import PrivacyWarning
from skfedcal.federation.endpoint import Request, respond
from skfedcal.methods.score_curves.rounds import ClassScoreCounts
from skfedcal.privacy.codec import BlockCode, Codec

COMMON = {"input_type": "proba", "classes": [0, 1]}


def alike(n_clients, seed, spread=1.0, least=3, most=60):
    """Scores of clients whose labels share an effect, and client of each row."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(least + rng.geometric(0.06, n_clients), most)
    ids = np.repeat(np.arange(n_clients), sizes)
    odds = rng.normal(0, 1.3, len(ids))
    true = odds + spread * rng.normal(size=n_clients)[ids]
    labels = (rng.random(len(ids)) < 1 / (1 + np.exp(-true))).astype(int)
    return 1 / (1 + np.exp(-odds)), labels, ids


def fit(rows, **options):
    scores, labels, ids = rows
    return ScoreHistogram.fit(scores, labels, client_ids=ids, **COMMON, **options)


def per_client(rows, **options):
    """Counts of each client on its own."""
    scores, labels, ids = rows
    names = np.unique(ids)
    each = (
        fit((scores[ids == k], labels[ids == k], None), **options, population="rows")
        for k in names
    )
    return np.stack([one.counts_ for one in each])


@pytest.fixture(scope="module")
def rows():
    return alike(40, 0)


@pytest.fixture(scope="module")
def counts(rows):
    return per_client(rows)


def gradients(hist):
    """Gradients of three metrics in the counts."""
    part, whole = weights("f1", hist.grid.above(0.4))
    share = (hist.counts_ * part).sum() / (hist.counts_ * whole).sum()
    return {
        "area": auc_with_gradient(hist.counts_)[1],
        "precision": average_precision(hist.counts_, exact=True)[1],
        "f1": (part - share * whole) / (hist.counts_ * whole).sum(),
    }


@pytest.mark.parametrize("name", ["area", "precision", "f1"])
def test_variance_is_the_sum_of_squared_influences_of_clients(rows, counts, name):
    hist = fit(rows)
    slope = gradients(hist)[name]
    influence = (counts * slope).sum(axis=(1, 2))
    assert influence.sum() == pytest.approx(0, abs=1e-9)
    direct = (influence**2).sum()
    found = float(hist.variances(slope)[0])
    # Corrections for 40 clients of unequal size add a few per cent.
    assert direct * 1.01 < found < direct * 1.12


def test_two_buckets_have_the_exact_moments(rows):
    hist = fit(rows, height=1, space="prob")
    each = per_client(rows, height=1, space="prob").reshape(40, 4)
    (moments,) = hist.moments_
    np.testing.assert_array_equal(moments.products, each.T @ each)
    sizes = each.sum(axis=1)
    powers = [(sizes**3).sum(), (sizes**4).sum()]
    np.testing.assert_allclose(moments.powers, powers, rtol=1e-6)


def test_corrections_are_those_of_clients_of_equal_size():
    sizes = 12 * 7.0 ** np.arange(1, 5)
    for found in (0.2, 1.0, 4.0):
        factor, free = few_clients(np.array(1.0), np.array(found), sizes)
        assert factor == pytest.approx(12 / 11) and free == pytest.approx(11)


def test_powers_that_were_rounded_to_nothing_are_bounded():
    sizes = np.array([20_000.0, 20_000.0, 0.0, 0.0])
    factor, free = few_clients(np.array(1.0), np.array(1.0), sizes)
    assert factor == pytest.approx(1, abs=1e-3) and free == pytest.approx(2e4, rel=0.01)


def test_corrections_make_the_variance_of_unequal_clients_unbiased():
    # Means of normal clients with variance a n + b n^2 of the sum of a client.
    rng = np.random.default_rng(0)
    n = np.array([5.0, 8.0, 10.0, 12.0, 20.0, 30.0, 40.0, 60.0])
    own, common = 1.0, 0.1
    sums = rng.normal(size=(40_000, 8)) * np.sqrt(own * n + common * n**2)
    mean = sums.sum(axis=1) / n.sum()
    squares = ((sums - mean[:, None] * n) ** 2).sum(axis=1)
    truth = (own * n + common * n**2).sum()
    power = np.array([(n**k).sum() for k in range(1, 5)])
    rows = np.array((own + common) * n.sum())
    factor, free = few_clients(rows, np.array(truth), power)
    # Standard error of the mean of 40,000 squares: 0.5 %; bound: five of them.
    assert factor * squares.mean() == pytest.approx(truth, rel=0.025)
    ratio = 2 * squares.mean() ** 2 / squares.var()
    # The variance of 40,000 squares has a standard error below 3 %.
    assert 0.8 * ratio < free < 1.05 * ratio


def test_clients_of_one_row_are_rows():
    scores, labels, _ = alike(60, 1)
    one = fit((scores, labels, np.arange(len(scores))))
    same = fit((scores, labels, np.arange(len(scores))), population="rows")
    for name in ("roc_auc", "accuracy", "brier", "ece"):
        ours, theirs = getattr(one, name)(), getattr(same, name)()
        assert ours.design_effect == pytest.approx(1, abs=0.02)
        assert ours.low == pytest.approx(theirs.low, abs=0.003)
        assert ours.population == "clients" and theirs.population == "rows"


def test_estimates_say_what_they_are(rows):
    exact = fit(rows).precision()
    assert exact.estimand == "every row counts once" and exact.design_effect > 1.2
    text = repr(exact)
    assert "population='clients'" in text and "every row counts once" in text
    assert "clients" in exact._repr_html_()
    assert exact.to_dict()["population"] == "clients"
    weighted = fit(rows, weighting="client").accuracy()
    assert weighted.estimand == "every client counts once"
    bounded = fit(rows, max_examples_per_client=5).roc_auc()
    assert bounded.estimand == "at most 5 rows of a client count"
    alone = fit((*rows[:2], None)).roc_auc()
    assert alone.population == "rows"


def test_weighting_by_client_has_the_variance_of_client_means(rows):
    scores, labels, ids = rows
    right = (scores >= 0.5) == labels
    means = np.bincount(ids, right) / np.bincount(ids)
    found = federated_accuracy_score(
        scores, labels, client_ids=ids, weighting="client", **COMMON
    )
    assert found == pytest.approx(means.mean(), abs=1e-4)
    assert found.se_sampling == pytest.approx(stats.sem(means), rel=1e-3)


def test_bounds_under_privacy(rows):
    private = {"privacy": CentralDP(5.0), "random_state": 0}
    with pytest.warns(PrivacyWarning, match="one row of each client is counted"):
        one = fit(rows, **private)
    assert one.accuracy().estimand == "every client counts once"
    assert one.accuracy().design_effect == 1 and one.population_ == "clients"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Whole clients")
        warnings.filterwarnings("ignore", message=".*simulation")
        fit(rows, max_examples_per_client=1, **private)
        fit(rows, weighting="client", **private)
        several = fit(rows, max_examples_per_client=4, **private)
    # Rows of a client may be all alike.
    auc = several.roc_auc()
    assert auc.design_effect == pytest.approx(4)
    by_rows = several._of_rows().roc_auc()
    assert auc.low < by_rows.low and auc.high >= by_rows.high


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"population": "sites"}, "population='sites': pass one of"),
        ({"population": 3}, "population=3: pass one of"),
        ({"population": "clients", "client_ids": None}, "at least 2 clients, got 1"),
        (
            {"population": "clients", "privacy": CentralDP(1.0, unit="example")},
            "protects single examples",
        ),
    ],
)
def test_populations_that_cannot_be(rows, options, match):
    scores, labels, ids = rows
    given = {"client_ids": ids, **options}
    with pytest.raises(ValueError, match=match):
        federated_roc_auc_score(scores, labels, **given, **COMMON)


def test_several_classes_have_clients():
    from skfedcal import federated_f1_score, make_federation

    fed = make_federation(20, 400, n_classes=3, random_state=0)
    exact = federated_f1_score(fed.clients, average="macro")
    assert (exact.population, exact.estimand) == ("clients", "every row counts once")
    with pytest.warns(PrivacyWarning, match="one row of each client") as caught:
        private = federated_f1_score(
            fed.clients, average="macro", privacy=CentralDP(9.0), random_state=0
        )
    # Once, and at the line of the caller.
    told = [w for w in caught if "one row of each client" in str(w.message)]
    assert [w.filename for w in told] == [__file__]
    assert private.population == "clients"
    assert private.estimand == "every client counts once"
    for bound in (1, 4):
        found = federated_f1_score(
            fed.clients, average="macro", privacy=CentralDP(9.0), random_state=0,
            max_examples_per_client=bound,
        )  # fmt: skip
        assert found.population == "clients"
        # Rows of a client may be all alike: nothing is released about that.
        assert found.design_effect == pytest.approx(bound)
    with pytest.raises(ValueError, match="196608 weights of counts are more than"):
        federated_roc_auc_score(
            fed.clients, population="clients", multi_class="ovr", n_others=1, height=15
        )


def class_rows(n_clients, n_classes, seed):
    """Scores of clients that differ in classes, errors and size."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(4, 40, n_clients)
    ids = np.repeat(np.arange(n_clients), sizes)
    prior = rng.dirichlet(np.ones(n_classes), n_clients)
    labels = np.array([rng.choice(n_classes, p=prior[c]) for c in ids])
    scores = rng.normal(size=(len(ids), n_classes))
    scores += rng.normal(0, 0.7, (n_clients, n_classes))[ids]
    scores[np.arange(len(ids)), labels] += rng.normal(1.5, 0.5, n_clients)[ids]
    return scores, labels, ids


@pytest.mark.parametrize("n_classes", [3, 9, 22], ids=["cells", "margins", "by class"])
def test_errors_of_several_classes_are_those_of_clients(n_classes):
    """Against the sandwich variance by a loop over clients."""
    from skfedcal import federated_report

    scores, labels, ids = class_rows(60, n_classes, 0)
    report = federated_report(scores, labels, client_ids=ids, classes=range(n_classes))
    n, size = len(ids), np.bincount(ids)
    rights = (scores.argmax(axis=1) == labels).astype(float)
    likely = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    loss = -likely[np.arange(n), labels]
    brier = ((np.exp(likely) - np.eye(n_classes)[labels]) ** 2).sum(axis=1)
    for name, value, error in (
        ("accuracy", rights, 0.01 if n_classes <= 20 else None),
        ("log loss", loss, 0.1),
        ("brier", brier, 0.1),
    ):
        sums = np.bincount(ids, value - value.mean())
        few = np.sqrt(60 / 59)  # of clients of equal size; they are not quite
        se = few * np.sqrt((sums**2).sum()) / n
        found = report[name]
        assert found.population == "clients"
        assert float(found) == pytest.approx(value.mean(), rel=0.01)
        if error is None:  # an upper bound
            assert 0.95 * se < found.se_sampling < n_classes * se
        else:
            assert found.se_sampling == pytest.approx(se, rel=error + 0.04)
        own = found.design_effect
        assert own > 1 or name != "accuracy", name
    # A class: recall is a ratio of two numbers of a client.
    mine = labels == 1
    recall = rights[mine].mean()
    sums = np.bincount(ids[mine], rights[mine] - recall, minlength=60)
    se = np.sqrt((sums**2).sum()) / mine.sum()
    found = report["1"]["recall"].se_sampling
    assert found == pytest.approx(se, rel=0.15)
    support = np.bincount(ids[mine], minlength=60)
    assert report["1"]["support"].se_sampling == pytest.approx(
        np.sqrt(60 / 59 * ((support - support.mean()) ** 2).sum()), rel=1e-6
    )
    assert size.sum() == n


def test_areas_of_pairs_and_of_all_classes_have_clients():
    scores, labels, ids = class_rows(80, 3, 1)
    common = {"client_ids": ids, "classes": range(3)}
    for options in (
        {"multi_class": "ovo"},
        {"multi_class": "ovr", "average": "micro"},
        {"multi_class": "ovr", "average": "weighted"},
    ):
        found = federated_roc_auc_score(scores, labels, **common, **options)
        rows = federated_roc_auc_score(
            scores, labels, population="rows", **common, **options
        )
        assert float(found) == float(rows) and found.population == "clients"
        assert found.design_effect == pytest.approx(
            (found.se_sampling / rows.se_sampling) ** 2, rel=1e-6
        )
        if options["multi_class"] == "ovo":
            assert found.high - found.low > 1.2 * (rows.high - rows.low)


@pytest.mark.slow
def test_intervals_of_several_classes_cover_the_numbers_of_all_clients():
    from skfedcal import federated_report

    scores, labels, ids = class_rows(1000, 3, 2)
    names = ("accuracy", "balanced accuracy", "roc auc", "average precision",
             "log loss", "brier", "classwise ece")  # fmt: skip
    truth = federated_report(
        scores, labels, client_ids=ids, population="rows", debias=False
    )
    rng, parts = np.random.default_rng(0), np.split(
        np.arange(len(ids)), np.flatnonzero(np.diff(ids)) + 1
    )  # fmt: skip
    hits, repeats = dict.fromkeys(names, 0), 40
    for _ in range(repeats):
        drawn = [parts[i] for i in rng.integers(0, 1000, 50)]
        rows = np.concatenate(drawn)
        found = federated_report(
            scores[rows], labels[rows], classes=range(3),
            client_ids=np.repeat(np.arange(50), [len(part) for part in drawn]),
        )  # fmt: skip
        for name in names:
            hits[name] += found[name].low <= float(truth[name]) <= found[name].high
    # With a coverage of .92 there are fewer than 25 hits once in five million.
    assert min(hits.values()) >= 25, hits


def test_examples_as_unit_have_rows_as_population(rows):
    found = fit(rows, privacy=CentralDP(1.0, unit="example"), random_state=0)
    assert found.population_ == "rows" and found.moments_ == ()
    local = fit(rows, privacy=LocalDP(5.0), height=2, random_state=0)
    assert local.population_ == "clients" and local.rows_each_ == 1


def test_files_and_sums_keep_the_population(rows):
    scores, labels, ids = rows
    hist = fit(rows)
    again = ScoreHistogram.from_json(hist.to_json())
    assert repr(again.roc_auc()) == repr(hist.roc_auc())
    halves = [fit((scores[k], labels[k], ids[k])) for k in (ids < 20, ids >= 20)]
    both = halves[0].merge(halves[1])
    assert both.population_ == "clients" and len(both.moments_) == 2
    ours, theirs = both.roc_auc(), hist.roc_auc()
    assert ours.se_sampling == pytest.approx(theirs.se_sampling, rel=0.02)
    mixed = halves[0].merge(fit((scores[ids > 19], labels[ids > 19], None)))
    assert mixed.population_ == "rows" and mixed.moments_ == ()


def test_moments_that_do_not_fit_are_refused(rows):
    import json

    content = json.loads(fit(rows, height=2).to_json())
    for change in (
        {"edges": [0, 2, 3]},
        {"edges": [0, 3, 2, 4]},
        {"products": [[1.0]]},
        {"powers": [1.0]},
    ):
        bad = {**content, "moments": [{**content["moments"][0], **change}]}
        with pytest.raises(ValueError, match="second moments"):
            ScoreHistogram.from_json(json.dumps(bad))
    for bad in ({"population": "rows"}, {"population": "x"}, {"max_examples": 0}):
        with pytest.raises(ValueError, match="Not a histogram"):
            ScoreHistogram.from_json(json.dumps({**content, **bad}))
    old = {k: v for k, v in content.items() if k not in ("population", "moments")}
    assert ScoreHistogram.from_json(json.dumps(old)).population_ == "rows"


@pytest.mark.parametrize("weighting", ["example", "client"])
def test_a_contribution_depends_on_own_rows_only(rows, weighting):
    scores, labels, ids = rows
    offsets = np.searchsorted(ids, np.arange(41))
    data = FederatedDataset(scores[:, None], labels, offsets, range(40), 2)
    algorithm = ScoreMoments(
        (4,), max_examples=9, weighting=weighting, input_type="proba", space="both",
        edges=(0, 3, 7, 8, 16), rows=float(len(ids)),
    )  # fmt: skip
    together = algorithm.query({"round": np.asarray(0)}, data)
    for k in (0, 17, 39):
        alone = algorithm.query({"round": np.asarray(0)}, data.select(np.array([k])))
        for name, values in alone.items():
            np.testing.assert_array_equal(dense(values)[0], dense(together[name])[k])


def dense(values):
    return values.dense() if isinstance(values, CellRows) else values


def summed(algorithm, data):
    """State after one round of exact sums."""
    spec = algorithm.spec(algorithm.broadcast(algorithm.init(data.n_classes)))
    codec = Codec({name: BlockCode(block) for name, block in spec.items()})
    request = Request(algorithm, {"round": np.asarray(0)}, codec)
    total = respond(request, data).total
    values = {name: code.decode(total[name]) for name, code in codec.blocks.items()}
    return algorithm.update(algorithm.init(data.n_classes), Sums(values), len(data))


# Listed and dense products, sorted and counted places, products above 2**24.
SIZES = {
    "one row": [1] * 300,
    "few rows": [0, 1, 3, 0, 2] * 40,
    "one large": [1] * 200 + [9000],
    "many rows": [400] * 20,
}


def of_sizes(sizes, n_classes, random_state=0):
    rng = np.random.default_rng(random_state)
    n, offsets = sum(sizes), np.cumsum([0, *sizes])
    proba = rng.dirichlet(np.full(n_classes, 0.3), n)
    labels = np.array(
        [rng.choice(n_classes, p=0.7 * p + 0.3 / n_classes) for p in proba]
    )
    rows = proba[:, 1:] if n_classes == 2 else proba
    names = range(len(sizes))
    return FederatedDataset(rows, labels, offsets, names, n_classes)


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("weighting", ["example", "client"])
def test_products_are_those_of_the_counts_of_each_client(kind, weighting):
    data = of_sizes(SIZES[kind], 2)
    edges, rows = (0, 1, 4, 6, 9, 11, 14, 32), float(data.n_rows)
    common = {"weighting": weighting, "input_type": "proba", "space": "both"}
    algorithm = ScoreMoments((5,), edges=edges, rows=rows, **common)
    counted = ClassScoreCounts((5,), **common).query({"round": np.asarray(0)}, data)
    fine = dense(counted["level_5"])
    each = np.add.reduceat(fine, edges[:-1], axis=2).reshape(len(data), -1)
    found = summed(algorithm, data)
    np.testing.assert_array_equal(algorithm.matrix(found), each.T @ each)
    powers = [((each.sum(axis=1) / rows) ** p).sum() for p in (3, 4)]
    np.testing.assert_allclose(found.powers, powers, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", SIZES)
def test_products_of_tables_are_those_of_the_counts_of_each_client(kind):
    k, data = 3, of_sizes(SIZES[kind], 3)
    parts, heights = ("confusion", "scores", "top", "pairs"), (0, 3, 3, 3)
    common = {"n_classes": k, "n_others": 2, "input_type": "proba"}
    cut = (0, 1, 3, 8)
    moments = TableMoments(
        parts, heights, edges=((0, 1), cut, cut, cut), rows=float(data.n_rows), **common
    )
    fine = ClassTables(parts, heights, **common).query({"round": np.asarray(0)}, data)
    each = {name: dense(values) for name, values in fine.items()}
    coarse = {name: np.add.reduceat(each[name], cut[:-1], axis=2) for name in parts[1:]}
    groups = {"confusion": [each["confusion"]], "top": [coarse["top"]]}
    # Negatives and positives of each class; those of all classes are first.
    sides = coarse["scores"].reshape(len(data), 2, k, -1)
    groups["scores"] = [sides.sum(axis=2), *(sides[:, :, i] for i in range(k))]
    tables = coarse["pairs"].reshape(len(data), k, k, -1)
    groups["pairs"] = [
        np.stack([tables[:, j, i] * (i != j), tables[:, i, i]], axis=1)
        for i in range(k)
        for j in range(k)
    ]
    found = moments.matrices(summed(moments, data))
    for name, counts in groups.items():
        assert len(found[name]) == len(counts)
        for one, own in zip(found[name], counts, strict=True):
            flat = own.reshape(len(data), -1)
            np.testing.assert_array_equal(one, flat.T @ flat)


def test_products_of_many_clients_need_little_memory():
    # Listing all pairs of 3,000 clients with many rows would take 70 MB, and a dense
    # array of all products of 20,000 clients with one row 320 MB.
    for sizes, most in (([40] * 3000, 60e6), ([1] * 20_000, 40e6)):
        data = of_sizes(sizes, 2)
        options = {"input_type": "proba", "rows": float(data.n_rows)}
        algorithm = ScoreMoments((5,), edges=tuple(range(33)), **options)
        tracemalloc.start()
        summed(algorithm, data)
        assert tracemalloc.get_traced_memory()[1] < most
        tracemalloc.stop()


def test_large_clients_are_summed_exactly():
    n = 70_000  # whose square is beyond 2**32
    scores, labels = np.full(n, 0.9), np.ones(n, dtype=int)
    scores[:9], labels[:9] = 0.1, 0
    ids = np.repeat([0, 1], [n - 4, 4])
    hist = ScoreHistogram.fit(scores, labels, client_ids=ids, height=1, **COMMON)
    assert hist.moments_[0].products.max() == (n - 9 - 4) ** 2 + 4**2


@pytest.mark.parametrize(
    "runner",
    [
        FederatedRunner(cohort_size=7),
        FederatedRunner(cohort="permuted", cohort_size=9),
        FederatedRunner(secure=True),
    ],
)
def test_engines_agree(rows, runner):
    one, other = fit(rows, height=3), fit(rows, height=3, runner=runner)
    np.testing.assert_array_equal(one.moments_[0].products, other.moments_[0].products)


def test_a_checkpoint_has_a_second_file(rows, tmp_path):
    path = tmp_path / "run.ckpt"
    first, again = (
        fit(rows, height=3, runner=FederatedRunner(checkpoint=path, resume=resume))
        for resume in (False, True)
    )
    assert repr(first.roc_auc()) == repr(again.roc_auc())


def test_all_rows_right_leaves_an_interval_of_clients():
    scores, labels = np.full(400, 0.9), np.ones(400, dtype=int)
    found = federated_accuracy_score(
        scores, labels, client_ids=np.arange(400) // 20,
        privacy=SecureAggregation(), **COMMON,
    )  # fmt: skip
    # Twenty clients that agree, not 400 rows.
    assert found.high == 1 and 0.8 < found.low < 0.9


@pytest.mark.parametrize("n_clients", [16, 60])
def test_intervals_hold_when_clients_are_drawn_anew(n_clients):
    # True values from many clients; 150 samples: at a coverage of .95 fewer than 122
    # hits have a probability below 1e-7, and of rows it is far below.
    truth = fit(alike(20_000, 99), population="rows")
    right = float(truth.accuracy()), float(truth.roc_auc())
    hits, by_rows = np.zeros(2), np.zeros(2)
    for seed in range(150):
        hist = fit(alike(n_clients, seed))
        for total, one in ((hits, hist), (by_rows, hist._of_rows())):
            found = one.accuracy(), one.roc_auc()
            total += [f.low <= r <= f.high for f, r in zip(found, right, strict=True)]
    assert (hits >= 122).all(), hits
    assert (by_rows < hits).all(), by_rows


@pytest.mark.parametrize("n_leaves", [0, 5, 63, 64, 1000])
def test_coarse_cells_are_those_of_the_edges(n_leaves):
    """Few leaves are searched for, many are looked up."""
    edges = np.array([0, 1, 7, 8, 40, 64])
    leaf = np.random.default_rng(0).integers(0, 64, n_leaves)
    expected = [sum(int(e) <= i for e in edges[1:-1]) for i in leaf.tolist()]
    assert _cells_of(edges, leaf).tolist() == expected
