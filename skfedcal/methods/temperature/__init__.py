"""Temperature scaling: `FedTempCalibrator`."""
