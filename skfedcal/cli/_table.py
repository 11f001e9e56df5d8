"""Plain text tables."""

from collections.abc import Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns, the first to the left and the others to the right.

    Examples
    --------
    >>> print(text_table(["method", "NLL"], [["FedTemp", "0.7"], ["FedBin", "0.81"]]))
    method    NLL
    -------  ----
    FedTemp   0.7
    FedBin   0.81
    """
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(_line(cells, widths) for cells in lines)


def text_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Return one line per pair of name and value."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    rest = [c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([first, *rest]).rstrip()
