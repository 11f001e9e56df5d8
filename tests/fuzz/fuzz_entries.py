"""All entry points, as (name, share of the cases, function of a case)."""

from entries_compare import ENTRIES as COMPARE
from entries_display import ENTRIES as DISPLAY
from entries_estimators import ENTRIES as ESTIMATORS
from entries_federation import ENTRIES as FEDERATION
from entries_files import ENTRIES as FILES
from entries_functions import ENTRIES as FUNCTIONS
from entries_privacy import ENTRIES as PRIVACY
from entries_sites import ENTRIES as SITES
from entries_studies import ENTRIES as STUDIES
from entries_tables import ENTRIES as TABLES
from entries_torch import ENTRIES as TORCH
from entries_training import ENTRIES as TRAINING

ENTRIES = [
    *ESTIMATORS,
    *FUNCTIONS,
    *FILES,
    *FEDERATION,
    *PRIVACY,
    *SITES,
    *DISPLAY,
    *TORCH,
    *TRAINING,
    *TABLES,
    *COMPARE,
    *STUDIES,
]
