"""The device that never asks anybody: whatever meets on a place is a fault, and bytes are where physics says.

Goal: each way in which two operations can meet is seen, and lawful ones are not. Method: orders are written by hand; no ledger
and no scheduler takes part. The last tests read what the module imports, and put a device away as a value.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

import pytest

from blocklife.errors import MisuseError
from blocklife.testing import CopyOrder, Device, DeviceFault, FrozenDevice, Landing, Orders, Pass
from blocklife.testing.worlds import _device as module
from blocklife.testing.worlds._device import DeviceMemo, DeviceNames, renamed


def store(job: int, block: int, place: int = 0) -> CopyOrder:
    return CopyOrder(job, True, (block,), (place,))


def load(job: int, block: int, place: int = 0) -> CopyOrder:
    return CopyOrder(job, False, (place,), (block,))


def orders(
    plan: int,
    *,
    flushes: tuple[int, ...] = (),
    loads: tuple[CopyOrder, ...] = (),
    stores: tuple[CopyOrder, ...] = (),
    reads: dict[int, str] | None = None,
    writes: dict[int, str] | None = None,
) -> Orders:
    return Orders(plan, flushes, loads, stores, Pass(tuple((reads or {}).items()), tuple((writes or {}).items())))


def storing(workers: int = 1, *, events: bool = True) -> Device:
    """Block 1 holds *x*, and a store of it runs to place 0."""
    device = Device(4, 3, workers, events=events)
    device.carry_out(orders(1, writes={1: "x"}, stores=(store(1, 1),)))
    device.finish_pass(1)
    device.carry_out(orders(2))
    return device


def test_device_copies_bytes_when_they_land() -> None:
    """Before that the target is garbage; a copy that fails leaves it so."""
    device = storing(workers=2)
    before = [worker.places[0] for worker in device.workers]
    device.land(1, 0)
    device.land(1, 1, ok=False)

    assert before == [None, None]
    assert [worker.places[0] for worker in device.workers] == ["x", None]


def test_device_holds_a_store_back_until_the_next_plan() -> None:
    """A new store never delays the forward pass of its own step."""
    device = Device(4, 3)
    device.carry_out(orders(1, writes={1: "x"}, stores=(store(1, 1),)))
    held = device.running()
    device.carry_out(orders(2))

    assert held == []
    assert device.running() == [(1, 0, False)]


def test_device_copies_blocks_ahead_of_the_pass_and_one_after_the_other() -> None:
    """What the pass writes then is not copied; what an earlier copy has brought is."""
    device = Device(5, 3, 2)
    device.carry_out(orders(1, writes={1: "x"}))
    plan = orders(2, reads={2: "x"}, writes={1: "y"})._replace(block_copies=((1, 2), (2, 3)))
    device.carry_out(plan)

    assert [worker.blocks[1:4] for worker in device.workers] == [["y", "x", "x"]] * 2


def running(copy: CopyOrder) -> Device:
    """A copy of block 1 that runs, and no forward pass."""
    device = Device(4, 3)
    device.carry_out(orders(1, loads=() if copy.stores else (copy,), stores=(copy,) if copy.stores else ()))
    device.carry_out(orders(2))
    device.finish_pass(2)
    return device


@pytest.mark.parametrize(
    ("copy", "blocks", "said"),
    [
        (load(1, 1), (1, 2), "reads block 1 while copy 1 writes it"),
        (load(1, 1), (2, 1), "writes block 1 while copy 1 writes it"),
        (store(1, 1), (2, 1), "writes block 1 while copy 1 reads it"),
    ],
)
def test_device_sees_a_block_that_is_copied_while_another_copy_runs(
    copy: CopyOrder, blocks: tuple[int, int], said: str
) -> None:
    """Both its source and its target are touched by the step."""
    with pytest.raises(DeviceFault, match=f"I1: worker 0: step 3 {said}"):
        running(copy).carry_out(orders(3)._replace(block_copies=(blocks,)))


def test_device_lets_a_block_be_copied_that_a_store_reads() -> None:
    """Both read it; a load that does not wait for the step writes into what the step copies."""
    running(store(1, 1)).carry_out(orders(3)._replace(block_copies=((1, 2),)))
    device = Device(4, 3, events=False)
    with pytest.raises(DeviceFault, match="I2: worker 0: copy 2 does not wait for the event of step 3, which touches block 1"):
        device.carry_out(orders(3, loads=(load(2, 1),))._replace(block_copies=((1, 2),)))


def test_device_lands_what_a_plan_waits_for_before_anything_is_written() -> None:
    """The old bytes arrive, then the new tenant writes."""
    device = storing()
    device.hand_out([1], fence=True)
    landed = device.carry_out(orders(3, flushes=(1,), writes={1: "y"}))

    assert [(each.job, each.worker, each.ok) for each in landed] == [(1, 0, True)]
    assert device.workers[0].places[0] == "x"
    assert device.workers[0].blocks[1] == "y"


def test_device_launches_what_it_held_back_before_it_waits_for_it() -> None:
    """A wait for a store that was never launched would never end."""
    device = Device(4, 3)
    device.carry_out(orders(1, writes={1: "x"}, stores=(store(1, 1),)))
    landed = device.carry_out(orders(2, flushes=(1,), writes={1: "y"}))

    assert [each.job for each in landed] == [1]
    assert device.workers[0].places[0] == "x"


def forgotten(device: Device) -> None:
    device.hand_out([1], fence=True)
    device.carry_out(orders(3))


FAULTS: dict[str, Callable[[Device], object]] = {
    "a new tenant without the wait": lambda d: forgotten(d),
    "a new tenant under hold": lambda d: d.hand_out([1], fence=False),
    "a write into a source": lambda d: d.carry_out(orders(3, writes={1: "y"})),
    "a load into a source": lambda d: d.carry_out(orders(3, loads=(load(2, 1, 2),))),
    "a load from a target": lambda d: d.carry_out(orders(3, loads=(load(2, 2, 0),))),
    "two stores into one place": lambda d: (d.carry_out(orders(3, stores=(store(2, 2, 0),))), d.carry_out(orders(4))),
}


@pytest.mark.parametrize("case", FAULTS)
def test_device_sees_two_operations_meet(case: str) -> None:
    """While a store reads block 1 and writes place 0: each of these breaks I1."""
    with pytest.raises(DeviceFault) as fault:
        FAULTS[case](storing())

    assert fault.value.rule == "I1"


def test_device_lets_two_stores_read_one_block() -> None:
    """Readers do not disturb each other."""
    device = storing()
    device.carry_out(orders(3, reads={1: "x"}, stores=(store(2, 1, 1),)))
    device.carry_out(orders(4))

    assert [job for job, _, _ in device.running()] == [1, 2]


@pytest.mark.parametrize("doing", [{"reads": {2: "x"}}, {"writes": {2: "x"}}], ids=["reads", "writes"])
def test_device_sees_a_pass_that_does_not_wait_for_a_load(doing: dict[str, dict[int, str]]) -> None:
    """The target of a load is nobody's before it has landed."""
    device = storing()
    device.land(1, 0)
    device.carry_out(orders(3, loads=(load(2, 2),)))
    with pytest.raises(DeviceFault, match=r"I1: worker 0: step 4 (reads|writes) block 2 while copy 2 writes it"):
        device.carry_out(orders(4, reads=doing.get("reads"), writes=doing.get("writes")))


def test_device_sees_a_read_of_the_wrong_content() -> None:
    """Somebody else's text, or garbage: what was promised is not there."""
    device = storing()
    with pytest.raises(DeviceFault, match="I6: worker 0: step 3 reads x in block 1 instead of y"):
        device.carry_out(orders(3, reads={1: "y"}))
    with pytest.raises(DeviceFault, match="garbage"):
        device.carry_out(orders(3, reads={2: "y"}))


def test_device_sees_a_copy_that_does_not_wait_for_its_producer() -> None:
    """A copier without events (I2); with them the very same orders are lawful."""

    def planned_ahead(*, events: bool) -> None:
        device = Device(4, 3, events=events)
        device.carry_out(orders(1, writes={1: "x"}, stores=(store(1, 1),)))
        device.carry_out(orders(2))  # the pass of plan 1 still runs

    planned_ahead(events=True)
    with pytest.raises(DeviceFault) as fault:
        planned_ahead(events=False)

    assert fault.value.rule == "I2"


def test_device_never_lands_what_hangs_but_a_wait_makes_it_quiet() -> None:
    """A wait aborts it: it is over, nobody reports it, and its target is garbage."""
    device = storing()
    device.hang(1, 0)
    with pytest.raises(MisuseError, match="it hangs"):
        device.land(1, 0)
    landed = device.carry_out(orders(3, flushes=(1,)))

    assert landed == []
    assert device.running() == []
    assert device.workers[0].places[0] is None


def test_device_refuses_to_land_what_does_not_run() -> None:
    """Twice is once too often."""
    device = storing()
    device.land(1, 0)
    for act in (lambda: device.land(1, 0), lambda: device.hang(1, 0)):
        with pytest.raises(MisuseError, match="does not run there"):
            act()


def test_device_loses_a_worker_with_all_that_lies_there() -> None:
    """The others go on; who comes back is empty."""
    device = storing(workers=2)
    device.lose(1)
    device.carry_out(orders(3, reads={1: "x"}))
    device.regain(1)

    assert device.running() == [(1, 0, False)]
    assert device.workers[1].blocks == [None] * 4
    with pytest.raises(DeviceFault, match="worker 1: step 4 reads garbage"):
        device.carry_out(orders(4, reads={1: "x"}))


def test_device_goes_back_to_a_value() -> None:
    """Frozen and thawed it is the same, and goes on the same way."""
    device = storing(workers=2)
    device.hang(1, 1)
    value = device.freeze()
    device.land(1, 0)
    device.lose(1)
    device.thaw(value)

    assert device.freeze() == value
    assert hash(device.freeze()) == hash(value)
    assert device.running() == [(1, 0, False), (1, 1, True)]


def test_device_under_other_names_is_the_same_device() -> None:
    """Blocks, places and jobs change their names; content that nobody can read any more is garbage."""
    device = storing()
    names = DeviceNames(blocks=[0, 2, 1, 3], places=[2, 1, 0], jobs={1: 7}, plans_before=0)
    (worker,) = renamed(device.freeze(), names, readable=[], filled=[]).workers

    assert worker.copies[0][0] == CopyOrder(7, True, (2,), (2,))
    assert worker.blocks == (None, None, "x", None)  # a copy reads it


def test_device_names_a_copy_whose_job_is_over() -> None:
    """A job that ended while its copy still runs has no name left: that is a fault, not a detail."""
    with pytest.raises(DeviceFault, match="I1: copy 1 still runs, although its job is over"):
        renamed(storing().freeze(), DeviceNames([0, 1, 2, 3], [0, 1, 2], {}), [], [])


def test_device_memo_does_each_thing_to_each_value_once() -> None:
    """Equal values have one number, and a call is remembered with what landed, or with the fault that it is."""
    memo = DeviceMemo(storing())
    done: list[str] = []

    def land(device: Device) -> tuple[FrozenDevice, tuple[Landing, ...]]:
        done.append("land")
        landed = device.land(1, 0)
        return device.freeze(), (landed,)

    def hand_out(device: Device) -> tuple[FrozenDevice, tuple[Landing, ...]]:
        done.append("hand out")
        device.hand_out([1], fence=False)
        return device.freeze(), ()

    first = memo.call(0, "land", land)
    again = memo.call(0, "land", land)
    for _ in range(2):
        with pytest.raises(DeviceFault, match="I1: block 1 was handed out while copy 1 touches it"):
            memo.call(0, "hand out", hand_out)

    assert first == again == (1, (Landing(1, 0, True),))
    assert done == ["land", "hand out"]
    assert memo.number(memo.values[1]) == 1
    assert memo.values[0] == storing().freeze()


def test_device_knows_neither_ledger_nor_scheduler() -> None:
    """The second truth is worth something only while it cannot look at the first."""
    tree = ast.parse(inspect.getsource(module))
    named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    named |= {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}

    assert {name for name in named if name and name.startswith("blocklife")} == {"blocklife.errors"}
