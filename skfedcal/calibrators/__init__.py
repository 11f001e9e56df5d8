"""Old path of the calibrators, until 0.2.

Use `skfedcal` or `skfedcal.methods`.
A name that is taken from here gives a DeprecationWarning.
"""

from skfedcal._lazy import attach_moved

# Public name -> module that has it now.
MOVED = {
    "FedAccTempCalibrator": "skfedcal.methods",
    "FedAutoCalibrator": "skfedcal.methods",
    "FedBBQCalibrator": "skfedcal.methods",
    "FedBiasTempCalibrator": "skfedcal.methods",
    "FedBinCalibrator": "skfedcal.methods",
    "FedHistogramCalibrator": "skfedcal.methods",
    "FedMLPCalibrator": "skfedcal.methods",
    "FedMatrixCalibrator": "skfedcal.methods",
    "FedOPVectorCalibrator": "skfedcal.methods",
    "FedTempCalibrator": "skfedcal.methods",
    "FedTopBinCalibrator": "skfedcal.methods",
    "FedVectorCalibrator": "skfedcal.methods",
    "client_temperatures": "skfedcal.methods",
    "load": "skfedcal.methods",
}

__all__ = [*MOVED]

__getattr__, __dir__ = attach_moved(__name__, MOVED)
