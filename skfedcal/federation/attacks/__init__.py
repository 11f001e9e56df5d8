"""A scripted dishonest server: what it can learn from a site by any requests.

Every attack speaks to copies of one site through `Site.handle` only. Most of them
compare two worlds: the rows of the site, and a copy in which something differs. All
that a server sees, except the content of an agreed answer, must be the same in both:
texts, exceptions, names, shapes and types of arrays, entries of the ledger, and the
state that later replies depend on. Content with noise is compared by a distinguishing
test, whose lower confidence bound on eps may not exceed the eps that was charged.

Time is not measured.

- `copies`: copies of the site and of its worlds, requests to them, and what is
  observable of a reply; `changes`: how requests are changed.
- `attack`: the target and what all attacks share; `rows`, `charges` and `exhaustion`
  hold the attacks by what they are after.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from skfedcal.federation import site as node
from skfedcal.federation.attacks.attack import Attack, Finding, Target, quiet
from skfedcal.federation.attacks.changes import CHANGES
from skfedcal.federation.attacks.charges import (
    Debits,
    LargerBounds,
    MeasuredEps,
    UnpaidAnswers,
)
from skfedcal.federation.attacks.exhaustion import Bombs
from skfedcal.federation.attacks.rows import (
    LabelsOfRows,
    OracleDomain,
    RowCount,
    TwoWorlds,
)
from skfedcal.privacy.site_ledger import SiteLedger

# Plain and masked answers.
_BOTH = (False, True)


def all_attacks() -> list[Attack]:
    """Every attack of the audit, in the order of the table."""
    return [
        OracleDomain(),
        *(attack(secure) for attack in (LabelsOfRows, RowCount) for secure in _BOTH),
        *(
            TwoWorlds(*change, secure)
            for secure in _BOTH
            for change in CHANGES.values()
        ),
        MeasuredEps(),
        UnpaidAnswers(),
        Debits(),
        LargerBounds(),
        Bombs(),
    ]


def audit_site(
    site: node.Site,
    *,
    attacks: Iterable[Attack] | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> list[Finding]:
    """Attack copies of a site in every way that is known here.

    Parameters
    ----------
    site : Site
        Site with rows, policy, roster and ledger; none of them is changed.
    attacks : iterable, default=None
        Which attacks; None is `all_attacks`.
    progress : callable, default=None
        Called with the name of each attack.
    **options : dict
        `n_samples` and `alpha` of the distinguishing test; `thorough`.

    Returns
    -------
    list of Finding
    """
    return attacked(Target.of(site, **options), attacks=attacks, progress=progress)


def attacked(
    target: Target,
    *,
    attacks: Iterable[Attack] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Finding]:
    """Run attacks on a target; neither logs nor warnings of its sites are shown."""
    found = []
    with quiet():
        for attack in all_attacks() if attacks is None else attacks:
            if progress is not None:
                progress(attack.name)
            found.append(attack.run(target))
    return found


def site_from_file(path: str | os.PathLike[str]) -> node.Site:
    """The site of a configuration file, with a copy of its ledger.

    The file of the ledger is read once and never opened as a ledger: nothing can be
    written to it.
    """
    config = dict(node.whole_config({"site-config": str(path)}))
    name = node.client_name(config)
    key, roster = node._identity(config, name)
    with tempfile.TemporaryDirectory() as folder:
        ledger = None
        if "ledger" in config:
            copied = Path(folder, "ledger.jsonl")
            if Path(str(config["ledger"])).exists():
                shutil.copyfile(str(config["ledger"]), copied)
            opened = node._ledger({**config, "ledger": str(copied)}, key)
            assert opened is not None
            secure = opened.refuses_simulations
            ledger = SiteLedger(budget=opened.budget, require_secure=secure)
            ledger._store.records.extend(opened.records())
        else:
            node._ledger(config, key)
    return node.Site(
        name,
        node._load_file(config),
        policy=node.site_policy(config),
        site_key=key,
        roster=roster,
        ledger=ledger,
    )
