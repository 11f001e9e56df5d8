"""Plain text tables."""

from collections.abc import Sequence


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], n_left: int = 1
) -> str:
    """Return aligned columns, the first `n_left` to the left, others to the right.

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
    return "\n".join(_line(cells, widths, n_left) for cells in lines)


def text_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Return one line per pair of name and value."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def _line(cells: Sequence[str], widths: Sequence[int], n_left: int) -> str:
    placed = [
        cell.ljust(width) if i < n_left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(placed).rstrip()
