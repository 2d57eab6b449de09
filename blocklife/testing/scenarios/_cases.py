"""Finds scenario files, those of the package and those of a user, and tells what each needs of a driver.

Rules of this file:

* The files in `cases/` are package data: a checkout and an installed wheel have the same ones, and there is no second copy.
* What a scenario needs is computed from its steps and the signatures of verbs as the file is read; no scenario is named here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from blocklife.errors import MisuseError
from blocklife.testing.scenarios._driver import Driver, EngineSetup
from blocklife.testing.scenarios._format import ALL_GROUPS, Scenario, read_scenario
from blocklife.testing.scenarios._kinds import Value, nearest
from blocklife.testing.scenarios._running import ScenarioVerdict, run_scenario
from blocklife.testing.scenarios._shipped import SHIPPED as SHIPPED
from blocklife.testing.scenarios._shipped import meant

_SIZES = ("blocks", "slots", "jobs", "seed")
"""Settings that every engine has."""


# --- files ------------------------------------------------------------------------------------------------------------------


def files_of(paths: Sequence[str]) -> list[Path]:
    """The given files, and all scenario files of the given folders; those of the package if nothing is given.

    A path that does not exist may be the name of a scenario of the package, such as ``A01``, ``vllm`` or ``vllm/V1``. Raises
    `MisuseError` if there is no scenario.
    """
    found: list[Path] = []
    for path in map(meant, paths or [str(SHIPPED)]):
        found += sorted(path.glob("*.toml")) if os.path.isdir(path) else [path]
    if not found:
        raise MisuseError(f"{', '.join(paths)}: no scenario there")
    return found


def chosen(paths: Sequence[str] = (), groups: Sequence[str] = ()) -> list[Scenario]:
    """The scenarios of these files, or of the package, that are in one of the groups; all where no group is given.

    A malformed file and an unknown group are refused, and groups that none of them is in.
    """
    for each in groups:
        if each not in ALL_GROUPS:
            raise MisuseError(f"--group {each}: there is no such group ({nearest(each, ALL_GROUPS, 'groups')})")
    scenarios = [each for each in map(read_scenario, files_of(paths)) if not groups or any(map(each.is_in, groups))]
    if not scenarios:
        raise MisuseError(f"--group {', '.join(groups)}: none of these scenarios is in it (name others, or leave it out)")
    return scenarios


def names_of_all(scenarios: Iterable[Scenario]) -> list[str]:
    """The names of the package's scenarios, those of its folders too, and of these."""
    return sorted({path.stem for path in SHIPPED.rglob("*.toml")} | {each.id for each in scenarios})


def planned(scenarios: Iterable[Scenario]) -> list[tuple[Scenario, dict[str, Value]]]:
    """Their runs: each variant of each."""
    return [(scenario, variant) for scenario in scenarios for variant in scenario.each_variant()]


def run_files(
    paths: Sequence[str] = (), driver: Callable[[], Driver] | None = None, *, log: bool = False
) -> Iterator[ScenarioVerdict]:
    """Run every variant of every file, or of the package's scenarios. A malformed file is refused before anything runs."""
    for scenario, variant in planned(chosen(paths)):
        yield run_scenario(scenario, driver, variant, log=log)


# --- what a scenario needs --------------------------------------------------------------------------------------------------


def worlds(scenario: Scenario) -> dict[str, tuple[Value, ...]]:
    """The settings that an engine may lack, with their values in all variants."""
    given = {**{key: (value,) for key, value in scenario.world.items()}, **scenario.variants}
    usual = {key: value for key, value in EngineSetup().words().items() if key not in _SIZES}
    return {key: tuple(given[key]) for key in usual if key in given and set(given[key]) != {usual[key]}}
