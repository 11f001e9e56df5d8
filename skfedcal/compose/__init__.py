"""Classifiers and calibrators together."""

from skfedcal.compose._classifier import FederatedCalibratedClassifier
from skfedcal.compose._logits import LogitTransformer

__all__ = ["FederatedCalibratedClassifier", "LogitTransformer"]
