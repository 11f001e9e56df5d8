"""Histogram binning: `FedBinCalibrator` and `FedBBQCalibrator`."""
