import pytest

from skfedcal import compare, make_federation


@pytest.fixture(scope="session")
def federation():
    return make_federation(
        n_clients=60,
        n_samples=2400,
        n_classes=4,
        n_test=1500,
        temperature=2.5,
        class_bias=0.5,
        random_state=0,
    )


@pytest.fixture(scope="session")
def given(federation):
    """Clients and test, as `compare` takes them."""
    return federation.clients, (federation.test_logits, federation.test_labels)


@pytest.fixture(scope="session")
def found(given):
    """FedTemp and FedBin without noise and with, two seeds."""
    return compare(
        *given, methods=["temp", "bin"], eps=[None, 2.0], seeds=2, progress=False
    )
