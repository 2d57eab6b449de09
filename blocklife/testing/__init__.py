"""Test tools, for engines that embed blocklife and for blocklife itself: exploration, scenarios, mutants, fake devices."""

from blocklife._doors import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "_fake_device": "FakeDevice FakeEvent FakeStream StuckError",
        "exploring._explore": "Bounds Counterexample Exploration Verdict explore",
        "exploring._model": "Broken Kind Model Property",
        "exploring._own_lifecycles": "Fired LifecycleExploration explore_lifecycle",
        "exploring._story": "Story retell tell",
        "exploring._walk": "Walked walk",
        "plugin._hooks": "MakeLedger MakeVisit",
        "scenarios._cases": "run_files",
        "scenarios._driver": "Driver EngineSetup EngineStep LookedUp Problem RequestProgress SettledPlan Unsupported "
        "forward_pass",
        "scenarios._embedded_driver": "EmbeddedDriver Scheduled",
        "scenarios._format": "Scenario parse_scenario",
        "scenarios._our_driver": "OurDriver",
        "scenarios._running": "Outcome ScenarioVerdict run_scenario",
        "tiers._memory": "MemoryStore",
        "tiers._suite": "StoreCheck StoreCheckVerdict assert_store check_address check_store store_checks",
        "worlds._device": "CopyOrder Device DeviceFault FrozenDevice Landing Orders Pass",
        "worlds._pinned": "pinned_world",
        "worlds._world": "Action Faults State World WorldSettings",
    },
)
