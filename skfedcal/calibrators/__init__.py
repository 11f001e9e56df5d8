"""The public calibrators."""

from skfedcal.calibrators._binning import FedBinCalibrator
from skfedcal.calibrators._persist import load
from skfedcal.calibrators._temperature import FedTempCalibrator

__all__ = ["FedBinCalibrator", "FedTempCalibrator", "load"]
