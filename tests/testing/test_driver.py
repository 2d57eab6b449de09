"""The protocol of a driver: what it lacks says so, ours has all of it, and one is named by its class.

That another engine runs the suite by it is shown by the page `scenario-driver.md`, whose code runs, and by
`examples/your_engine` (`test_plugin`).
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Result
from blocklife.offload import OffloadScheduler
from blocklife.testing import Driver, EmbeddedDriver, EngineSetup, OurDriver, Outcome, ScenarioVerdict, Unsupported, run_files
from blocklife.testing.scenarios._running import driver_named
from blocklife.testing.scenarios._telling import summary
from tests import wrong_engines as wrong
from tests.project.test_examples import promised


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


# --- an engine on our scheduler ----------------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def mini(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[EmbeddedDriver]]:
    """The driver of the example's engine."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module("embedded_driver").MiniDriver
    for name in ("embedded_driver", "embed_in_an_engine"):
        del sys.modules[name]


def test_embedded_engine_holds_what_the_page_says(
    mini: type[EmbeddedDriver], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is of another policy: what our own engine decides this one decides, too. The example prints what it promises."""
    verdicts = list[ScenarioVerdict]()

    def run_and_keep(*, driver: type[EmbeddedDriver]) -> list[ScenarioVerdict]:
        verdicts.extend(run_files(driver=driver))
        return verdicts

    example = sys.modules["embedded_driver"]
    monkeypatch.setattr(example, "run_files", run_and_keep)
    example.main()
    *_, safety, policy = summary(verdicts)
    page = " ".join((EXAMPLES.parent / "specs/scenario-driver.md").read_text(encoding="utf-8").split())

    assert capsys.readouterr().out.splitlines() == promised(EXAMPLES / "embedded_driver.py")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("blocklife")]
    assert safety == "safety: 49 of 68 scenarios hold, 19 need what the engine cannot have"
    assert policy == "policy: 13 of 17 scenarios hold, 4 need what the engine cannot have"
    assert "49 of the 68 safety scenarios hold. The other 19 need" in page


def test_skeleton_of_the_page_drives_the_engine_of_the_example(mini: type[EmbeddedDriver]) -> None:
    """What a reader copies calls no right engine unsafe."""
    page = (EXAMPLES.parent / "specs/scenario-driver.md").read_text(encoding="utf-8")
    code = page.partition("## An engine on our scheduler")[2].partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {"MyEngine": sys.modules["embed_in_an_engine"].Engine, "Sequence": Sequence, "Mapping": Mapping}
    exec(code.replace("block_tokens = 16", "block_tokens = 4"), names)
    verdicts = [*run_files(["A04", "A13", "A33", "A35", "A50", "B07", "S3"], names["MyDriver"])]

    assert {each.outcome for each in verdicts} == {Outcome.HELD, Outcome.NOT_APPLICABLE}
    assert {each.scenario for each in verdicts if each.outcome is Outcome.HELD} >= {"A04", "A13", "A33", "A50", "B07", "S3"}


def test_embedded_engine_that_trusts_failed_copies_is_unsafe(mini: type[EmbeddedDriver]) -> None:
    """The device, and not the ledger, says what a place holds."""

    class Trusting(mini):  # type: ignore[valid-type,misc]
        def settled(self, plan: int, *, completions: Sequence[Completion], **more: object) -> object:
            good = [evolve(each, result=Result.OK) for each in completions]
            return super().settled(plan, completions=good, **more)

    outcomes = {each.outcome for each in run_files(["A11", "B05"], Trusting)}

    assert Outcome.UNSAFE in outcomes


def test_embedded_engine_whose_keys_forget_the_prefix_is_unsafe(
    mini: type[EmbeddedDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of a block's own tokens: a block behind one prefix is found behind another, on the device and in the host."""

    def blind(self: Any, group: int, start: int, stop: int) -> list[bytes]:
        return [bytes([group, *self.tokens[at * 4 : at * 4 + 4]]) for at in range(start, stop)]

    monkeypatch.setattr(sys.modules["embed_in_an_engine"].Sequence, "keys", blind)
    verdicts = [each for each in run_files(["B23"], mini) if each.outcome is not Outcome.NOT_APPLICABLE]
    print(*verdicts, sep="\n")

    assert {each.variant["found"] for each in verdicts} == {"on the device", "in the host"}
    assert {each.outcome for each in verdicts} == {Outcome.UNSAFE}


SAYS: Mapping[str, tuple[Callable[[EngineSetup], EngineSetup], str]] = {
    "contract": (lambda world: evolve(world, contract="hold"), "contract=fence, your ledger and scheduler have contract=hold"),
    "deadline": (lambda world: evolve(world, deadline=9), "deadline=1000, your ledger and scheduler have deadline=9"),
    "groups": (
        lambda world: evolve(world, groups="full:4,mamba:4"),
        "groups=full:4, your ledger and scheduler have groups=full:4,mamba:4",
    ),
    "chunks and jobs": (
        lambda world: evolve(world, blocks_per_chunk=2, jobs=99),
        "blocks_per_chunk=1, jobs=16, your ledger and scheduler have blocks_per_chunk=2, jobs=99",
    ),
    "policies": (
        lambda world: evolve(world, policies=evolve(world.policies, prompt_only=True)),
        "prompt_only=False, your ledger and scheduler have prompt_only=True",
    ),
}


@pytest.mark.parametrize("case", SAYS)
def test_engine_that_is_not_made_as_the_world_says_is_not_applicable(mini: type[EmbeddedDriver], case: str) -> None:
    """It is not called unsafe for what its driver did not pass on; the reason says which settings."""
    change, said = SAYS[case]

    class Other(mini):  # type: ignore[valid-type,misc]
        def start(self, world: EngineSetup) -> None:
            self.wanted = world
            super().start(change(world))

        def embed(self, _world: EngineSetup, scheduler: OffloadScheduler) -> None:
            super().embed(self.wanted, scheduler)

    verdict = next(run_files(["A01"], Other))

    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert verdict.reason == f"the world wants {said} (make them so in start, or refuse it with only)"


@pytest.mark.parametrize(("case", "method"), [("A33", "end"), ("A50", "give_way"), ("A13", "sent_back")])
def test_list_method_that_is_left_out_is_named(mini: type[EmbeddedDriver], case: str, method: str) -> None:
    """The engine then acts on a request that the scheduler has let go of."""
    without = type("Without", (mini,), {method: getattr(EmbeddedDriver, method)})
    found = [each for each in run_files([case], without) if each.outcome is Outcome.FAILED]
    print(*found, sep="\n")

    assert any(f"; the driver leaves out {method}, so that the engine's own lists do not hear of it" in str(e) for e in found)


def test_embedded_engine_that_computes_what_nobody_said_is_told(mini: type[EmbeddedDriver]) -> None:
    """A range that ends behind the known tokens has no content."""

    class Beyond(mini):  # type: ignore[valid-type,misc]
        def said(self, request: str) -> Sequence[int]:
            return list(super().said(request))[:-1]

    (verdict, *_) = [each for each in run_files(["A01"], Beyond) if each.outcome is not Outcome.NOT_APPLICABLE]

    assert verdict.outcome is Outcome.FAILED
    assert "request a: tokens up to 9 are computed, and it has 8 (see said)" in verdict.message
