"""What the linker decides, without SGLang: which stores are acknowledged when, what a lookup promises, what a mistake is told.

Goal: each promise of `LinkedHost` is kept when copies are late, fail, or never report. Method: the calls of SGLang's linker
one by one, with reports made by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from blocklife.engines.sglang import _versions as versions
from blocklife.engines.sglang.linker._config import LinkerConfig
from blocklife.engines.sglang.linker._host import LinkedHost, LinkerStatistics, limits_for
from blocklife.errors import CapacityError, MisuseError, RefusedError
from blocklife.ledger import Checking, Completion, JobId, Launched, Result, Worker
from blocklife.states import Block, Slot

RANK = Worker(0)


def keys_of(*names: int) -> list[bytes]:
    """Keys of pages."""
    return [b"page %d" % name for name in names]


class Link:
    """A host with its device pages, and reports by hand."""

    def __init__(self, num_slots: int = 8, deadline: float = 10.0) -> None:
        self.host = LinkedHost(limits_for(17, num_slots), policy="lru", checking=Checking.STRICT, deadline=deadline)
        self.now = 0.0

    def launch(self) -> list[JobId]:
        """Carry out what is planned, without a report. Returns the jobs."""
        plan = self.host.dispatch(self.now)
        if plan is None:
            return []
        jobs = [transfer.job for transfer in (*plan.loads, *plan.stores)]
        self.host.settle(plan, self.now, [Launched(job, RANK) for job in jobs], [])
        return jobs

    def land(self, jobs: Sequence[JobId], result: Result = Result.OK) -> None:
        """Their reports come."""
        self.host.report([Completion(job, RANK, result) for job in jobs])

    def stored(self, *names: int) -> None:
        """Bring these pages to host memory, in blocks of the same numbers."""
        self.host.store(keys_of(*names), names)
        self.land(self.launch())
        assert self.host.acknowledge()

    def states(self, *blocks: int) -> list[Block]:
        """The states of blocks."""
        return [self.host.ledger.blocks.state(block) for block in blocks]


def test_stores_are_acknowledged_in_their_order() -> None:
    """A store that lands first waits for those before it, for the tree takes the oldest."""
    link = Link()
    for name in (1, 2, 3):
        link.host.store(keys_of(name), [name])
    first, second, third = link.launch()

    link.land([third])
    assert link.host.num_acknowledged == 0
    with pytest.raises(MisuseError, match=r"no store is over \(ask num_completed_offloads first\)"):
        link.host.acknowledge()
    link.land([first], Result.FAILED)
    assert link.host.num_acknowledged == 1
    link.land([second])
    assert link.host.num_acknowledged == 3
    assert [link.host.acknowledge() for _ in range(3)] == [False, True, True]
    assert link.states(1, 2, 3) == [Block.FREED] * 3
    assert link.host.lookup("a", keys_of(1)) == 0
    assert link.host.lookup("a", keys_of(2)) == 1


def test_store_without_room_is_accepted_and_has_failed_in_its_turn() -> None:
    """All ranks take the same number of outcomes, so a rank must not have one less."""
    link = Link(num_slots=2)
    link.host.store(keys_of(1, 2), [1, 2])
    jobs = link.launch()
    link.host.store(keys_of(3), [3])

    assert link.host.num_acknowledged == 0
    link.land(jobs)
    assert [link.host.acknowledge() for _ in range(link.host.num_acknowledged)] == [True, False]
    assert link.host.statistics() == LinkerStatistics(num_stored=2, num_no_room=1)
    assert link.states(1, 2, 3) == [Block.FREED] * 3


def test_what_is_there_is_not_copied_again() -> None:
    """A node that was loaded comes back as a new one: only what is new of it is copied, and nothing at all is over at once."""
    link = Link()
    link.stored(1, 2)
    link.host.store(keys_of(1, 2), [5, 6])
    assert link.host.num_acknowledged == 1
    assert link.launch() == []
    link.host.store(keys_of(1, 2, 3), [7, 8, 9])
    (job,) = link.launch()

    assert link.host.ledger.jobs.transfer(job.number).source.tolist() == [9]
    assert link.states(7, 8, 9) == [Block.FREED, Block.FREED, Block.IN_FLIGHT]
    link.land([job])
    assert [link.host.acknowledge() for _ in range(2)] == [True, True]


def test_store_does_not_take_the_room_of_its_own_node() -> None:
    """A node whose beginning was loaded has room for its end only beside that: its end alone could never be found."""
    link = Link(num_slots=4)
    link.stored(1, 2, 3)
    link.host.store(keys_of(1, 2, 3, 4, 5), [5, 6, 7, 8, 9])

    assert link.host.acknowledge() is False
    assert link.host.lookup("a", keys_of(1, 2, 3)) == 3
    assert link.host.statistics().num_no_room == 1
    assert not link.host.ledger.has_pending_work()
    link.host.end_step()
    link.stored(8, 9)  # nothing has stayed pinned


def test_end_of_a_prefix_goes_before_its_beginning() -> None:
    """Pages behind a gap cannot be loaded, so the policy gives up the last one first."""
    link = Link(num_slots=3)
    link.stored(1, 2, 3)
    link.stored(4)

    assert link.host.lookup("a", keys_of(1, 2, 3)) == 2


def test_what_a_lookup_found_stays_until_the_step_ends() -> None:
    """Pages that a request was promised are not given up for others in between."""
    link = Link(num_slots=2)
    link.stored(1, 2)
    assert link.host.lookup("a", keys_of(1, 2)) == 2
    link.host.store(keys_of(3), [3])
    assert link.host.load("a", keys_of(1, 2), [5, 6])
    assert link.host.cancel("a")
    assert link.host.lookup("b", keys_of(1, 2)) == 2
    link.host.end_step()
    link.host.store(keys_of(4), [4])
    link.land(link.launch())

    assert [link.host.acknowledge() for _ in range(2)] == [False, True]
    assert not link.host.load("b", keys_of(1, 2), [5, 6])
    assert link.host.load("b", keys_of(1), [5])


def test_cancelled_load_leaves_nothing() -> None:
    """SGLang frees the pages after it; there is nothing to cancel twice, and nothing once it has started."""
    link = Link()
    link.stored(1)
    assert link.host.load("a", keys_of(1), [5])
    with pytest.raises(MisuseError, match="a load of request a is queued already"):
        link.host.load("a", keys_of(1), [6])
    assert link.host.cancel("a")
    assert not link.host.cancel("a")
    assert link.states(5, 6) == [Block.FREED] * 2
    assert link.host.start_loads() == -1
    assert link.host.load("a", keys_of(1), [5])
    assert link.host.start_loads() == 0
    assert not link.host.cancel("a")
    assert link.host.blocks_of(0) == [5]


@pytest.mark.parametrize("result", [Result.OK, Result.FAILED, None])
def test_batch_is_whole_if_every_load_reports_so(result: Result | None) -> None:
    """One that fails, or is quiet and says nothing, fails the batch; its pages are free either way."""
    link = Link()
    link.stored(1, 2)
    for name, key in (("a", 1), ("b", 2)):
        assert link.host.load(name, keys_of(key), [key + 4])
    batch = link.host.start_loads()
    first, second = link.launch()
    assert link.host.loading(batch) == [first, second]
    link.land([first])
    if result is not None:
        link.land([second], result)

    assert link.host.finish_loads(batch) is (result is Result.OK)
    assert link.states(5, 6) == [Block.FREED] * 2
    assert link.host.statistics().num_failed_loads == int(result is not Result.OK)
    assert link.host.loading(batch) == []
    assert not link.host.ledger.has_pending_work()


def test_page_that_a_copy_reads_is_not_handed_out() -> None:
    """If SGLang unlocked it too early, the error names the copy; nothing was written, and nothing is left behind."""
    link = Link()
    link.stored(1)
    link.host.store(keys_of(2), [2])
    (job,) = link.launch()
    with pytest.raises(
        RefusedError, match=rf"block 2: cannot ALLOCATE while IN_FLIGHT: request store 2 holds it, job {job} still reads"
    ):
        link.host.load("a", keys_of(1), [2])
    with pytest.raises(RefusedError, match="block 2: cannot ALLOCATE while IN_FLIGHT"):
        link.host.store(keys_of(3), [2])
    link.land([job])

    assert link.host.acknowledge()
    assert link.host.load("a", keys_of(1), [2])
    assert [*link.host.ledger.requests] == ["load 5 of a"]


def test_late_copy_has_failed_only_when_it_is_quiet() -> None:
    """Past its deadline it is no success any more, but until it is quiet SGLang must keep its pages."""
    link = Link(deadline=10.0)
    link.host.store(keys_of(1), [1])
    jobs = link.launch()
    assert link.host.expire(9.0) == []
    assert link.host.expire(11.0) == jobs
    assert link.host.expire(12.0) == []
    assert link.host.num_acknowledged == 0
    assert link.host.ledger.slots.count()[Slot.QUARANTINED] == 1
    link.host.quiesce(jobs)
    link.land(jobs)

    assert link.host.num_acknowledged == 1
    assert link.host.acknowledge() is False
    assert link.host.ledger.counts.tally["late"] == 1
    assert link.host.lookup("a", keys_of(1)) == 0


def test_reset_forgets_all_and_waits_for_what_is_out() -> None:
    """What is planned is given up, what is out must be quiet first; then everything begins anew."""
    link = Link()
    link.stored(1, 2)
    link.host.store(keys_of(3), [3])
    jobs = link.launch()
    link.host.store(keys_of(4), [4])
    assert link.host.load("a", keys_of(1), [5])
    assert link.host.lookup("b", keys_of(2)) == 1
    with pytest.raises(CapacityError, match=r"linker: 1 copies are out \(wait until all are quiet, then reset again\)"):
        link.host.reset()
    assert link.host.out() == jobs
    link.host.quiesce(jobs)
    link.host.reset()

    assert link.host.num_acknowledged == 0
    assert link.host.statistics().num_cancelled_stores == 1
    assert link.host.lookup("c", keys_of(1)) == 0
    assert set(link.states(*range(1, 17))) == {Block.FREED}
    assert link.host.ledger.slots.count()[Slot.EMPTY] == 8
    assert len(link.host.ledger.requests) == 0
    link.stored(1)
    assert link.host.load("a", keys_of(1), [1])
    assert link.host.start_loads() == 0


def test_pages_and_keys_go_together() -> None:
    """One page for each key, and at least one."""
    link = Link()
    with pytest.raises(MisuseError, match=r"a store of 2 keys and 1 pages \(give one page for each key\)"):
        link.host.store(keys_of(1, 2), [1])
    with pytest.raises(MisuseError, match="a load of 0 keys and 0 pages"):
        link.host.load("a", [], [])


# --- the configuration --------------------------------------------------------------------------------------------------


def test_config_has_defaults_for_all_but_the_size() -> None:
    """A size is enough."""
    config = LinkerConfig.read({"host_bytes": "1.5KiB"})

    assert (config.host_bytes, config.policy, config.deadline_s, config.checking) == (1536, "arc", 60.0, Checking.COUNT)
    assert config.num_slots(512) == 3
    assert LinkerConfig.read({"host_pages": 5, "policy": "LRU", "deadline_s": 2, "checking": "strict"}) == LinkerConfig(
        host_pages=5, policy="lru", deadline_s=2.0, checking=Checking.STRICT
    )


MISTAKES: dict[str, tuple[dict[str, object], str]] = {
    "no size": ({}, "neither of host_bytes and host_pages given (say how much host memory there is, once)"),
    "two sizes": ({"host_bytes": 1, "host_pages": 1}, "both of host_bytes and host_pages given"),
    "unknown": ({"host_page": 1}, "'host_page' is no key of this linker (did you mean 'host_pages'?)"),
    "pages": ({"host_pages": 0}, "host_pages must be a whole number of at least 1, not 0"),
    "true": ({"host_pages": True}, "host_pages must be a whole number of at least 1, not True"),
    "bytes": ({"host_bytes": "much"}, "host_bytes must be a whole number of bytes, or a text like '64GiB', not 'much'"),
    "none": ({"host_bytes": "0.5"}, "host_bytes must be a whole number of bytes"),
    "policy": ({"host_pages": 1, "policy": "fifo"}, "policy must be one of arc, lru, or a name that was registered before"),
    "deadline": ({"host_pages": 1, "deadline_s": 0}, "deadline_s must be a number of seconds above 0, not 0"),
    "checking": ({"host_pages": 1, "checking": "hard"}, "checking must be one of strict, count, off, not 'hard'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_in_the_configuration_is_named(name: str) -> None:
    """The key, the value, and what is wanted."""
    given, message = MISTAKES[name]
    with pytest.raises(MisuseError) as found:
        LinkerConfig.read(given)

    assert message in str(found.value)


def test_size_must_hold_a_page_and_not_too_many() -> None:
    """Both ends, with the numbers."""
    with pytest.raises(MisuseError, match=r"host_bytes=100 holds no page, which takes 512 bytes \(give more\)"):
        LinkerConfig.read({"host_bytes": 100}).num_slots(512)
    with pytest.raises(MisuseError, match=r"of which there can be 2147483648 at most \(give less\)"):
        LinkerConfig.read({"host_pages": 1 << 32}).num_slots(512)


@pytest.mark.parametrize("version", ["0.5.20", "0.5.24", "1.5.23", "0.5.23rc1", "0.5.23.dev4+g1", "", "main"])
def test_linker_is_for_one_release(version: str) -> None:
    """SGLang has replaced the class of its cache within three releases."""
    for taken in ("0.5.23", "v0.5.23", "0.5.23.post1", "0.5.23+cu130"):
        versions.check_linked(taken)
    with pytest.raises(MisuseError, match=r"this linker supports SGLang 0.5.23 \(install it, or a blocklife for yours\)"):
        versions.check_linked(version)
