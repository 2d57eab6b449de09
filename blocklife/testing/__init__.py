"""Test tools, for engines that embed blocklife and for blocklife itself: exploration, scenarios, mutants, fake devices."""

from typing import TYPE_CHECKING

from blocklife._doors import door

if TYPE_CHECKING:
    from blocklife.testing._fake_device import FakeDevice, FakeEvent, FakeStream, StuckError
    from blocklife.testing.exploring._explore import (
        Bounds,
        Broken,
        Counterexample,
        Exploration,
        Kind,
        Model,
        Property,
        Verdict,
        explore,
    )
    from blocklife.testing.exploring._story import Story, retell, tell
    from blocklife.testing.exploring._walk import Walked, walk
    from blocklife.testing.plugin._hooks import MakeLedger, MakeVisit
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
    from blocklife.testing.scenarios._our_driver import OurDriver
    from blocklife.testing.scenarios._running import Outcome, ScenarioVerdict, run_scenario
    from blocklife.testing.stores._memory import MemoryStore
    from blocklife.testing.stores._suite import (
        StoreCheck,
        StoreCheckVerdict,
        assert_store,
        check_address,
        check_store,
        store_checks,
    )
    from blocklife.testing.worlds._device import CopyOrder, Device, DeviceFault, FrozenDevice, Landing, Orders, Pass
    from blocklife.testing.worlds._pinned import pinned_world
    from blocklife.testing.worlds._world import Action, Faults, State, World, WorldSettings

__all__ = [
    "Action",
    "Bounds",
    "Broken",
    "CopyOrder",
    "Counterexample",
    "Device",
    "DeviceFault",
    "Driver",
    "EngineSetup",
    "EngineStep",
    "Exploration",
    "FakeDevice",
    "FakeEvent",
    "FakeStream",
    "Faults",
    "FrozenDevice",
    "Kind",
    "Landing",
    "LookedUp",
    "MakeLedger",
    "MakeVisit",
    "MemoryStore",
    "Model",
    "Orders",
    "OurDriver",
    "Outcome",
    "Pass",
    "Problem",
    "Property",
    "RequestProgress",
    "Scenario",
    "ScenarioVerdict",
    "SettledPlan",
    "State",
    "StoreCheck",
    "StoreCheckVerdict",
    "Story",
    "StuckError",
    "Unsupported",
    "Verdict",
    "Walked",
    "World",
    "WorldSettings",
    "assert_store",
    "check_address",
    "check_store",
    "explore",
    "forward_pass",
    "parse_scenario",
    "pinned_world",
    "retell",
    "run_files",
    "run_scenario",
    "store_checks",
    "tell",
    "walk",
]

if not TYPE_CHECKING:  # type checkers see only the imports above
    __getattr__, __dir__ = door(
        __name__,
        {
            "_fake_device": "FakeDevice FakeEvent FakeStream StuckError",
            "exploring._explore": "Bounds Broken Counterexample Exploration Kind Model Property Verdict explore",
            "exploring._story": "Story retell tell",
            "exploring._walk": "Walked walk",
            "plugin._hooks": "MakeLedger MakeVisit",
            "scenarios._cases": "run_files",
            "scenarios._driver": "Driver EngineSetup EngineStep LookedUp Problem RequestProgress SettledPlan Unsupported "
            "forward_pass",
            "scenarios._format": "Scenario parse_scenario",
            "scenarios._our_driver": "OurDriver",
            "scenarios._running": "Outcome ScenarioVerdict run_scenario",
            "stores._memory": "MemoryStore",
            "stores._suite": "StoreCheck StoreCheckVerdict assert_store check_address check_store store_checks",
            "worlds._device": "CopyOrder Device DeviceFault FrozenDevice Landing Orders Pass",
            "worlds._pinned": "pinned_world",
            "worlds._world": "Action Faults State World WorldSettings",
        },
    )
