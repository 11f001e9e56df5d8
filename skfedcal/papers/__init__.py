"""Tables and figures of the five papers: ``skfedcal reproduce``."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.papers.items import PaperItem, PaperResult, find_items, reproduce

__all__ = ["PaperItem", "PaperResult", "find_items", "reproduce"]

__getattr__, __dir__, _names = attach(
    __name__,
    {"items": ["PaperItem", "PaperResult", "find_items", "reproduce"]},
)
