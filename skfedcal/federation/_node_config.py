"""A site from its configuration.

The entries are in a TOML file of the site, or in ``flower-supernode --node-config``;
the site decides on them, and the server never sees them. Needs numpy only, and
`cryptography` for keys.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skfedcal.federation._policy import SitePolicy
from skfedcal.federation._reading import SiteRows
from skfedcal.federation._site import Site

if TYPE_CHECKING:
    from skfedcal.federation._roster import Roster, SiteKey
    from skfedcal.privacy._ledger import PrivacyLedger

Config = Mapping[str, Any]
Load = Callable[[Config], SiteRows]

# Names the file of the site where an engine passes no node config.
ENVIRONMENT = "SKFEDCAL_SITE_CONFIG"
# Keys that are no conditions of a policy. The last two are set by a simulation.
_OWN = ("site-config", "data-path", "client-id", "site-key", "roster", "ledger",
        "max-eps", "max-delta", "partition-id", "num-partitions")  # fmt: skip


def site_from_config(
    config: Config,
    *,
    load: Load | None = None,
    state: Mapping[str, Any] | None = None,
) -> Site:
    """Site as its node is configured.

    Parameters
    ----------
    config : mapping
        ``site-config``: TOML file with the other entries. ``client-id``: name of the
        site. ``data-path``: its file (see `SiteRows.load`). ``site-key``, ``roster``:
        files made by ``skfedcal flower keys``. ``ledger``: file that adds up what the
        site has answered, with ``max-eps`` and ``max-delta`` as its limits; beside it
        ``noise`` must be given. All others are conditions of `SitePolicy`.
    load : callable, default=None
        ``load(config)`` gives the rows, when a request needs them; None reads
        ``data-path``.
    state : mapping, default=None
        What an earlier message left behind.

    Returns
    -------
    Site

    Raises
    ------
    ValueError, OSError
        If an entry is missing or wrong.
    """
    config = whole_config(config)
    name = client_name(config)
    key, roster = _identity(config, name)
    if load is None:
        _check_file(config)
    return Site(
        name,
        # Loaded after a request is admitted and paid: whether that succeeds depends on
        # the file, and is for the site alone.
        partial(load or _load_file, config),
        policy=site_policy(config),
        site_key=key,
        roster=roster,
        ledger=_ledger(config),
        state=state,
    )


def whole_config(config: Config) -> Config:
    """Entries of the site's file and of its node; it is an error to give one twice."""
    path = config.get("site-config") or os.environ.get(ENVIRONMENT)
    if not path:
        return config
    try:
        entries = tomllib.loads(Path(str(path)).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    both = sorted(set(entries) & set(config))
    if both:
        raise ValueError(f"{both[0]} is in {path} and in the node config.")
    return {**entries, **config}


def client_name(config: Config) -> str:
    """Name of the site: the same in all runs."""
    if "client-id" in config:
        return str(config["client-id"])
    if "partition-id" in config:
        return f"client-{int(config['partition-id']):06d}"
    raise ValueError("The site has no client-id: pass a name in its configuration.")


def site_policy(config: Config) -> SitePolicy:
    """Conditions of the site; a key that is no condition is an error."""
    return SitePolicy.from_config({k: v for k, v in config.items() if k not in _OWN})


def _check_file(config: Config) -> None:
    """Refuse a site without a file; what is in it is looked at later."""
    if "data-path" not in config:
        raise ValueError("The site has no data-path: pass its file.")
    if not Path(str(config["data-path"])).is_file():
        raise FileNotFoundError(f"data-path={config['data-path']!r} is not a file.")


def _load_file(config: Config) -> SiteRows:
    return SiteRows.load(str(config["data-path"]))


def _identity(config: Config, name: str) -> tuple[SiteKey | None, Roster | None]:
    if "site-key" not in config and "roster" not in config:
        return None, None
    from skfedcal.federation._roster import Roster, SiteKey

    if "site-key" not in config:
        raise ValueError("roster needs site-key: the others accept signed keys only.")
    key = SiteKey.load(str(config["site-key"]))
    if "roster" not in config:
        return key, None
    roster = Roster.load(str(config["roster"]))
    if roster.sites.get(name) != key.public:
        raise ValueError(f"The roster has no site {name!r}, or another key for it.")
    return key, roster


def _ledger(config: Config) -> PrivacyLedger | None:
    limits = [name for name in ("max-eps", "max-delta") if name in config]
    if "ledger" not in config:
        if limits:
            raise ValueError(f"{limits[0]} needs ledger: the file that adds it up.")
        return None
    from skfedcal.privacy._site_ledger import SiteLedger

    if len(limits) != 2:
        raise ValueError("ledger needs max-eps and max-delta: the budget of the site.")
    if "noise" not in config:
        # Who sets a budget may think that it bounds everything.
        raise ValueError(
            "ledger needs noise: exact sums have no eps, and are not in the ledger. "
            "noise='central' (or 'shared', 'own') refuses them; noise='none' answers "
            "them beside the budget."
        )
    budget = float(config["max-eps"]), float(config["max-delta"])
    # Noise that the server draws from a seed is booked as a simulation, and paid.
    return SiteLedger(str(config["ledger"]), budget=budget, require_secure=False)
