"""Shared shape: one curve of the log-probability for all classes."""
