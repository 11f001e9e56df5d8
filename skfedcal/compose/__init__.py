"""Classifiers and calibrators together."""

from skfedcal.compose._classifier import FederatedCalibratedClassifier
from skfedcal.compose._logits import LogitTransformer
from skfedcal.compose._torch import TorchLogits

__all__ = ["FederatedCalibratedClassifier", "LogitTransformer", "TorchLogits"]
