"""Curves from a score histogram: `FedHistogramCalibrator`."""
