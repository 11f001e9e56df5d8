"""Old path of clients, until 0.2.

Use `skfedcal` or `skfedcal.clients`.
A name that is taken from here gives a DeprecationWarning.
"""

from skfedcal._lazy import attach_moved

# Public name -> module that has it now.
MOVED = {
    "DirichletPartitioner": "skfedcal.clients",
    "FederatedDataset": "skfedcal.clients",
    "GroupPartitioner": "skfedcal.clients",
    "IIDPartitioner": "skfedcal.clients",
    "load_federation": "skfedcal.clients",
    "make_federation": "skfedcal.clients",
    "save_federation": "skfedcal.clients",
}

__all__ = [*MOVED]

__getattr__, __dir__ = attach_moved(__name__, MOVED)
