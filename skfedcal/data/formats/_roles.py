"""What the arrays and columns of a file are called, by role."""

from collections.abc import Mapping

# The first name present is used.
SCORE_NAMES = ("logits", "proba", "prob")
CLIENT_NAMES = ("client", "client_ids")

# What a caller may rename.
ROLES = ("logits", "proba", "labels", "client")


def check_roles(columns):
    """Return names by role; raises for unknown roles and for invalid names."""
    if columns is None:
        return {}
    if not isinstance(columns, Mapping):
        raise TypeError(
            f"columns must be a dict such as {{'labels': 'y'}}, got {columns!r}."
        )
    for role, name in columns.items():
        if role not in ROLES:
            raise ValueError(
                f"columns has the unknown role {role!r}; the roles are {ROLES}."
            )
        if not isinstance(name, str) or not name:
            raise ValueError(f"columns[{role!r}] must be a name, got {name!r}.")
    if "logits" in columns and "proba" in columns:
        raise ValueError("columns names both logits and proba; pass one of them.")
    return dict(columns)


def missing(path, what, name, found):
    """Error that lists the names that exist."""
    listed = sorted(map(str, found))
    shown = ", ".join(listed[:20]) + (", ..." if len(listed) > 20 else "")
    return ValueError(f"{path} has no {what} {name!r}; it has {shown or 'none'}.")
