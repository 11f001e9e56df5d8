"""Corruptions of images."""

from skfedcal.datasets.corruptions._corrupt import CORRUPTIONS, corrupt

__all__ = ["CORRUPTIONS", "corrupt"]
