"""Bugs planted in the real source: a line of a function changed, or a function that stands in the place of another."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import pytest


def without(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, lines: Mapping[str, str]) -> None:
    """Plant a bug: in the source of one function of *owner* (a class or a module) other text stands in place of some lines."""
    raw = inspect.getattr_static(owner, name)
    function: Callable[..., Any] = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
    source = textwrap.dedent(inspect.getsource(function))
    for line, instead in lines.items():
        assert source.count(line) == 1, f"{name} no longer has the text {line!r} once: plant this bug another way"
        source = source.replace(line, instead)
    module = inspect.getmodule(function)
    assert module is not None
    scope: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source, module.__dict__, scope)
    if inspect.ismodule(owner):
        planted(monkeypatch, function, scope[name])
    else:  # a static or class method keeps its decorator, which stands in its source
        monkeypatch.setattr(owner, name, scope[name])


def planted(monkeypatch: pytest.MonkeyPatch, right: Callable[..., Any], wrong: Callable[..., Any]) -> None:
    """Plant a bug: one function stands in place of another of a module, wherever that was imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("blocklife.") and vars(module).get(right.__name__) is right:
            monkeypatch.setattr(module, right.__name__, wrong)
