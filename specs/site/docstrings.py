"""What the reference makes of our docstrings and of attrs classes.

Rules of this file:

* It reads source, as griffe does; nothing of the package is imported.
* No text is written here. A docstring gets the line breaks that its form implies, and a class of attrs the parameters that its
  fields imply.
"""

from __future__ import annotations

import ast
import re

import griffe

_LABEL = re.compile(r"(?m)^(?=(?:Edges|Needs|Refuses|Raises|Returns|Holds|Next|Rules|Theory|Order)\b[^\n]{0,40}?[:.])")
_INIT = "__init__"
_ATTRS = {"attrs.define", "attrs.frozen", "attrs.mutable", "attr.s"}
_FIELDS = {"attrs.field", "attr.ib"}
_KNOB = "blocklife.knobs.knob"
"""A field that is declared with its default and its sentence, in this order."""


def as_markdown(text: str) -> str:
    """A docstring whose labelled lines are paragraphs, and whose set-off code is announced by one colon."""
    return re.sub(r"(?m)::$", ":", _LABEL.sub("\n", text))


class Docstrings(griffe.Extension):
    """Docstrings as Markdown, and constructors of attrs classes."""

    def on_instance(self, *, obj: griffe.Object, **_given: object) -> None:
        """Called for everything that has a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_given: object) -> None:
        """Called when a class has its members: one of attrs gets its constructor, and what only repeats it goes."""
        _leave_out_what_repeats(cls)
        for method in cls.functions.values():
            for parameter in method.parameters:
                if str(parameter.default).startswith("_"):  # what nobody outside can name
                    parameter.default = "..."
        made = next((each for each in cls.decorators if each.callable_path in _ATTRS), None)
        if made is None or _INIT in cls.members:
            return
        is_keyword = any(
            isinstance(each, griffe.ExprKeyword) and each.name == "kw_only" and str(each.value) == "True"
            for each in getattr(made.value, "arguments", ())
        )
        kind = griffe.ParameterKind.keyword_only if is_keyword else griffe.ParameterKind.positional_or_keyword
        found = [parameter for each in cls.attributes.values() if (parameter := _parameter(each, kind)) is not None]
        for attribute in cls.attributes.values():
            _take_sentence(attribute)
        init = griffe.Function(_INIT, parameters=griffe.Parameters(griffe.Parameter("self"), *found), parent=cls)
        cls.set_member(_INIT, init)
        taken = {each.name for each in found}
        for name, attribute in list(cls.attributes.items()):
            if attribute.docstring is None and name in taken:
                cls.del_member(name)
            elif isinstance(attribute.value, griffe.ExprCall):
                attribute.value = None


def _take_sentence(attribute: griffe.Attribute) -> None:
    """The sentence of a knob stands before its docstring."""
    value = attribute.value
    if isinstance(value, griffe.ExprCall) and value.canonical_path == _KNOB:
        says = ast.literal_eval(str(value.arguments[1]))
        more = "" if attribute.docstring is None else f"\n\n{attribute.docstring.value}"
        attribute.docstring = griffe.Docstring(f"{says[:1].upper()}{says[1:]}.{more}", parent=attribute)


def _leave_out_what_repeats(cls: griffe.Class) -> None:
    """An attribute that a constructor sets is told without how; one that has no docstring and is a parameter, not at all."""
    init = cls.members.get(_INIT)
    taken = {each.name for each in init.parameters} if isinstance(init, griffe.Function) else set()
    for name, attribute in list(cls.attributes.items()):
        if "instance-attribute" not in attribute.labels or "class-attribute" in attribute.labels:
            continue
        if attribute.docstring is None and name in taken:
            cls.del_member(name)
        else:
            attribute.value = None


def _parameter(attribute: griffe.Attribute, kind: griffe.ParameterKind) -> griffe.Parameter | None:
    """How the constructor takes a field; None for what is none, or is not taken."""
    if attribute.annotation is None or "ClassVar" in str(attribute.annotation):
        return None
    value = attribute.value
    default = None if value is None else str(value)
    if isinstance(value, griffe.ExprCall) and value.canonical_path in _FIELDS:
        told = {each.name: each.value for each in value.arguments if isinstance(each, griffe.ExprKeyword)}
        if str(told.get("init")) == "False":
            return None
        given = told.get("default")
        default = f"{told['factory']}()" if "factory" in told else None if given is None else str(given)
        if str(told.get("kw_only")) == "True":
            kind = griffe.ParameterKind.keyword_only
    elif isinstance(value, griffe.ExprCall) and value.canonical_path == _KNOB:
        default = str(value.arguments[0])
    if default is not None and len(default) > 40:
        default = "..."
    return griffe.Parameter(attribute.name.lstrip("_"), annotation=attribute.annotation, kind=kind, default=default)
