"""A small network on logits: `FedMLPCalibrator`."""
