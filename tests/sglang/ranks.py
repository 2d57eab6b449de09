"""Several ranks in one process: each runs in a thread of its own, one at a time, until all meet in a collective.

Who runs is passed on in the order of the ranks, so that one seed is one run. A rank that ends its step while others wait for it
in a collective has parted from them: on real hardware they would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from attrs import define, field

from tests.programs import HANGS_S

_ORIGINAL: dict[str, Callable[..., object]] = {}


class PartedError(Exception):
    """Ranks do not meet: one has ended its step, or is in another collective, while others wait."""


class _Abandoned(BaseException):
    """Another rank has failed; this one cannot go on."""


@define(eq=False)
class Team:
    """What SGLang takes for a process group."""

    size: int
    reductions: int = 0
    """Collectives in which all have met."""
    _condition: threading.Condition = field(factory=threading.Condition)
    _turn: int = 0
    _states: list[str] = field(factory=list)
    _given: dict[int, tuple[str, torch.Tensor]] = field(factory=dict)
    _failed: BaseException | None = None
    _loose: list[tuple[str, torch.Tensor]] = field(factory=list)
    _round: int = 0

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Let each rank do its work; the first failure of any is raised."""
        if self.size == 1:
            works[0]()
            return
        self._turn, self._failed = 0, None
        self._states = ["ready"] * self.size
        self._given.clear()
        threads = [threading.Thread(target=self._body, args=(rank, work)) for rank, work in enumerate(works)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed is not None:
            raise self._failed

    def _body(self, rank: int, work: Callable[[], None]) -> None:
        _HERE.place = (self, rank)
        try:
            self._await_turn(rank)
            work()
        except _Abandoned:
            pass
        except BaseException as error:
            with self._condition:
                self._failed = self._failed or error
                self._condition.notify_all()
        finally:
            with self._condition:
                self._states[rank] = "done"
                self._pass_on()

    def _await_turn(self, rank: int) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._failed is not None or self._turn == rank)
            if self._failed is not None:
                raise _Abandoned

    def _pass_on(self) -> None:
        """Give the turn to the next who can use it. The condition is held."""
        if "ready" not in self._states and "waiting" in self._states:
            names = {name for name, _ in self._given.values()}
            if "done" in self._states or len(names) > 1:
                states = [
                    self._given[rank][0] if state == "waiting" else "at the end" for rank, state in enumerate(self._states)
                ]
                self._failed = self._failed or PartedError(f"ranks are in {states}")
            else:
                _combine([self._given[rank] for rank in range(self.size)])
                self.reductions += 1
                self._given.clear()
                self._states = ["ready"] * self.size
        if "ready" in self._states:
            self._turn = self._states.index("ready")
        self._condition.notify_all()

    def reduce(self, name: str, tensor: torch.Tensor) -> None:
        """Meet the other ranks; the tensor of each then holds what was made of all."""
        if self.size == 1:
            return
        team, rank = getattr(_HERE, "place", (None, 0))
        if team is None:
            self._reduce_loosely(name, tensor)
            return
        turns: Team = team
        with turns._condition:
            turns._given[rank] = (name, tensor)
            turns._states[rank] = "waiting"
            turns._pass_on()
        turns._await_turn(rank)

    def _reduce_loosely(self, name: str, tensor: torch.Tensor) -> None:
        """The same for threads of SGLang's own, which take no turns."""
        with self._condition:
            round_ = self._round
            self._loose.append((name, tensor))
            if len(self._loose) == self.size:
                _combine(self._loose)
                self._loose.clear()
                self._round += 1
                self._condition.notify_all()
            else:
                self._condition.wait_for(lambda: self._round != round_, timeout=HANGS_S)


def _combine(given: Sequence[tuple[str, torch.Tensor]]) -> None:
    name = given[0][0]
    stacked = torch.stack([tensor for _, tensor in given])
    made: dict[str, Callable[[int], torch.Tensor]] = {"min": stacked.amin, "max": stacked.amax, "sum": stacked.sum}
    result = made[name](0)
    for _, tensor in given:
        tensor.copy_(result)


_HERE = threading.local()


def _all_reduce(tensor: torch.Tensor, op: object = None, group: object = None, async_op: bool = False) -> object:
    if not isinstance(group, Team):
        return _ORIGINAL["all_reduce"](tensor, op=op, group=group, async_op=async_op)
    group.reduce(str(op).rpartition(".")[2].lower() if op is not None else "sum", tensor)
    return None


def _answering(name: str, answer: Callable[[Team], object]) -> Callable[..., object]:
    def asked(*args: object, **kwargs: object) -> object:
        teams = [each for each in (*args, *kwargs.values()) if isinstance(each, Team)]
        return answer(teams[0]) if teams else _ORIGINAL[name](*args, **kwargs)

    return asked


def _new_group(ranks: Sequence[int] | None = None, **kwargs: object) -> object:
    return Team(len(ranks or [0]))


def installed() -> None:
    """Let torch's collectives take a team for a process group; what is no team goes where it went before."""
    if _ORIGINAL:
        return
    place = torch.distributed
    replaced: dict[str, Callable[..., object]] = {
        "all_reduce": _all_reduce,
        "get_world_size": _answering("get_world_size", lambda team: team.size),
        "get_rank": _answering("get_rank", lambda team: getattr(_HERE, "place", (team, 0))[1]),
        "get_process_group_ranks": _answering("get_process_group_ranks", lambda team: list(range(team.size))),
        "get_backend": _answering("get_backend", lambda team: "gloo"),
        "barrier": _answering("barrier", lambda team: team.reduce("sum", torch.zeros(1))),
        "destroy_process_group": _answering("destroy_process_group", lambda team: None),
    }
    for name, function in replaced.items():
        _ORIGINAL[name] = getattr(place, name)
        setattr(place, name, function)
    _ORIGINAL["new_group"] = place.new_group
    setattr(place, "new_group", _new_group)  # noqa: B010
