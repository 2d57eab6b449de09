"""Reports of a run of scenarios for others to read: JUnit's XML for a build server, and a badge.

Rules of this file:

* A scenario is one case, whatever the number of its variants: it fails if one of them does, and is skipped if none could run.
* That an engine decides otherwise is no failure: such a case is skipped, with what was expected.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape

from attrs import frozen

from blocklife.testing.scenarios._format import SAFETY
from blocklife.testing.scenarios._running import WRONG, Outcome, ScenarioVerdict
from blocklife.testing.scenarios._telling import by_scenario, ending

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WIDTH = 6.4
"""Pixels of an average letter of the badge."""


@frozen
class JUnitRun:
    """What a report needs besides the verdicts."""

    started: datetime
    seconds: Mapping[str, float]
    """By scenario."""
    outdated: Mapping[str, str]
    """What the list of known failures says wrongly, by scenario."""


def junit(verdicts: Sequence[ScenarioVerdict], run: JUnitRun) -> str:
    """The runs as one test suite of JUnit's XML, with one case for each scenario."""
    cases = [_case(name, among, run) for name, among in by_scenario(verdicts).items()]
    count = {kind: sum(case.find(kind) is not None for case in cases) for kind in ("failure", "error", "skipped")}
    suite = ET.Element(
        "testsuite",
        name=engine_of(verdicts),
        tests=str(len(cases)),
        failures=str(count["failure"]),
        errors=str(count["error"]),
        skipped=str(count["skipped"]),
        time=f"{sum(run.seconds.values()):.3f}",
        timestamp=run.started.strftime("%Y-%m-%dT%H:%M:%S"),
        hostname="localhost",
    )
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(name: str, verdicts: Sequence[ScenarioVerdict], run: JUnitRun) -> ET.Element:
    case = ET.Element(
        "testcase", classname=f"scenarios.{verdicts[0].tests}", name=f"{name}: {_xml(verdicts[0].title)}",
        time=f"{run.seconds.get(name, 0.0):.3f}",
    )  # fmt: skip
    end, expected = ending(verdicts), [each for each in verdicts if each.expected]
    failed = [each for each in verdicts if not each.expected and each.outcome in WRONG - {Outcome.OTHER_POLICY}]
    if failed:
        kind = "failure" if any(each.outcome is Outcome.UNSAFE for each in failed) else "error"
        _add(case, kind, failed[0].message, "\n\n".join(map(_steps, failed)), type=failed[0].outcome.name.lower())
    elif name in run.outdated:
        _add(case, "failure", run.outdated[name], "\n".join(map(str, verdicts)), type="outdated")
    elif not expected and end is Outcome.OTHER_POLICY:
        differs = next(each for each in verdicts if each.outcome is Outcome.OTHER_POLICY)
        _add(case, "skipped", f"another policy: {differs.message}")
    elif end is Outcome.NOT_APPLICABLE:
        _add(case, "skipped", "; ".join(dict.fromkeys(each.reason for each in verdicts)))
    ET.SubElement(case, "system-out").text = _xml("\n".join(map(str, verdicts)))
    return case


def _add(case: ET.Element, kind: str, message: str, text: str = "", **others: str) -> None:
    ET.SubElement(case, kind, {"message": _xml(message), **others}).text = _xml(text) or None


def _steps(verdict: ScenarioVerdict) -> str:
    return "\n".join([str(verdict), *verdict.log])


def _xml(text: str) -> str:
    """Text without the characters that XML cannot have."""
    return _NOT_XML.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def engine_of(verdicts: Sequence[ScenarioVerdict]) -> str:
    """The engine and its release, as the driver names them."""
    return next((f"{each.engine} {each.release}".strip() for each in verdicts if each.engine), "an engine without a name")


def badge(verdicts: Sequence[ScenarioVerdict]) -> str:
    """A small SVG: how many scenarios about safety hold, and of which engine and release."""
    kind = f"{SAFETY} scenarios" if any(each.tests == SAFETY for each in verdicts) else "scenarios"
    counted = [each for each in verdicts if kind == "scenarios" or each.tests == SAFETY]
    endings = [ending(among) for among in by_scenario(counted).values()]
    held = sum(each is Outcome.HELD for each in endings)
    bad = any(each in WRONG - {Outcome.OTHER_POLICY} for each in endings)
    left, right = f"{held} of {len(endings)} {kind} hold", engine_of(verdicts)
    one, two = (round(len(text) * _WIDTH) + 14 for text in (left, right))
    title = escape(f"{left} · {right}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{one + two}" height="20" role="img" aria-label="{title}">'
        f'<title>{title}</title><rect width="{one}" height="20" fill="{"firebrick" if bad else "seagreen"}"/>'
        f'<rect x="{one}" width="{two}" height="20" fill="dimgray"/>'
        '<g fill="white" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{one / 2:g}" y="14">{escape(left)}</text>'
        f'<text x="{one + two / 2:g}" y="14">{escape(right)}</text></g></svg>\n'
    )
