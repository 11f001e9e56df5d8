"""Accuracy temperature: `FedAccTempCalibrator`."""
