"""Laws that hold for every calibrator, searched by hypothesis over one strategy.

The laws are the functions of `skfedcal.testing`; the calibrators are the cases of the
registry. ``HYPOTHESIS_PROFILE=deep`` searches longer.
"""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from skfedcal import FedBinCalibrator, FedTempCalibrator, testing
from skfedcal.methods import registry
from skfedcal.testing import drawn, fit

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.LogitsWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
]


def under(check, private=False):
    """All registered cases for which a law holds, with `eps` or without."""
    found = []
    for method in registry.methods("calibrator"):
        for case in method.cases:
            exempt = {**method.exempt, **case.exempt}
            if ("eps" in case.params) == private and check.__name__ not in exempt:
                found.append(method.load()(**case.params))
    return pytest.mark.parametrize(
        "cal", found, ids=lambda cal: repr(cal).replace("Calibrator", "")
    )


TEMPERATURES = [FedTempCalibrator(), FedTempCalibrator(solver="grid")]
over_temperatures = pytest.mark.parametrize("cal", TEMPERATURES, ids=repr)

LOGITS = st.floats(-1e4, 1e4, width=32) | st.floats(-8, 8, width=32)


@st.composite
def federations(draw, max_clients=4):
    """Clients with 2-4 classes; some empty, some one-class, ties, huge values."""
    n_classes = draw(st.integers(2, 4))
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=max_clients))
    assume(sum(sizes) > 0)
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    return n_classes, [
        (
            draw(hnp.arrays(dtype, (n, n_classes), elements=LOGITS)),
            draw(hnp.arrays(np.int64, n, elements=st.integers(0, n_classes - 1))),
        )
        for n in sizes
    ]


@under(testing.check_probabilities)
@given(data=federations())
def test_rows_are_finite_probabilities_of_the_input_dtype(cal, data):
    testing.check_probabilities(cal, data)


@under(testing.check_order_kept)
@given(data=federations())
def test_order_and_ties_are_kept(cal, data):
    # Maps of this package divide logits: only denormal gaps vanish.
    gap = 1e-30 if type(cal).__module__.startswith("skfedcal.") else None
    testing.check_order_kept(cal, data, gap)


@under(testing.check_client_and_row_order)
@given(data=federations(), seed=st.integers(0, 99))
def test_client_and_row_order_do_not_matter(cal, data, seed):
    testing.check_client_and_row_order(cal, data, seed)


@under(testing.check_merged_clients)
@given(data=federations())
def test_merging_clients_changes_nothing_without_clipping(cal, data):
    testing.check_merged_clients(cal, data)


@under(testing.check_empty_clients)
@given(data=federations())
def test_an_empty_client_changes_nothing(cal, data):
    testing.check_empty_clients(cal, data)


@under(testing.check_duplicated_clients)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_duplicating_all_clients_changes_nothing(cal, dtype):
    # The prior of a bin weighs half as much against twice the rows.
    atol = 1e-7 if isinstance(cal, FedTempCalibrator) else 0.1
    testing.check_duplicated_clients(cal, dtype, atol)


def test_duplicating_all_clients_doubles_counts():
    c, clients = drawn()
    one, _ = fit(FedBinCalibrator(n_bins=4), (c, clients))
    other, _ = fit(FedBinCalibrator(n_bins=4), (c, clients * 2))
    np.testing.assert_array_equal(other.positive_, 2 * one.positive_)
    np.testing.assert_array_equal(other.negative_, 2 * one.negative_)


@under(testing.check_class_permutation)
@given(seed=st.integers(0, 999), c=st.integers(2, 5))
def test_class_permutation_permutes_columns(cal, seed, c):
    testing.check_class_permutation(cal, seed, c)


@under(testing.check_row_shift)
@given(seed=st.integers(0, 999), shift=st.floats(-1000, 1000))
def test_adding_a_constant_to_a_row_changes_nothing(cal, seed, shift):
    testing.check_row_shift(cal, seed, shift)


@under(testing.check_batches)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("c", [2, 3, 11, 60])
def test_batches_do_not_interact_to_the_last_bit(cal, dtype, c):
    testing.check_batches(cal, [dtype], c)


@over_temperatures
@given(scale=st.floats(0.2, 20), seed=st.integers(0, 99))
def test_temperature_is_scale_equivariant(cal, scale, seed):
    c, clients = drawn(3, 60, seed=seed, temperature=1.0)
    one, _ = fit(cal, (c, clients))
    other, _ = fit(cal, (c, [(scale * rows, labels) for rows, labels in clients]))
    assert other.temperature_ == pytest.approx(scale * one.temperature_, rel=1e-6)


@pytest.mark.parametrize(
    "cal", [*TEMPERATURES, FedTempCalibrator(solver="average")], ids=repr
)
@example(value=-np.inf)
@example(value=-1e300)
@given(value=st.floats(-1e308, -2e4))
def test_a_masked_class_gets_exactly_zero(cal, value):
    _, clients = drawn(2, 20, 2)
    masked = [(np.column_stack([rows, np.full(20, value)]), y) for rows, y in clients]
    one, rows = fit(cal, (3, masked))
    other, plain = fit(cal, (2, clients))
    assert (one.predict_proba(rows)[:, 2] == 0).all()
    np.testing.assert_allclose(
        one.predict_proba(rows)[:, :2], other.predict_proba(plain), rtol=1e-6
    )


@pytest.mark.parametrize("seed", range(5))
def test_calibrated_logits_keep_a_temperature_of_one(seed):
    c, clients = drawn(20, 200, 4, temperature=1.0, seed=seed)
    # Standard error of log T: 1 / sqrt(information); 5.2 of them fail with chance 2e-7.
    rows = np.concatenate([z for z, _ in clients])
    proba = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    mean = (proba * rows).sum(axis=1)
    information = ((proba * rows**2).sum(axis=1) - mean**2).sum()
    cal, _ = fit(FedTempCalibrator(), (c, clients))
    assert abs(np.log(cal.temperature_)) < 5.2 / np.sqrt(information)


def test_calibrated_probabilities_keep_their_bins():
    c, clients = drawn(50, 400, 3, temperature=1.0)
    cal, rows = fit(FedBinCalibrator(n_bins=10, normalize="none"), (c, clients))
    proba = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    counts = cal.positive_ + cal.negative_
    for j in range(3):
        bins = np.minimum((proba[:, j] * 10).astype(int), 9)
        mean = np.bincount(bins, proba[:, j], 10) / counts[j]
        # A frequency of n rows: at most 1/2 sqrt(1/n) of sd; 30 bins, 5.8 sd: < 1e-6.
        # The prior moves a value by less than 2 / 10 / n.
        bound = 5.8 * 0.5 / np.sqrt(counts[j]) + 0.2 / counts[j]
        assert (np.abs(cal.bin_values_[j] - mean) < bound).all()


@over_temperatures
@given(seed=st.integers(0, 99), temperature=st.floats(0.3, 10))
def test_calibrating_twice_changes_nothing_more(cal, seed, temperature):
    c, clients = drawn(3, 60, seed=seed, temperature=temperature)
    first, _ = fit(cal, (c, clients))
    again = [(np.log(first.predict_proba(rows)), labels) for rows, labels in clients]
    second, _ = fit(cal, (c, again))
    assert second.temperature_ == pytest.approx(1.0, rel=1e-6)


@under(testing.check_bounded_contribution, private=True)
@given(data=federations(max_clients=6))
def test_removing_one_client_moves_the_integer_sum_by_at_most_its_limit(cal, data):
    testing.check_bounded_contribution(cal, data)


@under(testing.check_bounded_contribution, private=True)
def test_the_same_for_extreme_rows(cal):
    testing.check_bounded_contribution(cal)


@under(testing.check_seeds, private=True)
def test_same_seed_same_result_other_seed_other_noise(cal):
    testing.check_seeds(cal)


@under(testing.check_noise_by_eps, private=True)
def test_noise_grows_as_eps_falls(cal):
    testing.check_noise_by_eps(cal)


@under(testing.check_no_clients, private=True)
def test_a_cohort_without_clients_sends_nothing(cal):
    testing.check_no_clients(cal)


@pytest.mark.parametrize("private", [False, True])
def test_pickle_copy_and_clone(calibrator_class, private):
    method = registry.method_of(calibrator_class)
    for case in method.cases:
        if ("eps" in case.params) == private:
            testing.check_copies(calibrator_class(**case.params))


@under(testing.check_saved_file)
@given(data=federations())
def test_json_round_trip_keeps_every_bit(cal, data):
    testing.check_saved_file(cal, data)


def test_every_registered_calibrator_is_under_these_laws():
    for method in registry.methods("calibrator"):
        private = {"eps" in case.params for case in method.cases}
        # The maps of scikit-learn have no version with noise.
        expected = {False} if method.word == "class_scores" else {False, True}
        assert private == expected, method.word
        names = {check.__name__ for check in (*testing.ALWAYS, *testing.EXACT_ONLY)}
        for case in method.cases:
            exempt = {**method.exempt, **case.exempt}
            assert set(exempt) <= names and all(exempt.values())
