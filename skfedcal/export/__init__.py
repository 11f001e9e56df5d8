"""Fitted calibrators for other runtimes, and the schema of their files.

``to_torch``, ``to_onnx`` and ``save`` are methods of the calibrators.
"""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.export._schema import json_schema

__all__ = ["json_schema"]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_schema": ["json_schema"],
    },
)
