"""The settings of a world: its engine, its requests, and its faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from string import ascii_lowercase

from attrs import field, frozen

from blocklife.errors import MisuseError
from blocklife.groups import Group
from blocklife.offload import Demote, FullAttention, LocalAttention, Mamba, Mode
from blocklife.testing.worlds._actions import FAULT_DOCS, Acts, Faults, faults_with
from blocklife.testing.worlds._engine import Settings

_SPARE, _KEEP = faults_with(Acts.SPARES), faults_with(Acts.KEEPS)


@frozen
class Script:
    """The text of one request, prompt and output. Written ``prompt.output``, for example ``ab.c``."""

    name: str
    text: str
    prompt: int

    @classmethod
    def parse(cls, name: str, written: str) -> Script:
        """Read ``prompt.output``."""
        prompt, dot, output = written.partition(".")
        if not dot or not all(part.isascii() and part.isalnum() for part in (prompt, output)):
            raise MisuseError(f"request {written!r}: write prompt and output as letters, for example ab.c")
        return cls(name, prompt + output, len(prompt))

    def blocks(self, group: Group, engine: Settings, *, again: bool) -> int:
        """The most blocks of one group that it can hold at once; *again*: it may be preempted and recompute all known tokens.

        The last token is never computed. Blocks that leave a window are released when the step that moved it has settled.
        """
        last, size, ahead, drafts = len(self.text) - 1, group.block_tokens, engine.asynchronous, engine.drafts
        if isinstance(group, FullAttention):
            return -(-last // size)
        if isinstance(group, Mamba):
            return min(-(-last // size), 2 + ahead + drafts)
        most = 0
        for known in range(self.prompt, last + 1 if again else self.prompt + 1):
            settled = begin = 0
            while begin < last:
                end = min(begin + (engine.step_tokens or known + drafts), max(known, begin + 1) + drafts, last)
                if isinstance(group, LocalAttention):
                    left = settled // group.part_tokens * group.part_tokens
                else:
                    left = max(0, settled - group.window_tokens + 1)
                most = max(most, -(-end // size) - left // size)
                settled, begin = begin if ahead else end, end
        return most


def _scripts(written: Iterable[str | Script]) -> tuple[Script, ...]:
    found = list(written)
    if not 1 <= len(found) <= len(ascii_lowercase):
        raise MisuseError(f"a world has 1 to {len(ascii_lowercase)} requests, not {len(found)}")
    named = zip(found, ascii_lowercase[: len(found)], strict=True)
    return tuple(each if isinstance(each, Script) else Script.parse(name, each) for each, name in named)


def _nobody_gives_way(engine: Settings) -> bool:
    """Whether no request may be preempted, because it has a drafter."""
    return engine.drafts > 0 and any(engine.geometry.drafters)


def rooms(requests: Iterable[Script], engine: Settings, *, again: bool) -> Iterator[tuple[Script, int]]:
    """Each request, and how many blocks it may need, together with those before it where nobody gives way; *again*: see
    `Script.blocks`."""
    sizes: list[int] = []
    for script in requests:
        sizes.append(sum([script.blocks(group, engine, again=again) for group in engine.geometry.groups]))
        yield script, sum(sorted(sizes)[-engine.max_requests :]) if _nobody_gives_way(engine) else sizes[-1]


@frozen(kw_only=True)
class WorldSettings:
    """A bounded world: the sizes and policies of its engine, its requests, and its faults."""

    engine: Settings = field(factory=Settings)
    requests: tuple[Script, ...] = field(default=("a.bc", "a.bd"), converter=_scripts)
    faults: Faults = field(factory=Faults)

    def __attrs_post_init__(self) -> None:
        if self.faults.lose_worker and self.engine.num_workers < 2:
            raise MisuseError("faults: a worker can be lost only where there are two (num_workers)")
        kinds = self.faults.kinds
        if self.faults.lend and kinds & faults_with(Acts.FORGETS):
            raise MisuseError("faults: nothing can be forgotten while a second owner reads it (leave out lend, or the others)")
        of_store = faults_with(Acts.OF_STORE)
        if self.engine.below is None and kinds & of_store:
            raise MisuseError(f"faults: {', '.join(sorted(of_store))}: there is no store below to have them (below)")
        again = len(self.requests) > 1 or not kinds <= _SPARE & _KEEP
        resumes = [name for name in FAULT_DOCS if name in kinds - _SPARE]
        if _nobody_gives_way(self.engine) and resumes:
            raise MisuseError(
                f"faults: no request of a drafter may resume, as after {resumes[0]}: others share what it rewrites"
            )
        for script, needed in rooms(self.requests, self.engine, again=again):
            if needed > self.engine.num_blocks:
                raise MisuseError(
                    f"request {script.name}: {len(script.text)} letters need up to {needed} blocks, and there are "
                    f"{self.engine.num_blocks} (num_blocks)"
                )

    @property
    def roomy(self) -> bool:
        """Whether there is a slot for everything that can be computed, and no fault that loses content."""
        policies = self.engine.policies
        stored = policies.mode is Mode.EAGER and not policies.prompt_only and policies.max_store_blocks_beside is None
        if not stored or policies.max_load_tokens is not None or not self.faults.kinds <= _KEEP:
            return False
        chunks = [tokens * self.engine.blocks_per_chunk for tokens in self.engine.geometry.block_tokens]
        needed = sum(len(script.text) // each for script in self.requests for each in chunks)
        if self.engine.geometry.tail_tokens is not None:
            needed += len(self.requests) * len(chunks)
        return needed <= self.engine.num_slots

    @property
    def keeps_below(self) -> bool:
        """Whether everything that the host tier has goes to the store below, and nothing can keep it from there."""
        below = self.engine.below
        return below is not None and below.demote is Demote.EAGER and self.faults.kinds <= _KEEP

    @property
    def timed(self) -> bool:
        """Whether a job can stay out for ever, so that deadlines have to pass."""
        return bool(self.faults.hang or self.faults.lose)
