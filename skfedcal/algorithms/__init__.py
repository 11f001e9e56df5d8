"""Old path of federated algorithms, until 0.2.

Use `skfedcal.contract` and the rounds of each method.
A name that is taken from here gives a DeprecationWarning.
"""

from skfedcal._lazy import attach_moved
from skfedcal.methods.registry import FAMILIES, algorithms

# Names of the old path: later algorithms never were here.
_NAMES = """
AccuracyRoot BiasTemperatureNewton BiasTemperatureResidual BlockSpec CellRows
ClassHistograms ClassMoments ClassResiduals EceGrid
FederatedAlgorithm GapParts LocalAverage MLPAveraging MatrixMap NoiseLaw
OneVsRestCounts OrderPreservingMap PooledFit ScoreCounts Sums TemperatureAverage
TemperatureGrid TemperatureNewton TemperaturePosterior TemperatureSearch TopBinCounts
VectorMap local_temperatures
"""
_PATHS = [*(entry.path for entry in algorithms().values()), *FAMILIES.values()]
_HOMES = {name: module for module, _, name in (p.partition(":") for p in _PATHS)}
_HOMES["local_temperatures"] = "skfedcal.methods.temperature.rounds"
MOVED = {name: _HOMES.get(name, "skfedcal.contract") for name in _NAMES.split()}

__all__ = [*MOVED]

__getattr__, __dir__ = attach_moved(__name__, MOVED)
