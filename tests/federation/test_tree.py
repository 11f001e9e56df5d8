"""Sums of sums: any tree of aggregators gives the same bits."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skfedcal import FederatedDataset, FederatedRunner
from skfedcal.exceptions import FaultyClientWarning, NotEnoughClientsError
from skfedcal.federation import (
    Aggregators,
    InProcess,
    InProcessTransport,
    MessageBackend,
    Request,
    TreeBackend,
)
from skfedcal.federation.messages import sum_words
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.methods.score_curves.rounds import ScoreCounts
from skfedcal.privacy import CentralDP, DistributedDP, PrivacyLedger
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.mechanisms import ExactSum

COUNTS = ScoreCounts(levels=(2, 4), max_examples=1)
CLIPPED = replace(COUNTS, clip=1.0)


def make_data(n_clients, rows_each=1, seed=0):
    rng = np.random.default_rng(seed)
    n = n_clients * rows_each
    offsets = np.arange(n_clients + 1) * rows_each
    return FederatedDataset(
        rng.random((n, 1)), rng.integers(0, 2, n), offsets, range(n_clients), 2
    )


DATA, FEW = make_data(40, 2), make_data(12, 2)


def totals(engine, data=DATA, model=None, algorithm=None, **options):
    """What a run on an engine adds up to."""
    runner = FederatedRunner(**options)
    mechanism = ExactSum()
    algorithm = algorithm or (COUNTS if model is None else CLIPPED)
    if model is not None:
        plan = runner.release_plan(algorithm, data, model.unit)
        mechanism = model.mechanism(
            plan, entropy=SeededEntropy(1), ledger=PrivacyLedger(), label="x"
        )
    state, _ = runner.run(algorithm, engine, mechanism, SeededEntropy(0), n_classes=2)
    return state.totals.tobytes()


def trees(data, sizes):
    """Engines of the parts of a data set."""
    ends = np.cumsum([0, *sizes])
    return [
        InProcess(data.slice(int(a), int(b)), first=int(a)) for a, b in pairwise(ends)
    ]


@st.composite
def shapes(draw, n=40):
    """A tree over n clients as nested lists of sizes."""
    cuts = sorted(draw(st.sets(st.integers(1, n - 1), max_size=5)))
    return [b - a for a, b in pairwise([0, *cuts, n])]


MODELS = {
    "exact": None,
    "central": CentralDP(1.0),
    "rows": CentralDP(1.0, unit="example"),
    "shares": DistributedDP(1.0, n_min=1, mode="faithful"),
}


@pytest.mark.parametrize("name", MODELS)
def test_two_levels_give_the_bits_of_one(name):
    model = MODELS[name]
    expected = totals(InProcess(DATA), model=model)
    for size in (1, 7, 39, 40, 100):
        assert totals(TreeBackend.over(DATA, size), model=model) == expected


@given(shapes(), st.integers(1, 4), st.sampled_from(sorted(MODELS)))
def test_any_tree_gives_the_same_bits(sizes, split, name):
    leaves = trees(DATA, sizes)
    split = min(split, len(leaves))
    tree = TreeBackend([TreeBackend(leaves[:split]), *leaves[split:]])
    assert list(tree.ids()) == list(range(40))
    model = MODELS[name]
    assert totals(tree, model=model) == totals(InProcess(DATA), model=model)


@pytest.mark.parametrize("cohort", ["permuted", "independent", "poisson"])
def test_cohorts_are_shared_out(cohort):
    options = {"cohort": cohort, "cohort_size": 9, "n_rounds": 3}
    expected = totals(InProcess(DATA), **options)
    assert totals(TreeBackend.over(DATA, 11), **options) == expected


def test_an_aggregator_reads_no_sum_of_too_few_shares():
    model = DistributedDP(1.0, n_min=10, mode="faithful")
    totals(TreeBackend.over(DATA, 10), model=model)
    with pytest.raises(NotEnoughClientsError, match="shares of 10"):
        totals(TreeBackend.over(DATA, 9), model=model)


def test_leaves_may_mask():
    leaves = [
        MessageBackend(
            InProcessTransport(DATA.slice(i, i + 10)), secure=True, simulate=True
        )
        for i in range(0, 40, 10)
    ]
    assert totals(TreeBackend(leaves)) == totals(InProcess(DATA))


def test_faults_of_leaves_are_passed_on():
    def lost(kind, name, reply):
        return None if name == 13 else reply

    leaves = [
        MessageBackend(InProcessTransport(DATA.slice(i, i + 10), on_reply=lost))
        for i in range(0, 40, 10)
    ]
    with pytest.warns(FaultyClientWarning, match="13 did not answer"):
        found = TreeBackend(leaves).total(request(), np.arange(40))
    assert found.n_clients == 39 and found.faults == {"13": "did not answer (answer)"}


def test_a_million_clients_in_cohorts_of_a_thousand():
    data = make_data(1_000_000)
    tree = TreeBackend.over(data, 1000)
    assert len(tree.children) == 1000
    algorithm = ScoreCounts(levels=(10,), max_examples=1)
    found = totals(tree, data, algorithm=algorithm)
    assert found == totals(InProcess(data), data, algorithm=algorithm)
    assert np.frombuffer(found).sum() == 1_000_000


# Aggregators that pass up sums of words.


def request(algorithm=COUNTS):
    broadcast = algorithm.broadcast(algorithm.init(2))
    codec = ExactSum().codec(algorithm.spec(broadcast))
    return Request(algorithm, broadcast, codec)


def groups(*sizes):
    ends = np.cumsum([0, *sizes])
    return [list(range(a, b)) for a, b in pairwise(ends)]


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("sizes", [(12,), (6, 6), (1, 2, 9), (1,) * 12])
def test_sums_that_are_passed_up_give_the_same_bits(sizes, secure):
    transport = Aggregators(InProcessTransport(FEW), groups(*sizes))
    engine = MessageBackend(transport, secure=secure, simulate=True)
    assert totals(engine, FEW) == totals(InProcess(FEW), FEW)
    noisy = MODELS["shares"]
    expected = totals(InProcess(FEW), FEW, model=noisy)
    assert totals(engine, FEW, model=noisy) == expected


def test_the_server_receives_one_sum_of_each_aggregator():
    low = Aggregators(InProcessTransport(FEW), groups(3, 4, 5))
    seen = []

    class Listening:
        def ids(self):
            return low.ids()

        def call(self, kind, letters):
            found = low.call(kind, letters)
            seen.append((kind, len(found)))
            return found

    engine = MessageBackend(Listening(), secure=True)
    assert totals(engine, FEW) == totals(InProcess(FEW), FEW)
    assert ("masked", 3) in seen and ("keys", 12) in seen


@pytest.mark.parametrize("secure", [False, True])
def test_an_aggregator_leaves_out_and_names_who_does_not_fit(secure):
    def lie(kind, name, reply):
        if kind in ("answer", "masked") and name in (3, 4):
            return None if name == 3 else (reply[0], {"odd": np.zeros(2)})
        return reply

    inner = InProcessTransport(FEW, on_reply=lie)
    engine = MessageBackend(Aggregators(inner, groups(5, 7)), secure=secure)
    with pytest.warns(FaultyClientWarning) as caught:
        found = engine.total(request(), np.arange(12))
    assert "3 did not answer" in str(caught[0].message)
    assert "4 sent the arrays ['odd']" in str(caught[0].message)
    others = np.array([i for i in range(12) if i not in (3, 4)])
    right = InProcess(FEW).total(request(), others)
    assert found.n_clients == 10 and set(found.faults) == {"3", "4"}
    for name, value in right.total.items():
        np.testing.assert_array_equal(found.total[name], value)


def test_every_client_has_one_aggregator():
    for parts in (groups(20, 19), [*groups(40), [3]], [[0]]):
        with pytest.raises(ValueError, match="in one group"):
            Aggregators(InProcessTransport(DATA), parts)


@given(
    st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3), min_size=1)
)
def test_words_add_up_in_any_order(rows):
    parts = [{"a": np.array(row, dtype=np.uint32)} for row in rows]
    total = sum_words(parts)["a"]
    expected = np.array(rows, dtype=object).sum(axis=0) % 2**32
    assert total.tolist() == expected.tolist() and total.dtype == np.uint32
    half = len(parts) // 2
    if half:
        nested = sum_words([sum_words(parts[half:]), sum_words(parts[:half])])
        assert nested["a"].tolist() == total.tolist()
    assert parts[0]["a"].tolist() == rows[0]  # nobody's words are changed


def test_histograms_of_several_rows_per_client():
    data = FederatedDataset(
        np.random.default_rng(0).normal(size=(80, 3)), np.arange(80) % 3,
        np.arange(0, 81, 2), range(40), 3,
    )  # fmt: skip
    algorithm = ClassHistograms(n_bins=5)
    broadcast = algorithm.broadcast(algorithm.init(3))
    codec = ExactSum().codec(algorithm.spec(broadcast))
    asked = Request(algorithm, broadcast, codec)
    here = InProcess(data).total(asked, np.arange(40))
    there = TreeBackend.over(data, 6).total(asked, np.arange(40))
    assert here.n_clients == there.n_clients == 40
    for name, value in here.total.items():
        np.testing.assert_array_equal(there.total[name], value)
