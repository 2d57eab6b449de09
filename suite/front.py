"""Scenarios for the KV-cache blocks of any engine: the interface of a driver, and what runs them. See specs/suite.md.

Written in a checkout as the names of `blocklife.testing`; the distribution has the same files under its own name.
"""

from blocklife.errors import CapacityError, MisuseError
from blocklife.testing.scenarios._cases import run_files
from blocklife.testing.scenarios._driver import (
    Driver,
    EngineSetup,
    EngineStep,
    LookedUp,
    Problem,
    RequestProgress,
    SettledPlan,
    Unsupported,
    forward_pass,
)
from blocklife.testing.scenarios._format import Scenario, parse_scenario
from blocklife.testing.scenarios._running import Outcome, ScenarioVerdict, run_scenario
from blocklife.testing.worlds._device import CopyOrder, Device, DeviceFault, Landing, Orders, Pass

__all__ = [
    "CapacityError",
    "CopyOrder",
    "Device",
    "DeviceFault",
    "Driver",
    "EngineSetup",
    "EngineStep",
    "Landing",
    "LookedUp",
    "MisuseError",
    "Orders",
    "Outcome",
    "Pass",
    "Problem",
    "RequestProgress",
    "Scenario",
    "ScenarioVerdict",
    "SettledPlan",
    "Unsupported",
    "forward_pass",
    "parse_scenario",
    "run_files",
    "run_scenario",
]
