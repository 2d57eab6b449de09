"""Two owners of blocks: what a second one reads is not freed, handed out or overwritten, whatever becomes of the request.

Method: the worlds *two-owners* are explored (`test_worlds`), and rules that keep the second owner's blocks are taken away one
by one: the explorer has to find each, by the ledger's books, and without them by what the second owner reads.
"""

from __future__ import annotations

import pytest

from blocklife.core import _verbs as verbs
from blocklife.errors import MisuseError
from blocklife.ledger import Ledger
from blocklife.ledger.views import block_of
from blocklife.states import KEYED
from blocklife.testing import Bounds, Faults, Verdict, World, WorldSettings, explore, pinned_world
from blocklife.testing.worlds import _core_memo
from blocklife.testing.worlds import _second_owner as second
from blocklife.testing.worlds._engine import Engine, Settings
from tests.proof.mutants.planting import mutant_named, planted
from tests.worlds import keys, make_ledger, sealed

OWNERS = pytest.mark.parametrize("name", ["two-owners-fence", "two-owners-hold"])


def found(name: str) -> tuple[Verdict, set[str]]:
    """The verdict on a world, and the rules that are broken in it."""
    result = explore(World(pinned_world(name).settings), Bounds(max_states=6000), processes=1)
    return result.verdict, {each.rule for each in result.counterexamples}


def test_guest_holds_what_is_final_and_no_more() -> None:
    """The final blocks at the start of the tables; they outlive the request, and are free when they are given back."""
    ledger = make_ledger()
    blocks = [block_of(life) for life in sealed(ledger, "a", keys("k", "l")).lives]
    ledger.allocate("a", 1)
    free = ledger.blocks.free
    second.lend(ledger, "a", range(1))
    ledger.finish("a")
    held = [ledger.blocks.refs(block) for block in blocks]
    kept = ledger.blocks.free
    second.give_back(ledger, "a")

    assert held == [1, 1]
    assert kept == free + 1
    assert ledger.blocks.free == free + 3
    assert second.hosts(ledger.requests) == ()


def test_nothing_is_lent_of_a_request_without_final_content() -> None:
    """There is no guest that holds nothing."""
    ledger = make_ledger()
    ledger.allocate("a", 1)
    second.lend(ledger, "a", range(1))

    assert list(ledger.requests) == ["a"]


def test_second_owner_comes_only_where_the_ledger_has_room_for_it() -> None:
    """It is a request of the ledger, which refuses one too many."""
    settings = WorldSettings(engine=Settings(max_requests=2), requests=("a.bc", "a.bd"), faults=Faults(lend=1))
    seen = explore(World(settings), processes=1)

    assert seen.counterexamples == ()
    assert seen.verdict is Verdict.HOLDS


def test_nothing_is_forgotten_while_a_second_owner_reads() -> None:
    """A world in which all content can be forgotten has none."""
    for fault in ("reset", "drain", "renew", "sleep"):
        with pytest.raises(MisuseError, match="nothing can be forgotten while a second owner reads it"):
            WorldSettings(faults=Faults(lend=1, **{fault: 1}))


def _unheld(ledger: Ledger, name: str, groups: object) -> None:
    """The second owner reads, and holds nothing."""
    guest = second.guest_of(name)
    lives = list(ledger.requests.table(name, 0))[:1]
    if lives and ledger.blocks.of(lives[0]) in KEYED:
        ledger.add_request(guest)
        ledger.acquire(guest, lives, 0)
        ledger.admit(guest)
        ledger._state.core.blocks.refs[block_of(lives[0])] -= 1


def _unnoticed(ledger: Ledger, name: str) -> None:
    """It gives back what it has not held, which the ledger would refuse."""
    guest = second.guest_of(name)
    requests = ledger._state.core.requests
    requests.clear(requests.find(guest) * ledger.limits.num_groups)
    ledger.finish(guest)


@OWNERS
def test_blocks_that_are_read_and_not_held_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the ledger's books; and where nobody keeps books, by bytes that are gone under the reader."""
    monkeypatch.setattr(second, "lend", _unheld)
    by_books = found(name)
    monkeypatch.setattr(_core_memo, "check", lambda _ledger: [])
    monkeypatch.setattr(second, "give_back", _unnoticed)
    by_bytes = found(name)

    assert by_books == (Verdict.VIOLATED, {"I4"})
    assert by_bytes[0] is Verdict.VIOLATED
    assert "I4" not in by_bytes[1]


@OWNERS
def test_a_life_that_ends_with_its_request_is_found(name: str) -> None:
    """Whoever lets go last ends the life, not whoever computed it."""
    with planted(mutant_named("block.release from SEALED to SEALED without held")):
        verdict, rules = found(name)

    assert verdict is Verdict.VIOLATED
    assert rules


@OWNERS
def test_blocks_that_are_given_back_twice_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second owner that does not know what it has given back."""

    def twice(self: Engine, host: str) -> None:
        lives = list(self.ledger.requests.table(second.guest_of(host), 0))
        second.give_back(self.ledger, host)
        verbs.release_lives(self.ledger._state.core, lives)

    monkeypatch.setattr(Engine, "give_back", twice)

    assert found(name)[0] is Verdict.VIOLATED
