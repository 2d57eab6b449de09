"""What the linker decides, without SGLang: which stores are acknowledged when, what a lookup promises, what a mistake is told.

Goal: each promise of `LinkedHost` is kept when copies are late, fail, or never report. Method: the calls of SGLang's linker
one by one, with reports made by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import asdict, define, field

from blocklife.copiers._movers import USUAL
from blocklife.engines.sglang import _versions as versions
from blocklife.engines.sglang.linker._config import LinkerConfig
from blocklife.engines.sglang.linker._host import LinkedHost, LinkedPages
from blocklife.engines.sglang.linker._memory import ASK_FIRST, LinkedMemory, limits_for
from blocklife.errors import MisuseError
from blocklife.ledger import Checking, Completion, JobId, Launched, Result, Worker
from blocklife.offload import Demote
from blocklife.offload._lookup import Answer
from blocklife.policies import BUILT_IN
from blocklife.states import Slot
from tests.behind.scenes import Scene, scenes

RANK = Worker(0)
POLICIES = ", ".join(sorted(BUILT_IN))


def keys_of(*names: int) -> list[bytes]:
    """Keys of pages."""
    return [b"page %d" % name for name in names]


@define(eq=False)
class Known:
    """A store below whose answers are said: what it has, by space, and what it does not know yet."""

    has: set[tuple[bytes, bytes]] = field(factory=set)
    unknown: set[bytes] = field(factory=set)
    is_up: bool = True
    asked: list[int] = field(factory=list)
    """Of how many contents, call by call."""

    def ask(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> list[Answer]:
        """At once."""
        self.asked.append(len(contents))
        return [
            Answer.RETRY if key in self.unknown else Answer.HIT if (space, key) in self.has else Answer.MISS
            for _, key in contents
        ]

    def discard(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        """They were not there."""
        self.has -= {(space, key) for _, key in contents}

    def note_put(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        """They are there."""
        self.has |= {(space, key) for _, key in contents}

    def new_space(self) -> bytes:
        """Another one."""
        return b"new"


class Link:
    """A host with its device pages, and reports by hand. Pages are named like the blocks that they are in.

    Beside the pages there are states: what is said of one is said of the state in the block of the same number behind it.
    """

    def __init__(self, slots: int = 8, states: int = 0, below: bool = False) -> None:
        limits = [limits_for(17, count) for count in (slots, states) if count]
        self.below = [Known() for _ in limits] if below else []
        self.host = LinkedHost(limits, policy="lru", checking=Checking.STRICT, deadline=10.0, indexes=self.below)
        self.now = 0.0
        self.jobs: list[JobId] = []
        """What was launched of pages, in order."""

    @property
    def pages(self) -> LinkedMemory:
        """The memory of pages."""
        return self.host.memories[0]

    def part(self, memory: int, names: Sequence[int], blocks: Sequence[int]) -> LinkedPages:
        """What is named of one memory."""
        return LinkedPages(memory, keys_of(*names), blocks)

    def named(self, names: Sequence[int], into: int, state: bool) -> list[LinkedPages]:
        """Pages, and behind the last of them a state."""
        keys, blocks = keys_of(*names), [into + at for at in range(len(names))] if into else names
        return [LinkedPages(0, keys, blocks), *([LinkedPages(1, keys[-1:], blocks[-1:])] if state else [])]

    def store(self, *names: int, into: int = 0, state: bool = False) -> None:
        """Store pages, from blocks of the same numbers, or from *into* on."""
        self.host.store(self.named(names, into, state))

    def load(self, request: str, name: int, block: int, state: bool = False) -> None:
        """Load a page into a block, which must be taken."""
        assert self.host.load(request, self.named([name], block, state))

    def find(self, *names: int) -> int:
        """How many pages a lookup finds."""
        return max(self.host.lookup([LinkedPages(0, keys_of(*names))]), default=0)

    def ends(self, width: int, *names: int) -> list[int]:
        """The numbers of these pages that a lookup finds, where the last *width* of them are needed of the other memory."""
        keys = keys_of(*names)
        return self.host.lookup([LinkedPages(0, keys), LinkedPages(1, keys[-width:])])

    def fetch(self, *names: int, state: bool = False) -> bool:
        """Begin to bring pages from below, with a state behind the last of them."""
        keys = keys_of(*names)
        return self.host.fetch([LinkedPages(0, keys), *([LinkedPages(1, keys[-1:])] if state else [])])

    def put(self, memory: int, *names: int) -> None:
        """The store below has these."""
        self.below[memory].note_put(b"", [(0, key) for key in keys_of(*names)])

    def doubt(self, *names: int) -> None:
        """It does not know yet whether it has these, and no others."""
        self.below[0].unknown = {*keys_of(*names)}

    def kept(self, space: str = "") -> list[str]:
        """The pages that it has in a space."""
        return sorted(key.decode() for each, key in self.below[0].has if each.decode() == space)

    def launch(self) -> None:
        """Carry out what is planned, without a report; of states, with one."""
        for memory, plan in self.host.dispatch(self.now):
            jobs = plan.submitted
            launched = [Launched(job, RANK) for job in jobs]
            self.host.settle(memory, plan, self.now, launched, [Completion(job, RANK, Result.OK) for job in jobs] * memory)
            self.jobs += [*jobs] * (not memory)

    def land(self, *at: int, ok: bool = True) -> None:
        """The reports of these jobs come, by their places among all that were launched."""
        self.host.report(0, [Completion(self.jobs[each], RANK, Result.OK if ok else Result.FAILED) for each in at])

    def stored(self, *names: int, state: bool = False) -> None:
        """Bring these pages to host memory."""
        self.store(*names, state=state)
        self.launch()
        self.land(-1)
        assert self.host.acknowledge()

    def states(self, *blocks: int) -> list[str]:
        """The states of blocks."""
        return [self.pages.ledger.blocks.state(block).name for block in blocks]

    def slots(self, state: str) -> int:
        """Slots in a state."""
        return self.pages.ledger.slots.count()[Slot[state]]

    def over(self) -> list[bool]:
        """What the tree is told of all stores that are over."""
        return [self.host.acknowledge() for _ in range(self.host.num_acknowledged)]

    def rests(self) -> bool:
        """Whether no ledger has anything under way, or a request."""
        return not any(memory.ledger.has_pending_work() or memory.ledger.requests for memory in self.host.memories)

    @property
    def told(self) -> dict[str, int]:
        """Counts that are not 0."""
        return {name: count for name, count in asdict(self.host.statistics()).items() if count}


SCENES = scenes("""
stores-are-acknowledged-in-their-order
    # one that lands first waits for those before it, for the tree takes the oldest
    store 1; store 2; store 3; launch; land 2; then host.num_acknowledged == 0
    refuses no store is over (ask num_completed_offloads first) <- then host.acknowledge()
    land 0 ok=no; then host.num_acknowledged == 1; land 1; then over() == [False, True, True]
    then states(1, 2, 3) == ["FREED"] * 3 and find(1) == 0 and find(2) == 1
store-without-room-is-accepted-and-has-failed-in-its-turn slots=2
    # all ranks take the same number of outcomes, so a rank must not have one less
    store 1 2; launch; store 3; then host.num_acknowledged == 0; land 0; then over() == [True, False]
    then told == {"num_stored": 2, "num_no_room": 1} and states(1, 2, 3) == ["FREED"] * 3
refused-store-evicts-nothing slots=2
    # a page that a copy still reads was handed out: the host keeps what it has
    stored 2; store 1; launch; refuses block 1: cannot ALLOCATE <- store 3 into=1
    then find(2) == 1 and slots("READY") == 1; land -1; then over() == [True] and find(1) == 1
what-is-there-is-not-copied-again
    # a node that was loaded comes back as a new one: only what is new of it is copied, and nothing at all is over at once
    stored 1 2; store 1 2 into=5; then host.num_acknowledged == 1; launch; then len(jobs) == 1; store 1 2 3 into=7; launch
    then pages.ledger.jobs.transfer(jobs[-1].number).source.tolist() == [9]
    then states(7, 8, 9) == ["FREED", "FREED", "IN_FLIGHT"]; land -1; then over() == [True, True]
store-does-not-take-the-room-of-its-own-node slots=4
    # a node whose beginning was loaded has room for its end only beside that: its end alone could never be found
    stored 1 2 3; store 1 2 3 4 5 into=5; then over() == [False]; then find(1, 2, 3) == 3 and told["num_no_room"] == 1
    then rests(); stored 8 9
end-of-a-prefix-goes-before-its-beginning slots=3
    # pages behind a gap cannot be loaded, so the policy gives up the last one first
    stored 1 2 3; stored 4; then find(1, 2, 3) == 2
load-of-what-is-gone-is-refused slots=2
    # nothing has changed then, and SGLang computes it
    stored 1 2; then find(1, 2) == 2; stored 3; then not host.load("b", named([1, 2], 5, False)) and rests(); load b 1 5
cancelled-load-leaves-nothing
    # SGLang frees the pages after it; there is nothing to cancel twice, and nothing once its batch has started
    stored 1; load a 1 5; refuses a load of request a is queued already <- load a 1 6
    then host.cancel("a") and not host.cancel("a") and states(5, 6) == ["FREED"] * 2 and host.start_loads() == -1
    load a 1 5; then host.start_loads() == 0 and not host.cancel("a") and host.blocks_of(0, 0) == [5]
load-that-is-under-way-is-not-cancelled-before-it-is-quiet
    stored 1; load a 1 5; launch; then host.queued("a") == [jobs[-1:]]
    refuses linker: load 2 of a is under way (wait until it is quiet) <- then host.cancel("a")
    then host.queued("a") == [jobs[-1:]]; land -1; then host.cancel("a") and rests()
load-that-cannot-be-launched-is-refused
    # it is over before its batch starts, and leaves nothing
    stored 1; load a 1 5; launch; then not host.is_refused("a"); land -1 ok=no; then host.is_refused("a")
    then host.cancel("a", refused=True); then rests() and told["num_refused_loads"] == 1 and states(5) == ["FREED"]
batch-whose-loads-all-report-is-whole
    stored 1 2; load a 1 5; load b 2 6; note batch host.start_loads(); launch; then host.loading(batch) == [jobs[-2:]]
    land -2; land -1; then host.finish_loads(batch); then states(5, 6) == ["FREED"] * 2 and "num_failed_loads" not in told
    then host.loading(batch) == [[]] and rests()
batch-with-a-load-that-fails-is-not-whole
    # its pages are free all the same
    stored 1 2; load a 1 5; load b 2 6; note batch host.start_loads(); launch; land -2; land -1 ok=no
    then not host.finish_loads(batch); then states(5, 6) == ["FREED"] * 2 and told["num_failed_loads"] == 1
    then host.loading(batch) == [[]] and rests()
batch-with-a-load-that-says-nothing-is-not-whole
    # it is quiet, and its pages are free
    stored 1 2; load a 1 5; load b 2 6; note batch host.start_loads(); launch; land -2
    then not host.finish_loads(batch); then states(5, 6) == ["FREED"] * 2 and told["num_failed_loads"] == 1
    then host.loading(batch) == [[]] and rests()
batch-that-is-not-waited-for-is-left-behind
    # the device lets the forward pass wait; until its copies report, whoever gets their pages waits for them
    stored 1 2; load a 1 5; load b 2 6; note batch host.start_loads(); launch; land -2
    then host.finish_loads(batch, wait=False); then states(5, 6) == ["FREED", "LOADING"]
    then host.left_in(named([7], 5, False)) == [[]] and host.left_in(named([7], 6, False)) == [jobs[-1:]]
    land -1; then rests() and host.left_in(named([7], 6, False)) == [[]] and "num_failed_loads" not in told
page-that-a-copy-reads-is-not-handed-out
    # if SGLang unlocked it too early, the error names the copy; nothing was written, and nothing is left behind
    stored 1; store 2; launch
    refuses block 2: cannot ALLOCATE while IN_FLIGHT: request store 2 holds it, job 1.2 still reads <- load a 1 2
    refuses block 2: cannot ALLOCATE while IN_FLIGHT <- store 3 into=2
    land -1; then over() == [True]; load a 1 2; then [*pages.ledger.requests] == ["load 5 of a"]
late-copy-has-failed-only-when-it-is-quiet
    # past its deadline it is no success any more, but until it is quiet SGLang must keep its pages
    store 1; launch; then host.expire(9.0) == [[]] and host.expire(11.0) == [jobs] and host.expire(12.0) == [[]]
    then host.num_acknowledged == 0 and slots("QUARANTINED") == 1; then host.quiesce([jobs]) is None; land 0
    then over() == [False] and pages.ledger.counts.tally["late"] == 1 and find(1) == 0
reset-forgets-all-and-waits-for-what-is-out
    # what is planned is given up, what is out must be quiet first; then everything begins anew
    stored 1 2; store 3; launch; store 4; load a 1 5; then find(1, 2) == 2
    refuses linker: 1 copies are out (wait until all are quiet, then reset again) <- then host.reset()
    then host.out() == [jobs[-1:]] and host.quiesce([jobs[-1:]]) is None and host.reset() is None
    then host.num_acknowledged == 0 and told["num_cancelled_stores"] == 1 and find(1) == 0
    then set(states(*range(1, 17))) == {"FREED"} and slots("EMPTY") == 8 and rests()
    stored 1; load a 1 1; then host.start_loads() == 0
pages-and-keys-go-together
    # one page for each key, and at least one
    refuses a store of 2 keys and 1 pages (give one page for each key) <- then host.store([part(0, [1, 2], [1])])
    refuses a load of 0 keys and 0 pages <- then host.load("a", [part(0, [], [])])
hit-ends-where-its-state-is states=4
    # a state exists behind a node only, so the numbers that can be loaded have gaps
    stored 1 2 state=yes; stored 3; stored 4 state=yes; then ends(1, 1, 2, 3, 4) == [2, 4] and ends(1, 1, 2, 3) == [2]
    then ends(1, 1) == [] and find(1, 2, 3) == 3
hit-needs-its-window-without-a-gap states=4
    # the last pages of a window, or all of a shorter text
    stored 1 state=yes; stored 2 state=yes; stored 3; stored 4 state=yes
    then ends(2, 1, 2, 3, 4) == [1, 2] and ends(1, 1, 2, 3, 4) == [1, 2, 4] and ends(3, 1, 2, 3) == [1, 2]
node-is-stored-only-if-all-of-its-parts-are states=1
    # else its pages would be found without what a hit needs behind them; SGLang offers it again
    stored 1 state=yes; store 2 state=yes; then not host.memories[1].has(part(1, [2], []).keys[0]); launch; land -1
    then over() == [True] and find(2) == 1 and ends(1, 2) == [1] and ends(1, 1) == []
node-with-a-refused-part-leaves-nothing states=4
    # nothing was planned of its pages either
    stored 1 state=yes; store 2 state=yes; note node [part(0, [3, 4], [8, 9]), part(1, [5], [9]), part(1, [6], [9])]
    refuses block 9: cannot ALLOCATE <- then host.store(node)
    then states(8, 9) == ["FREED"] * 2; launch; land -1; then over() == [True] and rests()
load-brings-both-parts states=4
    stored 1 state=yes; load a 1 5 state=yes; note batch host.start_loads(); launch
    then host.blocks_of(batch, 0) == [5] and host.blocks_of(batch, 1) == [5]; land -1; then host.finish_loads(batch) and rests()
    then told["num_loaded"] == 2
without-a-store-below-nothing-is-fetched
    then not fetch(1); then rests()
what-is-below-counts-once-it-has-come below=yes
    # the hit ends where neither tier has the next page; what has come is fetched no more
    stored 1; put 0 2 3 5; then fetch(1, 2, 3, 4, 5) and find(1, 2, 3) == 1; launch
    then fetch(1, 2, 3, 4, 5) and len(jobs) == 2; land -1; then find(1, 2, 3, 4, 5) == 3
    then not fetch(1, 2, 3, 4, 5); load a 2 5; launch; then states(5) == ["LOADING"]
what-the-store-does-not-know-yet-is-asked-again below=yes
    # nothing is planned for it, and it may be waited for
    put 0 1 2; doubt 2; then fetch(2, 1) and host.dispatch(0.0) == []
    then fetch(1, 2); launch; land -1; then find(1, 2) == 1 and fetch(1, 2) and host.dispatch(0.0) == []
    doubt; then fetch(1, 2); launch; land -1; then find(1, 2) == 2
what-was-not-there-is-computed below=yes
    # the store said that it had it
    put 0 1; then fetch(1); launch; land -1 ok=no; then find(1) == 0 and not fetch(1) and rests()
hit-below-needs-its-state-too below=yes states=4
    # pages are fetched up to the last state that is there, here or below
    put 0 1 2 3 4; put 1 2; then fetch(1, 2, 3, 4, state=True); launch; land -1
    then ends(1, 1, 2, 3, 4) == [2] and find(1, 2, 3, 4) == 2 and not fetch(1, 2, 3, 4, state=True)
pages-without-their-state-stay-below below=yes states=4
    put 0 1 2; then not fetch(1, 2, state=True) and host.dispatch(0.0) == [] and rests()
what-is-stored-goes-below below=yes
    # in the step after it has landed, each page once
    stored 1 2; then host.begin_step() is None; launch; then len(jobs) == 2; land -1
    then host.begin_step() is None and host.dispatch(0.0) == [] and kept() == ["page 1", "page 2"]
    then host.statistics_below()[0].demoted == 2
more-than-host-memory-is-not-fetched below=yes slots=2
    # each page would take the room of another one
    put 0 1 2 3; then not fetch(1, 2, 3) and rests(); then host.statistics_below()[0].no_room == 3
flush-leaves-what-is-below-behind below=yes
    # it may have been computed with other weights
    stored 1; put 0 1; then host.reset() is None; then not fetch(1); stored 1; then host.begin_step() is None; launch; land -1
    then host.begin_step() is None and kept() == kept("new") == ["page 1"]
""")


@pytest.mark.parametrize("scene", SCENES)
def test_linker_scene(scene: Scene) -> None:
    """Each keeps one promise of `LinkedHost`."""
    settings = scene.settings
    scene.play(Link(int(settings.get("slots", 8)), int(settings.get("states", 0)), bool(settings.get("below"))))


def test_long_text_is_fetched_as_far_as_copies_may_be_out() -> None:
    """What is left comes when the first part has; a store that has nothing of a text is asked for its beginning only."""
    link, names = Link(slots=400, below=True), range(1, 301)
    link.put(0, *names)
    found = []
    while link.fetch(*names):
        before = len(link.jobs)
        link.launch()
        link.land(*range(before, len(link.jobs)))
        found.append(link.find(*names))

    assert found == [256, 300]
    before = len(link.below[0].asked)
    assert not link.fetch(*range(1000, 1900))
    assert link.below[0].asked[before:] == [ASK_FIRST]


# --- the configuration --------------------------------------------------------------------------------------------------


def test_config_has_defaults_for_all_but_the_size() -> None:
    """A size is enough."""
    config = LinkerConfig.read({"host_bytes": "1.5KiB"})

    assert (config.host_bytes, config.policy, config.deadline_s, config.checking) == (1536, "arc", 60.0, Checking.COUNT)
    assert config.movers is None
    assert config.below is None
    assert config.num_slots([(7, 512)]) == [3]
    assert LinkerConfig.read({"host_pages": 5, "movers": USUAL.as_json()}).movers == USUAL
    below = LinkerConfig.read({"host_pages": 5, "below": "fs:x", "below_wait_s": 2, "below_demote": "lazy"}).policies_below
    assert (below.max_wait, below.demote, below.max_slots) == (2.0, Demote.LAZY, 4096)
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
    "policy": (
        {"host_pages": 1, "policy": "none"},
        f"policy must be one of {POLICIES}, or a name that was registered before",
    ),
    "movers": ({"host_pages": 1, "movers": []}, "linker_extra_config: movers must be an object with num_runs, run_bytes, load"),
    "deadline": ({"host_pages": 1, "deadline_s": 0}, "deadline_s must be a number of seconds above 0, not 0"),
    "below": ({"host_pages": 1, "below": "disk"}, "below must be the address of a store: fs:DIR, fs:DIR:BYTES, or another"),
    "stray": (
        {"host_pages": 1, "below_wait_s": 1},
        "'below_wait_s' needs a store below host memory (set below to its address)",
    ),
    "events": (
        {"host_pages": 1, "below": "fs:x", "below_told": 5},
        "'below_told' is no key of this linker (did you mean 'below_",
    ),
    "demote": (
        {"host_pages": 1, "below": "fs:x", "below_demote": "often"},
        "below_demote must be one of eager, lazy, never, not 'often'",
    ),
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
        LinkerConfig.read({"host_bytes": 100}).num_slots([(7, 512)])
    with pytest.raises(MisuseError, match=r"of which there can be 2147483648 at most \(give less\)"):
        LinkerConfig.read({"host_pages": 1 << 32}).num_slots([(7, 512)])


@pytest.mark.parametrize("version", ["0.5.20", "0.5.24", "1.5.23", "0.5.23rc1", "0.5.23.dev4+g1", "", "main"])
def test_linker_is_for_one_release(version: str) -> None:
    """SGLang has replaced the class of its cache within three releases."""
    for taken in ("0.5.23", "v0.5.23", "0.5.23.post1", "0.5.23+cu130"):
        versions.check_linked(taken)
    with pytest.raises(MisuseError, match=r"this linker supports SGLang 0.5.23 \(install it, or a blocklife for yours\)"):
        versions.check_linked(version)
