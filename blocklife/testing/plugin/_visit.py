"""A test that goes through a `World` by hand: it takes named actions, and asks what holds.

Every action is judged as the explorer judges it. ``World`` here is that of `world`, with the real scheduler in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, fields_dict

from blocklife.errors import MisuseError
from blocklife.states import Request
from blocklife.testing.exploring._explore import Bounds, Exploration, explore
from blocklife.testing.exploring._story import tell
from blocklife.testing.exploring._walk import Guide, Walked, walk
from blocklife.testing.plugin._watched import refuse_unknown
from blocklife.testing.worlds._device import Landing
from blocklife.testing.worlds._engine import Settings
from blocklife.testing.worlds._world import Action, Faults, State, World, WorldSettings


class Visit:
    """A place in a world, and the way there.

    Invariant: ``path`` leads from the beginning to ``state``.
    """

    def __init__(self, settings: WorldSettings) -> None:
        self.settings = settings
        self.world = World(settings)
        self.state: State = self.world.initial()
        self.path: list[Action] = []
        self._guide = Guide(self.world)

    # --- going --------------------------------------------------------------------------------------------------------------

    @property
    def possible(self) -> list[str]:
        """Every action that can be taken now, as it is named."""
        return [str(each) for each in self.world.actions(self.state)]

    def take(self, *names: str) -> Visit:
        """Take actions by their names: ``arrive a``, ``step``, ``land 1@0``. Raises `Broken` where a rule does not hold."""
        for name in names:
            found = next((each for each in self.world.actions(self.state) if str(each) == name), None)
            if found is None:
                raise MisuseError(f"action {name}: it is not possible here (possible are {', '.join(self.possible) or 'none'})")
            self.path.append(found)
            self.state = self.world.step(self.state, found)
        return self

    def drain(self) -> Visit:
        """Take closing actions only, until no request and no copy is left. Raises `Broken` where that does not succeed."""
        turn = 0
        while (action := self._guide.next_closing(self.state, turn)) is not None:
            self.take(str(action))
            turn += 1
        return self

    # --- queries ------------------------------------------------------------------------------------------------------------

    @property
    def blocks(self) -> tuple[str, ...]:
        """The state of each block, in an order of the world's own; the null block comes first."""
        return self.world.core(self.state).blocks

    @property
    def slots(self) -> tuple[str, ...]:
        """The state of each slot, likewise."""
        return self.world.core(self.state).slots

    @property
    def requests(self) -> Mapping[str, Request]:
        """The requests, with their states."""
        return dict(self.world.core(self.state).requests)

    @property
    def running(self) -> list[tuple[int, int]]:
        """Copies that run: job and worker."""
        return [(job, worker) for job, worker, _ in self.world.running(self.state)]

    @property
    def reports(self) -> tuple[Landing, ...]:
        """Reports of copies that the scheduler has not got yet."""
        return self.state.env.inbox

    def told(self) -> str:
        """The story of the way here."""
        return str(tell(self.settings, self.path))

    # --- all of it ----------------------------------------------------------------------------------------------------------

    def explore(self, bounds: Bounds | None = None) -> Exploration[Action]:
        """Visit every state of the whole world."""
        return explore(self.world, bounds or Bounds())

    def walk(self, steps: int, seed: int = 0) -> Walked:
        """Walk through it at random."""
        return walk(self.settings, steps=steps, seed=seed)


def make_visit(*requests: str, faults: Mapping[str, int] | None = None, engine: Settings | None = None) -> Visit:
    """A visit to a world of these requests (``prompt.output``) and faults."""
    if not all(isinstance(each, str) for each in requests):
        raise MisuseError("blocklife_world: each request is a text of its own (write blocklife_world('ab.c', 'ab.d'))")
    refuse_unknown("blocklife_world: faults", faults or {}, fields_dict(Faults))
    settings = WorldSettings(engine=engine or Settings(), faults=Faults(**(faults or {})))
    return Visit(evolve(settings, requests=requests) if requests else settings)
