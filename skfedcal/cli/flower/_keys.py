"""Keys of sites, and the roster of their public halves."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from skfedcal.federation import Roster, SiteKey

ROSTER = "roster.json"


def make_keys(
    sites: Sequence[str], rosters: Sequence[str], folder: str
) -> tuple[list[Path], Roster]:
    """Make a key for each site, and add the sites and other rosters to the roster.

    Parameters
    ----------
    sites : sequence of str
        Names of sites that get a key, in ``SITE.key``.
    rosters : sequence of str
        Files of rosters whose sites are taken in.
    folder : str
        Where keys and ``roster.json`` are.

    Returns
    -------
    paths : list of Path
        Files with keys.
    roster : Roster
        What the roster is now.

    Raises
    ------
    FileExistsError
        If a key exists.
    ValueError
        If two rosters have different keys for one site.
    """
    root = Path(folder)
    known: dict[str, bytes] = {}
    old = [root / ROSTER] if (root / ROSTER).exists() else []
    for path in [*old, *map(Path, rosters)]:
        for name, public in Roster.load(path).sites.items():
            if known.setdefault(name, public) != public:
                raise ValueError(
                    f"{path} has another key for site {name!r} than the roster. Ask "
                    "the site which one is its own."
                )
    paths = [root / f"{name}.key" for name in sites]
    for path, name in zip(paths, sites, strict=True):
        if path.exists() or name in known:
            raise FileExistsError(f"Site {name!r} has a key already ({path}).")
    if len(set(sites)) != len(sites):
        raise ValueError("A site is named twice.")
    keys = [SiteKey.generate(name) for name in sites]
    roster = Roster({**known, **{key.name: key.public for key in keys}})
    root.mkdir(parents=True, exist_ok=True)
    for path, key in zip(paths, keys, strict=True):
        key.save(path)
    roster.save(root / ROSTER)
    return paths, roster


def fingerprint(roster: Roster) -> str:
    """Short text that people can compare over the telephone.

    160 bits: who may add a site of his own could find two rosters with the same short
    text.
    """
    text = b"".join(
        len(name).to_bytes(4, "big") + name.encode() + public
        for name, public in sorted(roster.sites.items())
    )
    digest = sha256(b"skfedcal roster" + text).hexdigest()[:40]
    return " ".join(digest[i : i + 4] for i in range(0, 40, 4))
