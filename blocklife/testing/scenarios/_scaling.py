"""A scenario for an engine whose blocks have another size: each of its tokens becomes several equal ones.

Rules of this file:

* Which values are tokens is said by their kinds (`ValueKind.scaled`), and of settings by their names.
* Requests still sample one token a step. A case that counts steps of decoding cannot be told in other blocks: `UNSCALED`.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, fields

from blocklife.groups import Geometry
from blocklife.testing.scenarios._driver import EngineSetup, Unsupported
from blocklife.testing.scenarios._format import VERBS, Scenario, ScenarioStep
from blocklife.testing.scenarios._kinds import Value, scaled_name
from blocklife.testing.scenarios._words import EXPECTATIONS

_TOKENS = "_tokens"
"""What the name of a setting in tokens ends with."""


def factor_of(groups: str, block_tokens: int) -> int:
    """How many tokens of an engine with blocks of *block_tokens* stand for one token of a world with these groups.

    Raises `Unsupported` where no whole number does it.
    """
    sizes = set(Geometry.parse(groups).block_tokens)
    factor, rest = divmod(block_tokens, min(sizes))
    if rest or not factor:
        raise Unsupported(f"blocks always have {block_tokens} tokens here, and {groups} cannot be scaled to that")
    return factor


def scaled_settings(settings: Mapping[str, Value], factor: int) -> dict[str, Value]:
    """The settings of a world, with that many tokens for each of theirs."""
    groups = str(settings.get("groups", EngineSetup().groups))
    sizes = {key: value * factor for key, value in settings.items() if key.endswith(_TOKENS) and isinstance(value, int)}
    return {**settings, **sizes, "groups": _scaled_groups(groups, factor)}


def _scaled_groups(groups: str, factor: int) -> str:
    geometry = Geometry.parse(groups)
    larger = []
    for group in geometry.groups:
        sizes = [each.name for each in fields(type(group)) if each.name.endswith(_TOKENS)]
        larger.append(evolve(group, **{name: getattr(group, name) * factor for name in sizes}))
    return str(evolve(geometry, groups=tuple(larger)))


def scaled_scenario(scenario: Scenario, factor: int) -> Scenario:
    """The steps and expectations of a scenario in a world with that many tokens for each of its own."""
    return evolve(
        scenario,
        steps=tuple(_scaled_step(each, factor) for each in scenario.steps),
        end=_scaled_table(scenario.end, factor),
        end_policy=_scaled_table(scenario.end_policy, factor),
    )


def _scaled_step(step: ScenarioStep, factor: int) -> ScenarioStep:
    kinds = {each.name: each.kind for each in VERBS[step.verb].parameters}
    arguments = {name: kinds[name].scaled(value, factor) for name, value in step.arguments.items()}
    if isinstance(until := arguments.get("until"), Mapping):
        arguments["until"] = _scaled_table(until, factor)
    return evolve(
        step,
        arguments=arguments,
        remember={name: str(scaled_name(value, factor)) for name, value in step.remember.items()},
        expect=_scaled_table(step.expect, factor),
        policy=_scaled_table(step.policy, factor),
    )


def _scaled_table(table: Mapping[str, Value], factor: int) -> dict[str, Value]:
    return {key: EXPECTATIONS[key].kind.scaled(value, factor) for key, value in table.items()}
