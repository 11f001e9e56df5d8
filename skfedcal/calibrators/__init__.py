"""Old path of the calibrators, until 0.2.

Use `skfedcal` or `skfedcal.methods`.
A name that is taken from here gives a DeprecationWarning.
"""

from skfedcal._lazy import attach_moved

# Names of the old path: later calibrators never were here.
_NAMES = """
FedAccTempCalibrator FedAutoCalibrator FedBBQCalibrator FedBiasTempCalibrator
FedBinCalibrator FedHistogramCalibrator FedMLPCalibrator FedMatrixCalibrator
FedOPVectorCalibrator FedTempCalibrator FedTopBinCalibrator FedVectorCalibrator
client_temperatures load
"""
MOVED = dict.fromkeys(_NAMES.split(), "skfedcal.methods")

__all__ = [*MOVED]

__getattr__, __dir__ = attach_moved(__name__, MOVED)
