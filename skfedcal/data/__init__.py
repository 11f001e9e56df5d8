"""Old path of clients, until 0.2.

Use `skfedcal` or `skfedcal.clients`.
A name that is taken from here gives a DeprecationWarning.
"""

from skfedcal._lazy import attach_moved

_NAMES = """
DirichletPartitioner FederatedDataset GroupPartitioner IIDPartitioner load_federation
make_federation save_federation
"""
MOVED = dict.fromkeys(_NAMES.split(), "skfedcal.clients")

__all__ = [*MOVED]

__getattr__, __dir__ = attach_moved(__name__, MOVED)
