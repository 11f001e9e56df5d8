"""What runs at a site needs numpy only, whoever draws the noise."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from skfedcal import FederatedRunner
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.federation import Request
from skfedcal.methods.score_curves.rounds import ScoreCounts
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    LocalDP,
    SecureAggregation,
    SourceDP,
)
from skfedcal.privacy.entropy import OSEntropy

DATA = FederatedDataset(
    np.linspace(0, 1, 9)[:, None], np.arange(9) % 2, np.arange(10), range(9), 2
)
CODE = """
import pickle, sys
from skfedcal.federation import respond
request, data = pickle.load(sys.stdin.buffer)
answer = respond(request, data.slice(0, 1))
heavy = "sklearn", "scipy", "joblib", "torch"
print(answer.n_clients, request.n_min, [m for m in heavy if m in sys.modules])
"""


@pytest.mark.parametrize(
    ("model", "options", "n_min"),
    [
        (SecureAggregation(), {}, 0),
        (CentralDP(1.0), {"norm": "l2"}, 0),
        (DistributedDP(1.0, n_min=3, mode="faithful"), {}, 3),
        (DistributedDP(1.0, n_min=3, mode="faithful"), {"weighting": "client"}, 3),
        (DistributedDP(1.0, mode="faithful"), {"norm": "l2"}, 9),
        (SourceDP(1.0, mode="faithful"), {}, 0),
        (LocalDP(1.0, mode="faithful"), {}, 0),
    ],
    ids=["exact", "central", "polya", "wide polya", "gaussian", "laplace", "reports"],
)
def test_a_site_answers_with_numpy_only(model, options, n_min):
    algorithm = ScoreCounts(levels=(2,), clip=1.0, **options)
    plan = FederatedRunner().release_plan(algorithm, DATA, model.unit)
    mechanism = model.mechanism(plan, entropy=OSEntropy(), ledger=None)
    broadcast = algorithm.broadcast(algorithm.init(2))
    codec = mechanism.codec(algorithm.spec(broadcast))
    request = Request(
        algorithm,
        broadcast,
        codec,
        mechanism.unit,
        mechanism.randomizer(codec, 0),
        mechanism.site_entropy,
        mechanism.n_min,
    )
    out = subprocess.run(
        [sys.executable, "-c", CODE],
        input=pickle.dumps((request, DATA)),
        capture_output=True,
        check=True,
    )
    assert out.stdout.decode().strip() == f"1 {n_min} []"
