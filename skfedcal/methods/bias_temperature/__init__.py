"""Bias and temperature scaling: `FedBiasTempCalibrator`."""
