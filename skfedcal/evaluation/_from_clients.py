"""Make a function of clients from an answer of a histogram."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from skfedcal.evaluation._histogram import ScoreHistogram
from skfedcal.evaluation._thresholds import check_threshold

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_HEADS = ("clients", "y", "client_ids", "privacy")
_SHARED = tuple(
    p
    for p in inspect.signature(ScoreHistogram.fit).parameters.values()
    if p.name not in (*_HEADS, "random_state")
)
_FIRST = inspect.signature(ScoreHistogram.fit).parameters


_RULE = "Parameters\n----------\n"


def _shared_text(skip: tuple[str, ...]) -> tuple[str, str]:
    """Texts of `ScoreHistogram.fit` on the first parameters and on the others."""
    doc = inspect.getdoc(ScoreHistogram.fit) or ""
    lines = doc.partition(_RULE)[2].partition("\nReturns\n")[0].splitlines()
    first: list[str] = []
    later: list[str] = []
    part = first
    for line in lines:
        if line and not line.startswith(" "):
            name = line.split(" : ")[0]
            part = first if name in _HEADS else [] if name in skip else later
        part.append(line)
    return "\n".join(first).strip(), "\n".join(later).strip()


def from_clients(
    *skip: str,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turn an answer of a histogram into a function of clients.

    The function has the parameters of `ScoreHistogram.fit`, but those in `skip`, and
    the keywords of the answer; `{shared}` in its docstring becomes their text.
    """

    def decorate(answer: Callable[..., Any]) -> Callable[..., Any]:
        own = list(inspect.signature(answer).parameters.values())[1:]
        names = {p.name for p in own}
        shared = [p for p in _SHARED if p.name not in (*skip, *names)]

        @wraps(answer)
        def function(
            clients: Any,
            y: Any = None,
            *,
            client_ids: Any = None,
            privacy: Any = None,
            random_state: Any = None,
            **options: Any,
        ) -> Any:
            known = {p.name for p in (*shared, *own)}
            unknown = sorted(set(options) - known)
            if unknown:
                raise TypeError(
                    f"{answer.__name__}() got an unexpected keyword argument "
                    f"{unknown[0]!r}"
                )
            asked = {k: v for k, v in options.items() if k in names}
            fit = {k: v for k, v in options.items() if k not in names}
            source = Source(clients, y, client_ids, privacy, random_state, fit)
            return answer(source, **asked)

        heads = [_FIRST[name] for name in _HEADS]
        tail = [_FIRST["random_state"]]
        keywords = [p.replace(kind=_KEYWORD) for p in own]
        function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*heads, *keywords, *shared, *tail]
        )
        if function.__doc__:
            first, later = _shared_text((*skip, *names))
            doc = inspect.cleandoc(function.__doc__).replace("{shared}", later)
            function.__doc__ = doc.replace(_RULE, f"{_RULE}{first}\n", 1)
        return function

    return decorate


class Source:
    """Clients and settings of one call."""

    def __init__(
        self,
        clients: Any,
        y: Any,
        client_ids: Any,
        privacy: Any,
        random_state: Any,
        fit: dict[str, Any],
    ) -> None:
        self.data = (clients, y)
        self.given = {
            "client_ids": client_ids,
            "privacy": privacy,
            "random_state": random_state,
        }
        self.fit = fit

    def histogram(self, **options: Any) -> ScoreHistogram:
        """Histogram of the clients."""
        settings = {**self.given, **self.fit, **options}
        return ScoreHistogram.fit(*self.data, **settings)

    def at(self, threshold: float) -> tuple[ScoreHistogram, float]:
        """Histogram for one threshold, and the threshold to ask it for.

        Two sides of the threshold are enough, unless buckets are asked for; they are
        exact also where many scores are equal, and leave the least noise.
        """
        buckets = ("height", "levels", "space")
        given = {k: self.fit[k] for k in buckets if k in self.fit}
        asked = any(
            not isinstance(value, str) or value != _FIRST[k].default  # maybe an array
            for k, value in given.items()
        )
        if asked or self.fit.get("kind", "binary") != "binary":
            return self.histogram(), threshold
        threshold = check_threshold(threshold)
        left_out = (*buckets, "kind")
        settings = {**self.given, **self.fit}
        rest = {k: v for k, v in settings.items() if k not in left_out}
        return ScoreHistogram._fit_at(threshold, *self.data, **rest), 0.5
