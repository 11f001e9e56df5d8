"""Which arithmetic this process uses: last bits differ between processors.

numpy and OpenBLAS choose their loops by processor. Hashes of all bits are compared only
where the same loops run; rounded ones everywhere.
"""

import hashlib
import math
import platform
from functools import cache

import numpy as np
import scipy
import sklearn
from scipy import special

from skfedcal._compiled import arithmetic


@cache
def kernel():
    """Fingerprint of versions and of the last bits of what the package computes with.

    An installation that it does not know yet is compared with rounded values only.
    """
    sha = hashlib.sha256()
    versions = (np.__version__, scipy.__version__, sklearn.__version__)
    sha.update(repr((versions, platform.machine(), platform.libc_ver())).encode())
    if arithmetic() != "numpy":
        sha.update(arithmetic().encode())
    rng = np.random.default_rng(0)
    values = rng.integers(1, 10**9, 4099) / 999999937.0
    signed = values * 12 - 6
    for function in (np.exp, np.expm1, np.tanh, special.expit, special.ndtr):
        sha.update(function(signed).tobytes())
        sha.update(function(signed.astype(np.float32)).tobytes())
    for function in (np.log, np.log1p, np.log2, np.sqrt, special.erfcinv):
        sha.update(function(values).tobytes())
    sha.update(np.logaddexp(signed, values).tobytes())
    sha.update(np.power(values, signed).tobytes())
    for n, k, m in ((1, 3, 3), (7, 3, 4), (13, 4, 1), (67, 3, 3), (67, 12, 12)):
        a, b = signed[: n * k].reshape(n, k), values[: k * m].reshape(k, m)
        for product in (a @ b, a.T @ a, np.einsum("ij,ij->i", a, a), a @ b[:, 0]):
            sha.update(product.tobytes())
        for order in (a, np.asfortranarray(a)):
            sha.update(order.sum(axis=0).tobytes() + order.sum(axis=1).tobytes())
            sha.update(np.add.reduceat(order, [0, n // 2], axis=0).tobytes())
    for n in (2, 3, 7, 12):
        a = signed[: n * n].reshape(n, n)
        a = a @ a.T + np.eye(n)
        sha.update(np.linalg.solve(a, values[:n]).tobytes())
        sha.update(np.linalg.cholesky(a).tobytes())
        sha.update(np.linalg.eigh(a)[0].tobytes())
    for function in (math.exp, math.log1p, math.tanh, math.erf, math.lgamma):
        sha.update(np.array([function(v) for v in values[:500].tolist()]).tobytes())
    return sha.hexdigest()[:16]
