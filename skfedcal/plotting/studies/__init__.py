"""Plots of experiments: scores and costs of several methods."""
