"""A comparison as one HTML page that needs no network."""

from skfedcal.experiments.report.page import html_report
from skfedcal.experiments.report.verdict import Verdict, verdict_of

__all__ = ["Verdict", "html_report", "verdict_of"]
