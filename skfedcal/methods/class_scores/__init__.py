"""Sigmoid and isotonic curves of each class's score: `FedOneVsRestCalibrator`."""
