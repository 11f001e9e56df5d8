"""The map of every fitted calibrator, in the operations of `skfedcal.export`."""
