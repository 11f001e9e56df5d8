"""JSON Schema of saved files."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

Schema = dict[str, Any]

_ANY_VALUE: Schema = {
    "description": "A number, text, boolean, list or object; numbers that JSON cannot "
    "represent are {'float': 'inf'}, arrays are $defs/array.",
}

_DEFS: dict[str, Schema] = {
    "array": {
        "description": "A numpy array: its entries row by row, type and shape.",
        "type": "object",
        "properties": {
            "array": {"type": "array"},
            "dtype": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        },
        "required": ["array", "dtype", "shape"],
        "additionalProperties": False,
    },
    "number": {
        "description": "A number; one that JSON cannot represent is its text in "
        "Python.",
        "anyOf": [
            {"type": "number"},
            {
                "type": "object",
                "properties": {"float": {"enum": ["inf", "-inf", "nan"]}},
                "required": ["float"],
                "additionalProperties": False,
            },
            {"const": "inf"},
        ],
    },
    "privacy": {
        "description": "The fields of a PrivacyReport.",
        "type": "object",
        "properties": {
            "eps": {"$ref": "#/$defs/number"},
            "delta": {"type": "number", "minimum": 0},
            "mu": {"anyOf": [{"$ref": "#/$defs/number"}, {"type": "null"}]},
            "noise_multiplier": {"type": "number", "minimum": 0},
            "clip": {
                "type": "object",
                "additionalProperties": {"type": ["number", "null"]},
            },
            "unit": {"enum": ["client", "example"]},
            "adjacency": {"type": "string"},
            "trust": {"type": "string"},
            "secure": {"type": "boolean"},
            "accountant": {"type": "string"},
            "n_rounds": {"type": "integer", "minimum": 0},
            "n_clients": {"type": "integer", "minimum": 0},
            "assumptions": {"type": "array", "items": {"type": "string"}},
            "ledger_ids": {"type": "array", "items": {"type": "string"}},
            "seeded": {"type": "boolean"},
        },
        "required": ["eps", "delta", "unit", "adjacency", "trust", "secure"],
        "additionalProperties": False,
    },
    "calibrator": {
        "type": "object",
        "properties": {
            "estimator": {
                "description": "Name of the class in skfedcal.methods, or of one that "
                "is registered.",
                "type": "string",
                "pattern": "^[A-Za-z_][A-Za-z0-9_]*$",
            },
            "params": {
                "description": "Parameters of the constructor, except `ledger` and "
                "`runner`, which are local to a machine.",
                "type": "object",
                "additionalProperties": _ANY_VALUE,
            },
            "classes": {
                "description": "Labels, sorted: the order of output columns.",
                "$ref": "#/$defs/array",
            },
            "columns": {
                "description": "Input column of each of these labels.",
                "$ref": "#/$defs/array",
            },
            "fitted": {
                "description": "Fitted attributes; those of the map depend on the "
                "class, and on FedAutoCalibrator one is {'calibrator': ...}.",
                "type": "object",
                "properties": {
                    "n_clients_": {"type": "integer"},
                    "n_rounds_": {"type": "integer"},
                    "n_features_in_": {"type": "integer", "minimum": 1},
                    "improves_": {"type": "boolean"},
                    "feature_names_in_": {"$ref": "#/$defs/array"},
                    "calibrator_": {
                        "type": "object",
                        "properties": {"calibrator": {"$ref": "#/$defs/calibrator"}},
                        "required": ["calibrator"],
                        "additionalProperties": False,
                    },
                },
                "required": ["n_clients_", "n_rounds_", "n_features_in_", "improves_"],
                "additionalProperties": _ANY_VALUE,
            },
            "client_column": {
                "description": "Column of a data frame that named the clients in "
                "`fit`; predictions leave it out. Absent if there was none.",
                "type": "string",
            },
            "privacy": {"$ref": "#/$defs/privacy"},
        },
        "required": [
            "estimator",
            "params",
            "classes",
            "columns",
            "fitted",
            "privacy",
        ],
    },
}

_HEAD = {"format_version": {"const": 1}, "skfedcal": {"type": "string"}}
_REQUIRED = ["format", "format_version", "skfedcal"]
_COUNT: Schema = {"type": "integer", "minimum": 0}

_LEVEL: Schema = {
    "description": "Distribution of the noise at one depth of the histogram.",
    "type": "object",
    "properties": {
        "bits": {"type": "integer", "minimum": 0},
        "kind": {"enum": ["exact", "additive", "unary", "grr", "subset"]},
        "variance": {"type": "number", "minimum": 0},
        "p": {"type": "number"},
        "q": {"type": "number"},
        "n_reports": _COUNT,
        "domain": _COUNT,
    },
    "required": ["bits", "kind", "variance"],
    "additionalProperties": False,
}

_SCHEMAS: dict[str, Schema] = {
    "calibrator": {
        "title": "Fitted calibrator of skfedcal",
        "allOf": [{"$ref": "#/$defs/calibrator"}],
        "properties": {"format": {"const": "skfedcal-calibrator"}, **_HEAD},
        "required": _REQUIRED,
    },
    "histogram": {
        "title": "ScoreHistogram of skfedcal",
        "properties": {
            "format": {"const": "skfedcal-histogram"},
            **_HEAD,
            "height": _COUNT,
            "space": {"enum": ["both", "logit", "prob"]},
            "kind": {"enum": ["binary", "top"]},
            "classes": {"type": "array"},
            "weighting": {"enum": ["example", "client"]},
            "n_clients": _COUNT,
            "levels": {"type": "array", "items": _LEVEL},
            "totals": {
                "description": "Released counts of negatives and positives by depth.",
                "type": "array",
                "items": {
                    "type": "array",
                    "items": {"type": "array", "items": {"type": "number"}},
                },
            },
            "population": {"enum": ["clients", "rows"]},
            "max_examples": {"type": ["integer", "null"], "minimum": 1},
            "moments": {
                "description": "Sums over clients of products of two coarse counts.",
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "edges": {"type": "array", "items": _COUNT},
                        "products": {
                            "type": "array",
                            "items": {"type": "array", "items": {"type": "number"}},
                        },
                        "powers": {"type": "array", "items": {"type": "number"}},
                    },
                    "required": ["edges", "products", "powers"],
                    "additionalProperties": False,
                },
            },
            "privacy": {"$ref": "#/$defs/privacy"},
        },
        "required": [*_REQUIRED, "height", "kind", "levels", "totals", "privacy"],
        "additionalProperties": False,
    },
}


def json_schema(kind: str = "calibrator") -> Schema:
    """Return the JSON Schema (draft 2020-12) of a saved file.

    Parameters
    ----------
    kind : {'calibrator', 'histogram'}, default='calibrator'
        What ``save`` of a calibrator writes, or ``to_json`` of a `ScoreHistogram`.

    Returns
    -------
    schema : dict
        For any validator, or to read. `load` and ``from_json`` check more than it says:
        shapes, ranges, and that attributes fit each other. A change that older releases
        cannot read has another `format_version`.

    Examples
    --------
    >>> from skfedcal.export import json_schema
    >>> schema = json_schema("calibrator")
    >>> schema["properties"]["format_version"]
    {'const': 1}
    """
    if not isinstance(kind, str) or kind not in _SCHEMAS:
        raise ValueError(f"kind={kind!r} must be one of {', '.join(_SCHEMAS)}.")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        **deepcopy(_SCHEMAS[kind]),
        "$defs": deepcopy(_DEFS),
    }
