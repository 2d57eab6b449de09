"""The protocol of a driver: what it lacks says so, ours has all of it, and one is named by its class.

That another engine runs the suite by it is shown by the page `scenario-driver.md`, whose code runs, and by
`examples/your_engine` (`test_plugin`).
"""

from __future__ import annotations

import inspect

import pytest

from blocklife.errors import MisuseError
from blocklife.testing import Driver, EngineSetup, OurDriver, Unsupported
from blocklife.testing.scenarios._running import driver_named
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
