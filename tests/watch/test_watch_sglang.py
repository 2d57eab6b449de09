"""The watch over SGLang, without SGLang: what each rule finds, and what stays lawful.

Goal: each rule is broken once, by a script of a few calls, and named; the same calls in a lawful order are silent. Method:
fakes with SGLang's names that do what a script says (`tests.watch.script`); the tables are for an engine with pages alone, one
of two ranks, one with storage, and one whose layers keep states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from blocklife.engines.sglang.watch import Options, Watch, WatchError, WatchMode, attach
from tests.plays import play
from tests.watch.script import Case, cases
from tests.watch.sglang_fakes import FakeEngine, FakeStateEngine


class Stage:
    """An engine and the watch over it. What it does not say itself, the engine does."""

    def __init__(self, engine: FakeEngine, mode: WatchMode = WatchMode.LOG, *, jobs: bool = True) -> None:
        self.engine = engine
        self.options = Options(mode=mode, jobs=jobs)
        self.watch: Watch

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)

    def run(self, case: Case) -> None:
        """Play a case; the watch is there from the start, unless the case says when it comes."""
        if "attach" not in case.events:
            self.attach()
        case.play(self)
        self.engine.rest(1)
        assert self.watch.lost is None

    def attach(self) -> None:
        """The watch comes."""
        self.watch = attach(self.engine, self.options)

    def attach_to_the_tree(self) -> None:
        """The same over the tree alone."""
        self.watch = attach(self.engine.tree_cache, self.options)

    def silent(self) -> None:
        """Nothing has fallen so far."""
        assert self.watch.counts == {}

    def jobs(self, *counts: int) -> None:
        """So many copies have ended, in each memory."""
        assert tuple(mirror.counts["jobs"] for mirror in self.watch.mirrors) == counts
        assert not self.watch.mirror.counts["not followed"]

    def steps(self, count: int) -> None:
        """So many steps were seen."""
        assert self.watch.steps == count

    def unheld(self) -> None:
        """Nobody holds anything."""
        assert self.watch.mirror.holders.left_behind([]) == {}

    # --- other ranks

    def counted_by_no_other(self) -> None:
        """The device has ended all loads, and other ranks count none of them."""
        self.engine.reach()
        for ack in self.engine.controller.ack_load_queue:
            ack.finish_event.query = lambda: False

    def counted_by_all(self) -> None:
        """The other ranks have ended them, too."""
        for ack in self.engine.controller.ack_load_queue:
            del ack.finish_event.query

    # --- a text

    def kept_text(self) -> None:
        """A text is computed and kept in pages 1 to 4."""
        play(self, "take 1 2 3 4; compute a :16 [1,2,3,4]; keep :16 [1,2,3,4]")

    def on_host(self) -> None:
        """The same text is on the host, and nowhere else."""
        play(self, "kept_text; store [1,2,3,4] [0,1,2,3]; land; free 1 2 3 4")

    def loaded(self) -> None:
        """It is loaded, and read by a step that waits for it."""
        producer = self.engine.load([0, 1, 2, 3], [5, 6, 7, 8])
        play(self, f"take 9; compute b :17 [5,6,7,8,9] 16 waits={producer}")

    def served(self) -> None:
        """It has been loaded and read."""
        play(self, "on_host; loaded; land")

    def computed(self, count: int) -> None:
        """So many pages of it are computed and kept."""
        for page in range(1, count + 1):
            self.engine.take(page)
        pages = ",".join(map(str, range(1, count + 1)))
        play(self, f"compute a :{4 * count} [{pages}]; keep :{4 * count} [{pages}]")

    def lost_page(self) -> None:
        """A read of storage is given up when half of it has come: host page 2 is neither kept nor freed."""
        play(self, "ask_storage a :16 0; refill a :8 [0,1]; take_host 2 3; free_host 3")

    # --- how layers wait

    def layers_wait(self, how: str) -> None:
        """For which layer each one waits."""
        self.engine.pool.waits_for = WAITS[how]

    def another_load(self) -> None:
        """The counter of layers has them wait for the load before."""
        counter = self.engine.controller.layer_done_counter
        wait = lambda layer: counter.events[(counter.consumer_index - 1) % 3].wait(layer)  # noqa: E731
        vars(counter)["wait_until"] = wait

    def never_told_to_wait(self) -> None:
        """Nobody tells the device which load a step waits for."""
        vars(self.engine.controller.layer_done_counter)["set_consumer"] = lambda index: None

    def ask_no_rank(self) -> None:
        """Checks leave the other ranks out."""
        self.engine.tree_cache.asks = False

    def available(self, tokens: int) -> None:
        """The allocator counts so many tokens that it can hand out."""
        vars(self.engine.allocator)["available_size"] = lambda: tokens

    def taken_before(self, pages: int, host: int) -> None:
        """So many pages were handed out before the watch."""
        self.engine.allocator.free_pages = self.engine.allocator.free_pages[pages:]
        self.engine.host.free_slots = self.engine.host.free_slots[4 * host :]

    # --- a state

    def begun(self, name: str = "a", slot: int = 1) -> None:
        """A request has computed eight tokens; its state is in this slot."""
        play(self, f"take_states {slot}; plan_state {name} :8 {slot}; clear_states {slot}; launch; result")

    def cached(self) -> None:
        """The state behind eight tokens is in slot 2, which the tree has."""
        play(self, "begun; take_states 2; copy_state 1 2; keep_state :8 2")

    def evicted(self) -> None:
        """The same state is in slot 0 of the host, and nowhere else."""
        play(self, "cached; store_state 2 0; land; free_states 1 2")


WAITS: Mapping[str, Callable[[int], int | None]] = {
    "its-own": lambda layer: layer,
    "first": lambda layer: 0,
    "last": lambda layer: 1,
    "before": lambda layer: layer - 1,
    "behind": lambda layer: layer + 1,
    "nothing": lambda layer: None,
    "only-first": lambda layer: None if layer else 0,
}

PAGES = cases("""
life silent
    served; free 5 6 7 8 9; free_host 0 1 2 3; rest; reset; jobs 2; steps 2

# --- I1, I2
handed-out-while-stored I1+I1 writes block 1 // handed out to step 2 while job 1 reads it
    take 1; compute a :4 [1]; store [1] [0]; free 1; take 1; compute b 4:8 [1]
stored-into-free-slots I1
    take 1; compute a :4 [1]; store [1] [0]; free_host 0
block-of-another-text-is-written-over I1 writes block 2
    # the same text may come again
    kept_text; compute a :16 [1,2,3,4] 12; silent; take 5; compute b 4:9 [5,2]
stored-without-order I2
    unorder write; take 1; step a :4 [1]; store [1] [0]
loaded-without-order I2
    unorder load; served; step b :18 [5,6,7,8,9] 17; free 9; load [0] [9]
fence-on-another-stream I2
    fence no; take 1 2 3 4; step a :16 [1,2,3,4]; store [1,2,3,4] [0,1,2,3]
fence-on-the-stream-of-the-steps silent
    fence yes; take 1 2 3 4; step a :16 [1,2,3,4]; store [1,2,3,4] [0,1,2,3]

# --- I4
freed-twice I4
    take 1; free 1; free 1
freed-twice-on-the-host I4
    take_host 0; free_host 0; free_host 0
handed-out-twice I4
    take 1; take 1
handed-out-from-nowhere I4
    # page 0 is for what nobody reads
    take 0
kept-although-free I4
    keep :4 [1]
lock-released-too-often I4
    lock 5; lock 5; unlock 5; unlock 5; silent; unlock 5
lock-from-before-the-watch silent
    taken_before 1 0; attach; unlock 5
lock-of-other-memory I4
    # a request may give up the lock on its cached state ahead of that on its pages; a lock may be taken without it
    lock 5; unlock 5 skips=FULL; unlock 5 skips=SWA; silent; lock 5 skips=FULL; unlock 5 skips=SWA
host-lock-released-too-often I4+I12
    # a lock that leaks somewhere else does not make up for it
    lock_host 3; unlock_host 4; rest

# --- I5
queued-for-ever I5
    served; queue_load [0] [10]; rest
landed-unnoticed I5
    take 1; compute a :4 [1]; store [1] [0]; reach; rest 32

# --- I6
read-before-it-is-loaded I6+I6+I6+I6 while its load, job 3, is out
    served; load [0,1,2,3] [10,11,12,13]; take 14; compute c :17 [10,11,12,13,14] 16
read-before-the-load-is-launched I6+I1 whose load, job 3, is not launched
    served; queue_load [0] [10]; compute c :6 [10,9] 4
not-told-to-wait I6
    never_told_to_wait; served
read-somebody-else I6
    take 1; compute a :4 [1]; take 2; compute b 4:10 [1,2] 4
reused-under-a-reader I6
    # a request that has read a page reads it again
    take 1 2; compute a :4 [1]; compute a :5 [1,2] 4; free 1; take 1; compute b 4:8 [1]; compute a :6 [1,2] 5
read-what-is-free I6
    take 1 2; compute a :4 [1]; free 1; compute a :5 [1,2] 4
stored-before-it-is-computed I6
    take 1; store [1] [0]
stored-in-part I6
    take 1; compute a :3 [1]; store [1] [0]
loaded-before-it-is-stored I6+I6
    take 1; compute a :4 [1]; store [1] [0]; load [0] [2]
landed-too-early I6
    take 1; compute a :4 [1]; store [1] [0]; take_for_landed
store-of-the-null-block I6
    kept_text; store [0,2] [0,1]; land

# --- I6: what layers wait for
one-layer-waits-for-nothing I6 layer 1 of a step reads, and has not waited for its part of the load, job 3
    served; free 5 6 7 8 9; layers_wait only-first; loaded
all-layers-wait-for-the-first I6 layer 1 of a step
    served; free 5 6 7 8 9; layers_wait first; loaded
each-layer-waits-for-the-one-before I6 layer 0 of a step
    served; free 5 6 7 8 9; layers_wait before; loaded
no-layer-waits I6 layer 0 of a step
    served; free 5 6 7 8 9; layers_wait nothing; loaded
layers-wait-for-another-load I6
    served; free 5 6 7 8 9; another_load; loaded
all-layers-wait-for-the-last silent
    served; free 5 6 7 8 9; layers_wait last; loaded
each-layer-waits-for-one-further silent
    # a load is launched layer by layer, so who has waited for a later layer has waited for the earlier ones
    served; free 5 6 7 8 9; layers_wait behind; loaded
load-that-has-landed-needs-no-wait silent
    served; free 5 6 7 8 9; load [0,1,2,3] [5,6,7,8]; land; take 9; layers_wait nothing; compute b :17 [5,6,7,8,9] 16 waits=1

# --- I7, I8
freed-while-loaded I7
    served; load [0] [10]; free_host 0
loaded-from-free-slots I7
    # the eviction for a load has freed the host pages that it will read
    served; free_host 0; load [0] [10]
reused-while-queued I7
    take 1; compute a :4 [1]; queue_store [1] [0]; free 1; launch_stores
load-without-a-page I7 moves other places
    on_host; bend cut; load [0,1,2,3] [5,6,7,8]
load-to-the-next-page I7 moves other places
    on_host; bend turned; load [0,1,2,3] [5,6,7,8]
load-that-tears-a-page I7 moves other places
    on_host; bend torn; load [0,1,2,3] [5,6,7,8]
load-that-tears-a-host-page I7 moves other places
    on_host; bend torn-host; load [0,1,2,3] [5,6,7,8]
kept-under-another-key I8
    take 1; compute a :4 [1]; keep 4:8 [1]
kept-for-another-tenant I8
    take 1; compute a :4 [1]; keep :4 [1] extra_key=another
store-without-a-page I8 moves other places
    kept_text; bend cut; store [1,2,3,4] [0,1,2,3]
store-to-the-next-page I8 moves other places
    kept_text; bend turned; store [1,2,3,4] [0,1,2,3]
store-that-tears-a-page I8 moves other places
    kept_text; bend torn; store [1,2,3,4] [0,1,2,3]
store-that-tears-a-host-page I8 moves other places
    kept_text; bend torn-host; store [1,2,3,4] [0,1,2,3]
store-in-another-order silent
    # several operations are launched as one copy, sorted by host page; tokens in any order, each to its own place
    kept_text; bend backwards; queue_store [1,2] [9,8]; queue_store [3,4] [3,5]; launch_stores
launch-of-nothing silent
    launch_stores; kept_text; launch_stores; rest 1
store-of-more-than-there-is-room I15
    kept_text; bend longer; store [1,2,3,4] [0,1,2,3]
store-to-more-than-there-is I15
    kept_text; bend longer-host; store [1,2,3,4] [0,1,2,3]

# --- I10, I12, I13
reset-in-the-middle I10
    take 1; step a :4 [1]; reset
locked-for-ever I12
    take 1; at_rest 0 4; rest
host-locked-for-ever I12 host memory is locked 1 times
    # nothing that is written out explains it
    lock_host 3; backs_up yes; rest; silent; backs_up no; rest; unlock_host 3; rest
host-locks-from-before-the-watch-hide-none I12 host memory is locked 1 times
    taken_before 0 1; attach; unlock_host 3; unlock_host 3; unlock_host 3; rest; silent; lock_host 4; rest
deadlocked I12
    wait a; rest 64
lost-for-ever I13
    # it is not repeated while it lasts
    take 1 2; at_rest 4; rest 20
lost-again I13+I13
    # it is told again if it comes back behind a step
    take 1 2; at_rest 4; rest 20; take 3; compute a :4 [3]; rest
evicted-and-not-freed I13+I13 block 4 was // slot 2 was
    kept_text; store [1,2,3,4] [0,1,2,3]; land; give_up device=[3,4]; free 3; give_up host=[2,3]; free_host 3; silent
    take 9; compute b 4:6 [9]
evicted-and-freed silent
    # or all is forgotten
    kept_text; give_up device=[3,4]; free 3 4; give_up device=[1]; reset; clear
host-memory-behind-a-reset I13 2 slots
    kept_text; store [1,2] [0,1]; land; reset
allocator-counts-less I13
    available 64; rest; silent; available 60; rest

# --- what is lawful
text-that-grows silent
    # a page that is filled token by token is kept under the key of all of them; so is one whose last token came late
    take 1; compute a :1 [1]; compute a :2 [1] 1; compute a :3 [1] 2; step a :3 [1] 2; says a 103; compute a :4 [1] 3
    keep :4 [1]
load-is-waited-for-once I1
    # later steps need no wait of their own (page 12 is free, which is named)
    served; load [0,1] [10,11]; compute c :9 [10,11,12] 8 waits=1; take 13; compute d :9 [10,11,13] 8
page-freed-as-a-duplicate-is-named-once-more silent
    # what lies ahead of the first new token is in the tree already, whatever page the caller names for it
    take 1 2; compute a :8 [1,2]; free 1; keep :8 [1,2] known=4
watch-that-comes-late silent
    taken_before 2 1; attach; take 3; compute a :9 [1,2,3] 8; load [0] [4]; free 1 2
tree-alone I4
    # nothing is known of steps: memory and copies are followed, and content is believed
    attach_to_the_tree; take 1; store [1] [0]; land; silent; free 1; free 1
""")

OF_TWO_RANKS = cases("""
ranks-not-asked I9
    ask_no_rank; check
counted-by-one-rank I9
    take 1; compute a :4 [1]; store [1] [0]; reach; rest 256
load-of-one-rank-alone I9 job 2 is a load that ranks part in
    # the result of the step that has waited for it is here, so it has landed on all ranks that have made it
    on_host; loaded; counted_by_no_other; check; silent; check; check
load-whose-step-is-in-flight silent
    on_host; load [0,1] [5,6]; take 9; step b :9 [5,6,9] 8 waits=0; counted_by_no_other; check; check; check; result; check
load-that-is-counted-next-time silent
    on_host; loaded; counted_by_no_other; check; counted_by_all; check; check
""")

WITH_STORAGE = cases("""
behind-a-page-not-on-the-host I11 slot 2 is kept for position 2 of a text, and no slot has what stands ahead of it
    # storage was asked for all of the text; two pages of it were computed meanwhile, and only the first has a copy
    ask_storage b :16 0; computed 2; store [1] [5]; land; refill b :16 [0,1,2,3] 2
behind-a-page-on-the-host silent
    ask_storage b :16 0; computed 2; store [1,2] [5,6]; land; refill b :16 [0,1,2,3] 2
behind-a-page-on-its-way silent
    # the engine takes a copy for made
    ask_storage b :16 0; computed 2; store [1,2] [5,6]; refill b :16 [0,1,2,3] 2
behind-a-refill I11
    # what storage has brought has a name, by which the next part finds it, whatever has the name of the request
    ask_storage a :8 0; refill a :8 [0,1] form=rid; ask_storage b :16 8; refill b 8:12 [2] form=handle.rid; silent
    free_host 1; ask_storage c :8+[7,7,7,7] 8; refill c [7,7,7,7] [3] form=request_id
behind-a-page-of-another-tenant I11
    ask_storage a :8 0; refill a :8 [0,1]; ask_storage b :16 8 extra_key=another; refill b 8:12 [2]
dropped-by-the-tree silent
    ask_storage b :16 0; computed 2; refill b :16 [0,1,2,3] 2 host_insert_dropped=yes
gaps-of-an-engine-that-writes-back silent
    # it evicts from the end of a text to its beginning and copies each page then
    write_back; ask_storage b :16 0; computed 2; refill b :16 [0,1,2,3] 2
read-as-something-else I6+I6
    ask_storage a :8 0; refill a :8 [0,1]; load [1,0] [1,2]; take 3; compute b :9 [1,2,3] 8 waits=0
not-asked-for silent
    refill a 8:16 [0,1]; ask_storage b :16 8; refill b 8:12 [4]
other-tokens silent
    ask_storage a :16 8; refill a 4:12 [0,1]; ask_storage b :16 8; refill b 8:12 [4]
pairs-of-tokens silent
    ask_storage a :16 8; refill a 8:16 [0,1] pairs=yes; ask_storage b :16 8; refill b 8:12 [4]
asked-too-long-ago silent
    ask_storage a :16 8; ask_for_many 1024 :16 8; refill a 8:16 [0,1]; ask_storage b :16 8; refill b 8:12 [4]
nobody-has-taken-a-page I13 1 slots, 2 among them, are handed out, and neither the cache nor a copy has them
    # named once, when nothing is under way that could still give it back
    lost_page; rest 63; silent; rest 64
read-may-have-it silent
    lost_page; reads; rest 128
backup-may-have-it silent
    lost_page; backs_up yes; rest 128
queue-may-have-it silent
    lost_page; queue_release 2; rest 128
tree-takes-it-later silent
    lost_page; take_from_storage [7,7,7,7] [2]; rest 128
freed-later silent
    lost_page; free_host 2; rest 128
stored-into silent
    lost_page; take 9; compute b :4 [9]; store_to [9] [2]; land; free 9; rest 128
""")

STATES = cases("""
life silent
    evicted; take_states 4 5; load_state 0 4 5; plan_state b :9 5 8 waits=0; launch 0; result
    # the request is over, ahead of the engine's note that the load has landed
    free_states 5; take_states 5; land; copy_state 4 5; go_on c :9 5 8; go_on c :10 5 extends=no; free_states 5
    take_states 6; keep_state :8 6 had=yes; free_states 6; states_at_rest 1 7; free 1 2 3 4; rest
    free_states 4; free_host_states 0; reset; clear_memory_of_states; jobs 2 3

# --- I1, I2
handed-out-while-stored I1
    cached; store_state 2 0; free_states 2; begun b 2
written-while-loaded I1
    evicted; take_states 4; load_state 0 4; clear_states 4
written-while-cached I1
    # a request goes on in the slot of the cached state itself
    cached; go_on b :9 2 8
written-although-free I1
    begun; copy_state 1 2
stored-without-order I2
    begun; take_states 2; unorder write; plan_state a :9 1 extends=no; launch; plan_state a :10 1 extends=no kept=2
    launch; result; store_state 2 0

# --- I4, I5
freed-twice I4
    cached; free_states 2; free_states 2
kept-although-free I4
    begun; keep_state :8 2
queued-for-ever I5
    cached; queue_store_of_state 2 0; rest

# --- I6
not-cleared I6
    take_states 1; go_on a :8 1
cleared-only I6
    # a request goes on behind eight tokens from the state behind none
    cached; take_states 3; clear_states 3; go_on b :9 3 8
from-a-later-state I6
    # of the same text, but behind more tokens
    cached; go_on a :9 1 extends=no; go_on a :9 1 extends=no
from-another-text I6
    cached; take_states 3; copy_state 2 3; go_on b [7]+1:9 3 8
from-a-free-slot I6
    begun; free_states 1; go_on a :9 1 extends=no
one-layer-does-not-wait I6
    evicted; take_states 4 5; load_state 0 4 5; plan_state b :9 5 8 waits=0; launch 0 [1,2]; result
copied-before-it-is-loaded I6
    # sglang#36743
    evicted; take_states 4 5; load_state 0 4; plan_state b :9 5 8 waits=0; consume 0; copy_state 4 5
stored-with-nothing-in-it I6
    take_states 2; store_state 2 0
loaded-while-it-is-stored I6
    cached; store_state 2 0; take_states 4; load_state 0 4
kept-with-nothing-in-it I6
    begun; take_states 2; keep_state :8 2
kept-in-parts I6
    # the layers are told to keep a state whose parts are not behind the same tokens
    take_states 1 2; clear_states 1; go_on a :7 1 kept=2 reached=6; keep_state :4 2

# --- I7 to I14
freed-on-the-host-while-loaded I7
    # although a step has waited for the load
    evicted; take_states 4 5; load_state 0 4 5; go_on b :9 5 8 waits=0; free_host_states 0
load-of-another-slot I7
    evicted; take_states 4; bend next-host; load_state 0 4
kept-under-a-shorter-text I8
    begun; keep_state :4 1
store-of-another-slot I8
    cached; bend one-before; store_state 2 0
reset-with-a-step-in-flight I10
    begun; plan_state a :9 1 extends=no; launch; plan_state a :10 1 extends=no; reset
locked-at-rest I12
    cached; states_at_rest 0 7 1; free_states 1; rest
second-state-of-a-text-stays I13
    # the tree has this state already, and the other one is not freed ahead of the next step
    cached; keep_state :8 1 had=yes; take_states 3; plan_state b :9 3 8; copy_state 2 3; launch; result
evicted-and-not-freed I13
    cached; give_up device=[2] kind=MAMBA; go_on a :9 1 extends=no
lost-at-rest I13
    cached; states_at_rest 1 6; rest
stored-twice I14
    cached; store_state 2 0; store_state 2 1

# --- what is lawful
copy-that-waits-for-the-last-layer silent
    # behind a wait for all of the load: for the copy, and for the step
    evicted; take_states 4 5; load_state 0 4; plan_state b :9 5 8 waits=0; consume 0; wait_until 2; copy_state 4 5; result
states-that-a-step-keeps silent
    # of a prompt behind whole chunks, of an answer behind its last token; each is right under its own key
    take_states 1 2 3; clear_states 1; go_on a :6 1 kept=2 reached=5; keep_state :4 2; go_on a :7 1 extends=no
    go_on a :8 1 extends=no kept=3; keep_state :8 3
result-between-plan-and-launch silent
    # the slots of a request that ends there are of no interest
    begun; plan_state a :9 1 extends=no; launch; plan_state a :10 1 extends=no; launch; result
    plan_state a :11 1 extends=no; result_of a; free_states 1; launch
null-state silent
    # with slot 0 steps are tried out and padded
    cached; clear_states 0; copy_state 2 0
slots-by-other-names silent
    other_names 1 1; set_aside 5 6
""")

TABLES: Mapping[str, tuple[Mapping[str, Case], Callable[[], FakeEngine]]] = {
    "pages": (PAGES, FakeEngine),
    "ranks": (OF_TWO_RANKS, lambda: FakeEngine(ranks=2)),
    "storage": (WITH_STORAGE, lambda: FakeEngine(storage=True)),
    "states": (STATES, lambda: with_pages(FakeStateEngine())),
}
ALL = [(table, case) for table, (found, _) in TABLES.items() for case in found.values()]


def with_pages(engine: FakeStateEngine) -> FakeStateEngine:
    """An engine whose requests have pages already: what happens to these is of no interest."""
    engine.take(1, 2, 3, 4)
    engine.allocator.free_pages = engine.allocator.free_pages[4:]
    return engine


def named(each: object) -> str:
    """The name of a parameter."""
    return each.name if isinstance(each, Case) else str(each)


@pytest.mark.parametrize("jobs", [False, True], ids=["plain", "ledger"])
@pytest.mark.parametrize(("table", "case"), ALL, ids=named)
def test_rule_falls_or_is_silent(table: str, case: Case, jobs: bool) -> None:
    """As the table says, with a ledger and without; of states, as far as their own memory is meant."""
    stage = Stage(TABLES[table][1](), jobs=jobs)
    stage.run(case)

    if table == "states":
        assert sorted(rule for rule in stage.watch.mirrors[1].counts if rule.startswith("I")) == case.rules
    else:
        case.check([(each.rule, each.what) for each in stage.watch.violations])


@pytest.mark.parametrize(("table", "case"), [each for each in ALL if each[1].rules], ids=named)
def test_strict_watch_raises_at_the_fault(table: str, case: Case) -> None:
    """The call that breaks the rule, or the step that it belongs to, raises with the story."""
    with pytest.raises(WatchError, match="rule: ") as raised:
        Stage(TABLES[table][1](), WatchMode.STRICT).run(case)

    assert table == "states" or raised.value.violation.rule == case.rules[0]


def test_tables_break_every_rule_that_the_watch_can_find() -> None:
    """All but I3, which no ear can hear."""
    assert {rule for _, case in ALL for rule in case.rules} == {f"I{number}" for number in range(1, 16) if number not in (3,)}
