"""The public surface: names, call forms, members, annotations, command line."""

import importlib
import inspect
import pkgutil
import re

import frozen_adapt as adapt

import skfedcal

# Members that scikit-learn, dataclasses or enum bring along, other from version to
# version of those, are not ours to freeze.
_OURS = "skfedcal"


def public_modules():
    """The package and its public subpackages and modules, by name."""
    inner = [info.name for info in pkgutil.iter_modules(skfedcal.__path__)]
    names = [f"skfedcal.{name}" for name in inner if not name.startswith("_")]
    return {name: importlib.import_module(name) for name in ("skfedcal", *names)}


def _names(module):
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "") == module.__name__
    )


def _short(text):
    """Text without the modules where things are, which may move, or addresses."""
    text = re.sub(
        r"\b(?:skfedcal|numpy|collections|typing)(?:\.\w+)*\.(\w+)", r"\1", text
    )
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _default(value):
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__name__
    return _short(repr(value))


def call_form(value):
    """Parameters with kinds and defaults, without annotations."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    parts, keyword_only = [], False
    for parameter in signature.parameters.values():
        kind = parameter.kind
        text = parameter.name
        if kind is parameter.VAR_POSITIONAL:
            text, keyword_only = f"*{text}", True
        elif kind is parameter.VAR_KEYWORD:
            text = f"**{text}"
        elif kind is parameter.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        if parameter.default is not parameter.empty:
            text += f"={_default(parameter.default)}"
        parts.append(text)
        if kind is parameter.POSITIONAL_ONLY:
            parts.append("/")
    while parts.count("/") > 1:
        parts.remove("/")
    return f"({', '.join(parts)})"


def _annotated(value):
    try:
        return _short(str(inspect.signature(value)))
    except (TypeError, ValueError):
        return None


def _members(cls):
    """Public members that this package defines, with what they are."""
    for name in sorted(dir(cls)):
        if name.startswith("_") or re.fullmatch(r"set_\w+_request", name):
            continue  # the latter are made by scikit-learn
        for base in cls.__mro__:
            if name in vars(base):
                found = vars(base)[name]
                break
        else:
            continue
        if base.__module__.startswith(_OURS):
            yield name, found


def _unwrapped(found):
    return found.__func__ if isinstance(found, staticmethod | classmethod) else found


def _kind(found):
    if isinstance(found, classmethod):
        return "classmethod"
    if isinstance(found, staticmethod):
        return "staticmethod"
    if inspect.isfunction(found):
        return "method"
    # Slots of dataclasses, properties and cached ones are all read in the same way.
    if inspect.isdatadescriptor(found) or type(found).__name__ in (
        "cached_property",
        "_AvailableIfDescriptor",
    ):
        return "attribute"
    return "method" if callable(found) and not inspect.isclass(found) else "attribute"


def call_forms():
    """What can be written: ``{qualified name: call form or kind}``."""
    found = {}
    for prefix, module in public_modules().items():
        for name in _names(module):
            value = getattr(module, name)
            key = f"{prefix}.{name}"
            if inspect.ismodule(value):
                found[key] = "module"
            elif inspect.isclass(value):
                found[key] = f"class{call_form(value) or ''}"
                if issubclass(value, BaseException):
                    own = [c.__name__ for c in value.__mro__[1:-2]]
                    found[key] = f"exception: {', '.join(own)}"
                    continue
                for member, what in _members(value):
                    kind = _kind(what)
                    form = call_form(_unwrapped(what)) if kind != "attribute" else ""
                    found[f"{key}.{member}"] = f"{kind}{form or ''}"
            elif callable(value):
                found[key] = f"function{call_form(value)}"
            else:
                found[key] = type(value).__name__
    return found


def annotations():
    """Signatures with annotations, of what has any: ``{qualified name: text}``."""
    found = {}
    for prefix, module in public_modules().items():
        for name in _names(module):
            value = getattr(module, name)
            if not callable(value):
                continue
            texts = {"": _annotated(value)}
            if inspect.isclass(value) and not issubclass(value, BaseException):
                for member, what in _members(value):
                    if _kind(what) != "attribute":
                        texts[f".{member}"] = _annotated(_unwrapped(what))
            for member, text in texts.items():
                if text is not None and (":" in text or "->" in text):
                    found[f"{prefix}.{name}{member}"] = text
    return found


def command_line():
    """Commands with their options: ``{command: {option: what it takes}}``."""
    found = {}
    for name, parser in adapt.cli_parsers().items():
        options = {}
        for action in parser._actions:
            if type(action).__name__ == "_SubParsersAction":
                options["commands"] = sorted(action.choices)
                continue
            key = ", ".join(action.option_strings) or action.dest
            options[key] = {
                "takes": type(action).__name__.strip("_").removesuffix("Action"),
                "nargs": action.nargs,
                "default": _default(action.default),
                "required": action.required,
                "choices": None
                if action.choices is None
                else sorted(map(str, action.choices)),
            }
        found[f"skfedcal {name}".strip()] = options
    return found


def differences(found, recorded):
    """Lines that say what was added, removed and changed."""
    lines = [
        f"removed: {key} {recorded[key]}" for key in recorded.keys() - found.keys()
    ]
    lines += [f"added: {key} {found[key]}" for key in found.keys() - recorded.keys()]
    lines += [
        f"changed: {key}\n    was {recorded[key]}\n    is  {found[key]}"
        for key in found.keys() & recorded.keys()
        if found[key] != recorded[key]
    ]
    return sorted(lines)
