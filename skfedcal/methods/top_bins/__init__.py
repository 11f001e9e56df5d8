"""Binning of the most probable class: `FedTopBinCalibrator`."""
