"""Classifiers and calibrators together."""

from skfedcal.compose._calibrated_classifier import FederatedCalibratedClassifier
from skfedcal.compose._logit_transformer import LogitTransformer
from skfedcal.compose._torch_logits import TorchLogits

__all__ = ["FederatedCalibratedClassifier", "LogitTransformer", "TorchLogits"]
