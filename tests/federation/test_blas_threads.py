"""Sites with other numbers of BLAS threads must send the same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import skfedcal

SCRIPT = """
import json, sys, warnings
import numpy as np
from hashlib import sha256
import uniform_mixture
from skfedcal import make_federation
from skfedcal.methods import registry
from skfedcal.testing import short_runner

warnings.simplefilter("ignore")
fed = make_federation(3, 24_000, 10, alpha=None, dtype=np.float64, random_state=0)
found = {}
for method in registry.methods("calibrator"):
    cal = method.load()(classes=range(10), **method.cases[0].params)
    cal.set_params(runner=short_runner(cal, fed.clients[:1])).fit(fed.clients)
    sums = [v for r in cal.history_ for _, v in sorted(r.total.items())]
    found[method.word] = sha256(b"".join(v.tobytes() for v in sums)).hexdigest()
print(json.dumps(found))
"""
PACKAGE = str(Path(skfedcal.__file__).parents[1])
EXAMPLES = Path(__file__).parents[2] / "examples"


def digests(n_threads):
    keys = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={
            **os.environ,
            **dict.fromkeys(keys, str(n_threads)),
            "PYTHONPATH": os.pathsep.join([PACKAGE, str(EXAMPLES)]),
        },
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(os.cpu_count() == 1, reason="one processor has one thread")
def test_sums_do_not_depend_on_the_threads_of_blas():
    assert digests(1) == digests(2)
