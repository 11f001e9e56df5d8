"""The experiment behind ``skfedcal demo``."""
