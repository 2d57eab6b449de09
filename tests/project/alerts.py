"""The alerts on the page for operators, from `examples/vllm_alerts.yml`: ``python -m tests.project.alerts`` writes them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.project.monitoring import Alert, alerts
from tests.project.pages import ROOT

PAGE = ROOT / "specs" / "operating.md"
BEGIN, END = "<!-- alerts, written by make spec -->\n", "<!-- end of the alerts -->\n"
SEVERITIES = {"page": "Urgent", "ticket": "Ticket", "info": "Tuning"}
"""What each severity is called on the page."""


def told(alert: Alert) -> Iterator[str]:
    """One alert: a heading that its runbook link leads to, what it means, and what to do first. The file has the query."""
    when = "at once" if alert.after == "0m" else f"when it lasts {alert.after}"
    yield f"#### {alert.name}\n\n"
    yield f"*{SEVERITIES[alert.severity]}, {when}.* {alert.summary} **Do first:** {alert.action}\n\n"


def section() -> str:
    """All of them, as the page has them."""
    return "\n" + "".join(part for alert in alerts() for part in told(alert))


def renewed(page: str) -> str:
    """A page with its alerts as they should be."""
    before, rest = page.split(BEGIN)
    _, behind = rest.split(END)
    return f"{before}{BEGIN}{section()}{END}{behind}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
