"""Docstring entries that several classes or functions share, written once.

In a section Parameters or Attributes a line of names only, such as ``eps, delta``,
stands for their entries in a table. The decorator inserts them when a module is
imported, so that `help`, Sphinx and notebooks show the whole text.
"""

import re
from inspect import cleandoc
from types import FunctionType
from typing import TypeVar

Documented = TypeVar("Documented")

_SECTIONS = ("Parameters\n-", "Attributes\n-")
_NAMES_ONLY = re.compile(r"^[\w*]+(?:, [\w*]+)*$(?!\n )", re.MULTILINE)


class SharedDocs:
    r"""Decorator that replaces lines of names by the entries of a table.

    Parameters
    ----------
    text : str
        Entries as in a docstring.
    base : SharedDocs, default=None
        Table whose entries are used for names that are not in `text`.

    Examples
    --------
    >>> shared = SharedDocs('''
    ...     eps : float
    ...         Privacy budget.
    ...     ''')
    >>> text = shared.complete("Parameters\n----------\neps")
    >>> print(text.split("-\n")[1])
    eps : float
        Privacy budget.
    """

    def __init__(self, text: str, base: "SharedDocs | None" = None) -> None:
        self.entries: dict[str, str] = dict(base.entries) if base else {}
        for entry in re.split(r"\n(?=\S)", cleandoc(text)):
            # One entry for two names stands at the first of them.
            first, *others = entry.partition(" : ")[0].split(", ")
            self.entries |= {first: entry, **dict.fromkeys(others, "")}

    def __call__(self, thing: Documented) -> Documented:
        """Complete the docstring of a function, or of a class and its methods."""
        things = [thing, *vars(thing).values()] if isinstance(thing, type) else [thing]
        for each in things:
            own = getattr(each, "__func__", each)  # of a class method
            if isinstance(own, (type, FunctionType)) and own.__doc__:
                own.__doc__ = self.complete(own.__doc__)
        return thing

    def complete(self, text: str) -> str:
        """Docstring with the entries of the table; other names stay as they are."""
        return "\n\n".join(
            _NAMES_ONLY.sub(self._entries_of, part)
            if part.startswith(_SECTIONS)
            else part
            for part in cleandoc(text).split("\n\n")
        )

    def _entries_of(self, line: re.Match[str]) -> str:
        names = line[0].split(", ")
        if not all(name in self.entries for name in names):
            return line[0]
        return "\n".join(filter(None, map(self.entries.__getitem__, names)))


# Entries of estimators.
documented = SharedDocs(
    """
    eps : float, default=None
        Privacy budget epsilon for a whole client (client-level differential privacy).
        None adds no noise.
    delta : float, default=None
        Delta of (eps, delta) differential privacy; None is ``min(1e-5, 1 / (10 K))``
        for K clients.
    privacy : CentralDP, DistributedDP or SecureAggregation, default=None
        Privacy model to use instead of `eps` and `delta`.
    ledger : PrivacyLedger, default=None
        Ledger that is charged before any client is contacted.
    if_improves : bool, default=True
        With `eps`, return the input unchanged if the released values cannot be
        distinguished from noise (`improves_`).
    hold_back : bool, default=False
        Without `eps`, fit to four fifths of each client's rows first, compare the map
        with the input on the others, and return the input if log loss or Brier score
        is worse there (`improves_`); otherwise fit to all rows. False fits to all rows
        at once, and warns if the map is worse than the input, see the user guide.
    classes : array-like of shape (n_classes,), default=None
        Labels of the logit columns, in column order. None uses the column names if they
        are the labels, otherwise the sorted labels of y.
    input_type : {'logits', 'log_proba', 'proba'}, default='logits'
        Type of the scores in X; it is never inferred from the data.
    runner : FederatedRunner, default=None
        Rounds, cohorts, engine and checkpoint.
    random_state : int, RandomState instance or None, default=None
        None draws noise and cohorts from the operating system. A seed makes the fit
        reproducible, and a simulation without a privacy guarantee.
    y : array-like of shape (n_samples,), or list of these, default=None
        Labels; omitted when `X` is a list of pairs.
    client_ids : array-like of shape (n_samples,), default=None
        Client that owns each row. None makes all rows one client. With a list of
        clients: one name per client.
    improves_ : bool
        With `eps`, whether the released values can be distinguished from noise; without
        it False if `hold_back` found harm.
    comparison_ : dict or None
        Mean log loss and Brier score of input and map, and the rows that they are of,
        where they were compared without `eps`.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; the order of the columns of `predict_proba`.
    n_clients_, n_rounds_ : int
        Clients seen and rounds run.
    privacy_ : PrivacyReport
        The guarantee of this fit.
    history_ : list of RoundRecord
        Privacy cost of each round and the values that the server received.
    """
)
