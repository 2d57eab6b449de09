# Written by `make spec`, from the table in __init__.py.

from blocklife.testing._fake_device import (FakeDevice as FakeDevice, FakeEvent as FakeEvent, FakeStream as FakeStream,
    StuckError as StuckError)
from blocklife.testing.exploring._explore import (Bounds as Bounds, Counterexample as Counterexample, Exploration as
    Exploration, Verdict as Verdict, explore as explore)
from blocklife.testing.exploring._model import (Broken as Broken, Kind as Kind, Model as Model, Property as Property)
from blocklife.testing.exploring._own_lifecycles import (Fired as Fired, LifecycleExploration as LifecycleExploration,
    explore_lifecycle as explore_lifecycle)
from blocklife.testing.exploring._story import (Story as Story, retell as retell, tell as tell)
from blocklife.testing.exploring._walk import (Walked as Walked, walk as walk)
from blocklife.testing.plugin._hooks import (MakeLedger as MakeLedger, MakeVisit as MakeVisit)
from blocklife.testing.scenarios._cases import (run_files as run_files)
from blocklife.testing.scenarios._driver import (Driver as Driver, EngineSetup as EngineSetup, EngineStep as EngineStep,
    LookedUp as LookedUp, Problem as Problem, RequestProgress as RequestProgress, SettledPlan as SettledPlan,
    Unsupported as Unsupported, forward_pass as forward_pass)
from blocklife.testing.scenarios._embedded_driver import (EmbeddedDriver as EmbeddedDriver, Scheduled as Scheduled)
from blocklife.testing.scenarios._format import (Scenario as Scenario, parse_scenario as parse_scenario)
from blocklife.testing.scenarios._our_driver import (OurDriver as OurDriver)
from blocklife.testing.scenarios._running import (Outcome as Outcome, ScenarioVerdict as ScenarioVerdict, run_scenario
    as run_scenario)
from blocklife.testing.tiers._memory import (MemoryStore as MemoryStore)
from blocklife.testing.tiers._suite import (StoreCheck as StoreCheck, StoreCheckVerdict as StoreCheckVerdict,
    assert_store as assert_store, check_address as check_address, check_store as check_store, store_checks as
    store_checks)
from blocklife.testing.worlds._device import (CopyOrder as CopyOrder, Device as Device, DeviceFault as DeviceFault,
    FrozenDevice as FrozenDevice, Landing as Landing, Orders as Orders, Pass as Pass)
from blocklife.testing.worlds._pinned import (pinned_world as pinned_world)
from blocklife.testing.worlds._world import (Action as Action, Faults as Faults, State as State, World as World,
    WorldSettings as WorldSettings)

__all__: list[str]
