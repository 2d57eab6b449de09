"""The protocol of a driver: what it lacks says so, ours has all of it, one is named by its class, and every case can fail.

That another engine runs the suite by it is shown by the page `scenario-driver.md`, whose code runs, and by
`examples/your_engine` (`test_plugin`). Here every scenario meets an engine with a bug.
"""

from __future__ import annotations

import inspect

import pytest

from blocklife.errors import MisuseError
from blocklife.testing.scenarios._cases import SHIPPED
from blocklife.testing.scenarios._driver import Driver, EngineSetup, Unsupported
from blocklife.testing.scenarios._format import SAFETY
from blocklife.testing.scenarios._our_driver import OurDriver
from blocklife.testing.scenarios._running import WRONG, Outcome, driver_named, read_scenario, run_scenario
from tests import wrong_engines as wrong


def test_every_method_of_a_driver_says_what_is_missing() -> None:
    """Nothing is silently left out."""
    methods = [name for name, each in vars(Driver).items() if inspect.isfunction(each) and not name.startswith("_")]

    for name in methods:
        parameters = inspect.signature(getattr(Driver, name)).parameters.values()
        needed = [each for each in parameters if each.default is inspect.Parameter.empty and each.name != "self"]
        positional = [None for each in needed if each.kind is each.POSITIONAL_OR_KEYWORD]
        named = {each.name: None for each in needed if each.kind is each.KEYWORD_ONLY}
        with pytest.raises(Unsupported, match=f"Driver has no {name}"):
            getattr(Driver(), name)(*positional, **named)
    assert len(methods) > 50


def test_our_driver_has_everything() -> None:
    """Each method is there, with the parameters of the protocol; or says why not."""
    for name, each in vars(Driver).items():
        if inspect.isfunction(each) and not name.startswith("_"):
            own = getattr(OurDriver, name)

            assert (own is not each) is (name not in ("swap", "split", "publish", "attach")), name
            assert list(inspect.signature(own).parameters) == list(inspect.signature(each).parameters), name


def test_fill_host_refuses_a_host_that_is_not_empty() -> None:
    """It is a scene for the beginning."""
    driver = OurDriver()
    driver.start(EngineSetup())
    driver.fill_host()
    with pytest.raises(MisuseError, match="slot 0: it is READY"):
        driver.fill_host()


# --- naming one -------------------------------------------------------------------------------------------------------------


def test_driver_is_named_by_module_and_class() -> None:
    """What the command line gets."""
    assert driver_named("tests.wrong_engines:Idle") is wrong.Idle


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests.wrong_engines", "--driver tests.wrong_engines: write module:Class"),
        (":Idle", "--driver :Idle: write module:Class"),
        ("tests.none:Idle", "cannot be imported (ModuleNotFoundError: No module named 'tests.none')"),
        ("tests.wrong_engines:None_", "cannot be imported (AttributeError"),
        ("tests.wrong_engines:__name__", "__name__ is not a class"),
        ("blocklife.testing.worlds._device:CopyOrder", "CopyOrder is not a driver"),
    ],
)
def test_driver_that_cannot_be_is_refused(name: str, said: str) -> None:
    """In one line, with the reason."""
    with pytest.raises(MisuseError) as raised:
        driver_named(name)

    assert said in str(raised.value)


# --- every case can fail ----------------------------------------------------------------------------------------------------


CAN_FAIL: dict[str, type[OurDriver]] = {
    **dict.fromkeys(("A01", "A02", "A39", "A54", "S2b", "S4c", "S5"), wrong.Forgetful),
    **dict.fromkeys(("A08", "A45", "S1", "S4"), wrong.Idle),
    **dict.fromkeys(("A30", "A32", "A33", "A50"), wrong.Gullible),
    **dict.fromkeys(("A16", "A28", "S2"), wrong.Hasty),
    **dict.fromkeys(("A03", "A04", "A17", "A25", "A27"), wrong.Careless),
    **dict.fromkeys(("A13", "A21", "A40", "A48", "A55", "S4b"), wrong.Stubborn),
    **dict.fromkeys(("A07", "A18", "A20", "A23", "A37", "A52"), wrong.Yielding),
    **dict.fromkeys(("A05", "A36"), wrong.Rash),
    **dict.fromkeys(("A35", "S3", "S3b"), wrong.Certain),
    "A11": wrong.OneEvent,
    "A14": wrong.Upset,
    "B01": wrong.Believing,
    "B02": wrong.Clinging,
    **dict.fromkeys(("B03", "B04"), wrong.Unproven),
    "B05": wrong.Gullible,
    "B06": wrong.Uniform,
    "B07": wrong.Unaligned,
    "B08": wrong.Deepest,
    **dict.fromkeys(("B09", "B10"), wrong.Deaf),
    "B11": wrong.Stubborn,
    "B12": wrong.Forgetful,
    "B13": wrong.Advertising,
    "B14": wrong.Thrifty,
    "B15": wrong.Hasty,
    "B16": wrong.Greedy,
    "B17": wrong.Certain,
    "B18": wrong.Forgetful,
    "B19": wrong.Gullible,
    "B20": wrong.Lingering,
    "B21": wrong.Tailless,
    "B22": wrong.Believing,
}
"""A wrong engine for each case."""


@pytest.mark.parametrize("name", sorted(CAN_FAIL))
def test_every_case_fails_for_some_wrong_engine(name: str) -> None:
    """None of them says nothing: a wrong engine does not hold; where safety is tested, it is unsafe, or raises."""
    scenario = read_scenario(SHIPPED / f"{name}.toml")
    verdicts = (run_scenario(scenario, CAN_FAIL[name], variant) for variant in scenario.each_variant())
    seen = WRONG - ({Outcome.OTHER_POLICY} if scenario.tests == SAFETY else set())
    failed = next((each for each in verdicts if each.outcome in seen), None)
    print(failed)

    assert failed is not None


def test_every_case_that_runs_can_fail() -> None:
    """The table leaves out only what our engine cannot do."""
    assert {path.stem for path in SHIPPED.glob("*.toml")} - set(CAN_FAIL) == {"A10", "A41", "A42", "A47"}
