"""What files say of an engine: the worlds of its rig that have a name, and what is known of its releases."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from attrs import fields_dict

W = TypeVar("W")


def known(engine: str) -> Mapping[str, Any]:
    """The faults that the releases of an engine are known to have, and what planted bugs are known to show."""
    return tomllib.loads(Path(__file__).parents[1].joinpath(engine, "known.toml").read_text(encoding="utf-8"))


def read(
    path: Path, world: Callable[..., W], spec: type, parts: Mapping[str, Callable[[Any], object]]
) -> dict[str, dict[str, W]]:
    """Worlds by set and name. A key is one of a *world*, or of its *spec*; *like* names the one whose keys it has besides.

    *parts* make what is more than a value of the file, by its key.
    """
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    of_spec = fields_dict(spec)

    def made(given: Mapping[str, Any]) -> W:
        which, _, name = given.get("like", "").partition(".")
        whole = {**(told[which][name] if which else {}), **given}
        values = {key: parts[key](value) if key in parts else value for key, value in whole.items() if key != "like"}
        inner = {key: values.pop(key) for key in list(values) if key in of_spec}
        return world(spec=spec(**inner), **values)

    return {which: {name: made(given) for name, given in worlds.items()} for which, worlds in told.items()}
