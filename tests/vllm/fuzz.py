"""``python -m tests.vllm.run --python VERSION -m tests.vllm.fuzz``: random traffic with every feature switched at random.

Each seed draws an engine (its model, its scheduler, how its workers share the work, what it guesses, who else moves blocks,
what is below the host), the connector's options, what fails, and what clients and operators do. Every byte is compared when
it is read, all invariants hold after every step, and nothing may be left when the engine is idle. What the connector refuses
at the start is counted by its reason. Exit status 1 if a run was not clean, or if with some feature no run moved a block.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from random import Random

import pytest
from attrs import asdict, define, evolve, field, frozen

from tests.programs import importing, natural, positive, stoppable, with_fixed_hashes
from tests.vllm.below_rig import PACE_S
from tests.vllm.mend_copies import mend_copies
from tests.vllm.worlds import GroupSpec, Kind, Lag, WorldSpec

with importing("tests.vllm.fuzz", __name__):
    from vllm.config import VllmConfig
    from vllm.v1.request import RequestStatus

    from blocklife.errors import MisuseError
    from blocklife.ledger import Direction
    from blocklife.tiers import StoreFaultRates
    from tests.vllm.beside_rig import BesideRig
    from tests.vllm.connector_rig import ConnectorRig, with_guesses
    from tests.vllm.engine import MINOR, RELEASE
    from tests.vllm.faulty import ADDRESS, faulty
    from tests.vllm.listeners import DESCRIBING, send_events
    from tests.vllm.naps import nap
    from tests.vllm.parallel_rig import Parallel, ParallelRig
    from tests.vllm.second import Habits
    from tests.vllm.traffic import longest_text

REQUESTS = 40
LIMITS = ("max_offload_tokens", "max_load_tokens")
BUDGETS = ("1GiB", 96)
"""Bytes that a step may load before its forward pass: of every hit, or of twelve tokens in one group."""
STEPS = 10_000
"""An engine that is not idle after so many steps stands still."""
MANY = 500
"""Of so many runs each feature is to have moved bytes in one at least."""
EVERY = 50
"""Runs between two lines of progress."""


# --- what is drawn --------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Case:
    """All that one run is made of; the same for the same seed."""

    seed: int
    spec: WorldSpec
    fails: Mapping[Direction, float]
    recompute: bool
    depth: int | None
    """Steps that are with the workers at once, as with pipeline stages; None: as asynchronous scheduling says."""
    guesses: str | None
    """How the engine guesses tokens; None: it does not."""
    second: Habits | None
    """What a second connector does."""
    first: bool
    parallel: Parallel
    below: StoreFaultRates | None
    """The faults of a store below the host; None: there is none."""
    second_runner: bool
    events: bool
    sessions: bool
    naps: bool
    salts: bool
    hurried: bool
    """Whether some requests are let in without a lookup."""
    spare_requests: int
    limits: bool = False
    """Whether some requests say how much of them may be stored and loaded."""

    @property
    def features(self) -> tuple[str, ...]:
        """The names of what is switched on."""
        spec, extra = self.spec, self.spec.extra_config
        kinds = {group.kind for group in spec.groups}
        on: dict[str, object] = {
            "several groups": len(spec.groups) > 1,
            "groups in another order": tuple(group.kind for group in spec.groups) in ORDERS,
            "windows": "swa" in kinds,
            "states": "mamba" in kinds,
            "local attention": "local" in kinds,
            "latents": "latents" in kinds,
            "windows over latents": "recent" in kinds,
            "rings": "ring" in kinds,
            "replays": "replay" in kinds,
            "a producer or a consumer": spec.role != "kv_both",
            "blocks of several sizes": len({group.block_tokens for group in spec.groups}) > 1,
            "chunks": spec.blocks_per_chunk > 1,
            "hits inside blocks": spec.hash_tokens,
            "asynchronous": spec.async_scheduling,
            "two workers": spec.world_size > 1,
            "no prefix caching": not spec.prefix_caching,
            "dense retention": spec.dense_retention,
            "priority": spec.priority,
            "parts of prompts": spec.part_tokens,
            "failing copies": self.fails,
            "failed loads fail requests": self.fails and not self.recompute,
            "pipeline": self.depth,
            "guesses": self.guesses,
            "guesses beside states": self.guesses and "mamba" in kinds,
            "guesses, asynchronous": self.guesses and spec.async_scheduling,
            "drafter": any(group.drafter for group in spec.groups),
            "second connector": self.second,
            "second connector, within steps": self.second is not None and self.second.within > 0,
            "second connector that fails": self.second is not None and self.second.fails > 0,
            "context parallelism": self.parallel.decode > 1 or self.parallel.prefill > 1,
            "stages without a group": self.parallel.lacking,
            "store below": self.below is not None,
            "store below with faults": self.below is not None and self.below.fail > 0,
            "second runner": self.second_runner,
            "events": self.events,
            "sessions": self.sessions,
            "sleep": self.naps,
            "sleep that forgets": self.naps and not extra.get("sleep_keeps_host"),
            "sleep beside a second connector": self.naps and self.second is not None,
            "limits of requests": self.limits,
            "tight": spec.host_blocks < 20,
            "salts": self.salts,
            "no lookup": self.hurried,
            "few spare requests": self.spare_requests < 100,
        }
        options = {f"{key}={value}" if isinstance(value, str) else key for key, value in extra.items() if key not in BELOW}
        return tuple(sorted({name for name, value in on.items() if value} | options))


BELOW = ("below", "below_wait_s", "self_describing_kv_events")
KINDS: Sequence[Sequence[Kind]] = (
    *(("full",), ("full",), ("swa",), ("full", "swa"), ("full", "mamba"), ("full", "swa", "mamba"), ("full", "swa", "swa")),
    ("full", "local"),
)
ORDERS: Sequence[Sequence[Kind]] = (
    *(("mamba",), ("mamba", "full"), ("full", "mamba", "mamba"), ("mamba", "full", "mamba"), ("mamba", "swa", "full")),
    *(("full", "swa", "mamba", "mamba"), ("swa", "full"), ("swa", "swa"), ("swa", "mamba"), ("full", "full")),
    ("local", "full"),
    *(("latents",), ("latents", "recent"), ("recent", "latents", "recent"), ("latents", "mamba"), ("full", "ring")),
    *(("ring", "latents"), ("latents", "ring", "recent"), ("full", "swa", "ring"), ("ring", "full", "mamba")),
    *(("latents", "replay"), ("replay", "latents", "ring"), ("ring", "latents", "latents", "replay")),
)
"""Groups as no model has had them yet: states or windows first, several of a kind, no full attention."""
CONTEXTS = (
    Parallel(decode=2),
    Parallel(decode=2, interleave=4),
    Parallel(decode=4, interleave=2),
    Parallel(prefill=2),
    Parallel(decode=2, prefill=2),
)
OPTIONS: Mapping[str, Sequence[object]] = {
    "policy": ("lru",),
    "mode": ("lazy",),
    "prompt_only": (True,),
    "partial_chunks": (True,),
    "last_step": ("flush",),
    "full_hit": ("recompute_last_token",),
    "max_job_blocks": (1, 4),
    "max_jobs": (3,),
    "max_store_tokens": (12, 30),
    "max_load_tokens": (8, 20),
    "max_load_failures": (0, 1),
}
"""The connector's options beside their defaults."""
TIGHT: Mapping[str, Sequence[object]] = {"max_jobs": (1, 2), "max_store_tokens": (0, 7), "max_load_tokens": (0, 5)}
TIGHT_BELOW: Mapping[str, Sequence[object]] = {
    "below_slots": (1, 2),
    "below_demote": ("never", "lazy", "eager"),
    "below_wait_s": (0.001,),
}
"""Values of which a run has several at once, the first ones with hardly any room on the host."""


def drawn(seed: int) -> Case:
    """The case of a seed. What vLLM itself does not take, or does wrong (specs/vllm-findings.md), is not drawn."""
    rng = Random(f"{seed}/case")

    def often(chance: float) -> bool:
        return rng.random() < chance

    parallel = rng.choice(CONTEXTS) if often(0.12) else Parallel()
    guesses = rng.choice(("ngram", "eagle", "mtp")) if often(0.3) and parallel.decode == 1 else None  # the rig has not both
    groups = (GroupSpec("full"),) if parallel.decode > 1 else _groups(rng, guesses)
    other = Random(f"{seed}/guesses")
    if MINOR >= 33 and guesses is not None and other.random() < 0.4:  # the connector refuses them before
        groups = _groups(other, guesses, [kinds for kinds in KINDS if "mamba" in kinds])
    states = any(group.kind == "mamba" for group in groups)
    if parallel == Parallel() and len(groups) == 2 and often(0.15):
        parallel = Parallel(lacking=rng.choice(({0: (1,)}, {1: (0,)}, {0: (1,), 1: (0,)}, {1: (0, 1)})))
    ahead = often(0.5) if guesses is None else other.random() < 0.5
    pipelined = guesses is None and often(0.15)
    within = groups == (GroupSpec("full"),) and not ahead and not pipelined  # what vLLM takes reports of failure of
    alone = parallel.decode > 1 or parallel.lacking or not often(0.2)
    second = None if alone else _habits(rng, within=within)
    extra: dict[str, object] = {key: rng.choice(values) for key, values in OPTIONS.items() if often(0.12)}
    if Random(f"{seed}/hasty").random() < 0.12:
        extra["pending_wait_s"] = 1e-9  # whoever is put off once is computed
    if "full_hit" in extra and any(group.kind != "full" for group in groups):
        del extra["full_hit"]
    below = StoreFaultRates() if often(0.2) else None
    if below is not None and often(0.5):
        below = StoreFaultRates(fail=0.05, slow=0.05, cut=0.05, flip=0.05, lose=0.05)
    if below is not None:
        extra |= {"below_demote": rng.choice(("eager", "lazy")), "below_wait_s": 0.2}
    events = MINOR >= 30 and often(0.3)
    if events and often(0.7):
        extra |= DESCRIBING
    # not both priorities and prompts that are computed in parts, as they are beside states: finding 1
    priority, sleeps = often(0.2) and not states, MINOR >= 33 and second is None and often(0.2)
    inside = MINOR >= 33 and states and Random(f"{seed}/inside").random() < 0.4
    if sleeps:
        extra["sleep_keeps_host"] = True
    spec = WorldSpec(
        groups,
        num_gpu_blocks=160 if states and second is not None else rng.choice((24, 30, 40, 60)) + 8 * (len(groups) - 1),
        host_blocks=rng.choice((20, 40, 80)),
        max_num_seqs=rng.choice((3, 6)),
        max_num_batched_tokens=rng.choice((16, 48, 64)),
        async_scheduling=ahead,
        world_size=max(2 if parallel.lacking else rng.choice((1, 1, 2)), parallel.decode * parallel.prefill),
        blocks_per_chunk=rng.choice((1, 1, 2, 3)),
        prefix_caching=not often(0.1),
        dense_retention=often(0.3),
        priority=priority,
        part_tokens=0 if priority or not often(0.2) else 8,
        lag=Lag(0, rng.choice((0, 2, 4, 8))),
        extra_config=extra,
        hash_tokens=2 if inside else None,
    )
    case = Case(
        seed=seed,
        spec=spec,
        fails={Direction.LOAD: 0.2, Direction.STORE: 0.15} if often(0.3) else {},
        recompute=often(0.7),
        depth=3 if pipelined else None,
        guesses=guesses,
        second=second,
        first=often(0.5),
        parallel=parallel,
        below=below,
        second_runner=MINOR >= 33 and often(0.15),
        events=events,
        # not where vLLM goes on from a wrong state, or, before 0.33, behind guesses that were cut off
        sessions=MINOR >= 32 and often(0.2) and not (states and (pipelined or guesses)) and (MINOR >= 33 or guesses is None),
        naps=sleeps,
        salts=often(0.3),
        hurried=often(0.15),
        spare_requests=rng.choice((1, 3)) if often(0.15) else 1000,
    )
    return _with_rarities(_with_budget(case, Random(f"{seed}/budget")), Random(f"{seed}/rarities"))


def _with_budget(case: Case, rng: Random) -> Case:
    """The same, or with loads within steps, where none of them fails: who runs behind such a load reads garbage."""
    if case.fails or rng.random() < 0.7:
        return case
    extra = {**case.spec.extra_config, "sync_load_budget_bytes": rng.choice(BUDGETS)}
    return evolve(case, spec=evolve(case.spec, extra_config=extra), recompute=False)


def _with_rarities(case: Case, rng: Random) -> Case:
    """The same, or with what hardly any engine has: other orders of groups, hardly any room, sleep in other circumstances."""
    plain = case.parallel.decode == 1 and not case.parallel.lacking
    if MINOR >= 33 and plain and rng.random() < 0.2:
        case = _with_other_groups(case, rng)
    spec, extra = case.spec, dict(case.spec.extra_config)
    if (role := Random(f"{case.seed}/role")).random() < 0.15:
        spec = evolve(spec, role=role.choice(("kv_producer", "kv_consumer")))
        if spec.role == "kv_producer":  # the connector refuses these, but for a role that it does not see
            extra.pop("sync_load_budget_bytes", None)
    if rng.random() < 0.15:
        extra |= {key: rng.choice(values) for key, values in TIGHT.items() if rng.random() < 0.5}
        spec = evolve(spec, host_blocks=max(spec.blocks_per_chunk, rng.choice((4, 9, 16))))
    if case.below is not None and rng.random() < 0.6:
        extra |= {key: rng.choice(values) for key, values in TIGHT_BELOW.items() if rng.random() < 0.5}
    if MINOR >= 33 and plain and rng.random() < 0.15:
        states = any(group.kind == "mamba" for group in spec.groups)
        second = case.second or (_habits(rng, within=False) if rng.random() < 0.5 else None)
        if second is not None:
            second = evolve(second, sends=0.0)  # vLLM raises where it is to sleep and somebody still sends
        extra = {key: value for key, value in extra.items() if key != "sleep_keeps_host"}
        if rng.random() < 0.5:
            extra["sleep_keeps_host"] = True
        spec = evolve(spec, num_gpu_blocks=160) if states and second is not None else spec
        case = evolve(case, naps=True, second=second)
    return evolve(case, spec=evolve(spec, extra_config=extra), limits=rng.random() < 0.15)


def _with_other_groups(case: Case, rng: Random) -> Case:
    """The same with groups of `ORDERS`, and without what does not go with them."""
    hard = {"local", "ring", "replay"} if case.guesses else set()  # the rig has no guesses in rings
    groups = _groups(rng, case.guesses, [kinds for kinds in ORDERS if not hard & {*kinds}])
    kinds = {group.kind for group in groups}
    if "replay" in kinds:  # with its first runner vLLM has none, and it takes a prefix whole or not at all
        case = evolve(case, second_runner=True, naps=False, sessions=False)
    states, spec, second = "mamba" in kinds, case.spec, case.second
    extra = {key: value for key, value in spec.extra_config.items() if key != "full_hit" or kinds == {"full"}}
    if second is not None and second.fails:
        second = evolve(second, within=0.0)  # vLLM can be told of a failure within a step with one full group only
    spec = evolve(
        spec,
        groups=groups,
        extra_config=extra,
        hash_tokens=2 if states and len(groups) > 1 and rng.random() < 0.4 else None,
        num_gpu_blocks=160 if states and second is not None else spec.num_gpu_blocks + 8 * len(groups),
        prefix_caching=spec.prefix_caching or states,
        priority=spec.priority and not states,
    )
    return evolve(case, spec=spec, second=second, sessions=case.sessions and not (states and (case.guesses or case.depth)))


def _groups(rng: Random, guesses: str | None, chosen: Sequence[Sequence[Kind]] | None = None) -> tuple[GroupSpec, ...]:
    left_out = {None: "", "ngram": "mamba"}.get(guesses, "mamba local")  # what vLLM or the connector does not take beside these
    kinds = rng.choice(chosen or [kinds for kinds in KINDS if kinds[-1] not in left_out.split()])
    even = {"mamba", "local"} & {*kinds} or rng.random() < 0.6  # vLLM has them in blocks of the size of the others
    sizes = {kind: rng.choice((4, 6, 8)) for kind in kinds}
    size = rng.choice((4, 6))
    # vLLM asks the groups beside full attention for one window; a part of local attention has whole blocks
    windows = {"swa": rng.randint(5, 16), "local": size * rng.randint(1, 3)}
    windows |= {"recent": windows["swa"], "ring": 2, "replay": rng.choice((4, 8))}
    if "replay" in kinds:  # windows of whole blocks, of which a block of the others has several
        even, sizes = False, {**dict.fromkeys(kinds, rng.choice((4, 8))), "replay": 4}
    sizes["ring"] = 2
    attending = [number for number, kind in enumerate(kinds) if kind not in ("mamba", "ring", "replay")]
    drafter = rng.choice(attending) if guesses == "eagle" and attending else None
    return tuple(
        GroupSpec(kind, size if even and kind != "ring" else sizes[kind], windows.get(kind), drafter=number == drafter)
        for number, kind in enumerate(kinds)
    )


def _habits(rng: Random, *, within: bool) -> Habits:
    """What a second connector does; *within*: whether vLLM can be told of a load within a step that fails."""
    fails = rng.choice((0.0, 0.0, 0.3))
    return Habits(
        within=0.0 if fails and not within else rng.choice((0.0, 0.3)),
        asks_again=rng.choice((0.0, 0.1)),
        fails=fails,
        sends=rng.choice((0.0, 0.5)),
    )


# --- one run --------------------------------------------------------------------------------------------------------------


class Everything(BesideRig, ParallelRig):
    """A rig with a second connector whose workers share the work in one of the ways."""


@frozen
class Verdict:
    """What one seed showed."""

    seed: int
    features: tuple[str, ...]
    steps: int = 0
    verified: int = 0
    stored: int = 0
    loaded: int = 0
    refused: str = ""
    """Why the connector does not take such an engine."""
    wrong: str = ""
    """What was wrong, with the stack."""

    def __str__(self) -> str:
        said = f"refused: {self.refused}" if self.refused else self.wrong.rstrip() or "clean"
        moved = f"{self.steps} steps, {self.stored} blocks stored, {self.loaded} loaded"
        return f"vllm {RELEASE}, seed {self.seed} ({moved}; {', '.join(self.features)}): {said}"


def run(seed: int, requests: int = REQUESTS) -> Verdict:
    """Draw the case of a seed and run it to its end."""
    case = drawn(seed)
    done = Counter[str]()
    refused = wrong = ""
    with tempfile.TemporaryDirectory(prefix="blocklife-fuzz-") as folder, _engine(case):
        for turn in range(1 if case.below is None else 2):  # what is below is for another engine, too
            try:
                with nullcontext() if case.below is None else faulty(folder, case.below, seed + turn):
                    rig = _rig(case, turn)
                    try:
                        Traffic(rig, case, Random(f"{seed}/traffic"), requests).go()
                    finally:
                        done += Counter(steps=rig.step_number, verified=rig.verified, stored=rig.stored, loaded=rig.loaded)
                        _close(rig)
            except MisuseError as error:
                if done["steps"]:
                    wrong = traceback.format_exc()
                else:
                    refused = str(error)
                break
            except Exception:  # of vLLM, of the connector or of a check: each is a finding
                wrong = traceback.format_exc()
                break
    return Verdict(seed, case.features, **done, refused=refused, wrong=wrong)


@contextmanager
def _engine(case: Case) -> Iterator[None]:
    """What is set in vLLM's configuration while the run goes on."""
    with pytest.MonkeyPatch.context() as patch:
        if case.guesses is not None:
            with_guesses(patch, case.guesses)
        if case.events:
            send_events(patch)
        if case.spec.hash_tokens is not None:
            mend_copies(patch)
        if case.depth is not None:
            patch.setattr(VllmConfig, "max_concurrent_batches", case.depth)
        yield


def _rig(case: Case, turn: int) -> ConnectorRig:
    spec = case.spec
    if case.below is not None:
        spec = evolve(spec, extra_config={**spec.extra_config, "below": ADDRESS})
    more: dict[str, object] = {
        "fails": case.fails,
        "recompute": case.recompute,
        "depth": case.depth,
        "drafts": case.guesses is not None,
        "spare_requests": case.spare_requests,
        "second_runner": case.second_runner,
    }
    seed = case.seed + turn
    alone = case.parallel == Parallel()
    if case.second is not None:
        more |= {"habits": case.second, "first": case.first}
    if not alone:
        more["parallel"] = case.parallel
    kinds: Mapping[tuple[bool, bool], Callable[..., ConnectorRig]] = {
        (True, True): ConnectorRig,
        (True, False): BesideRig,
        (False, True): ParallelRig,
        (False, False): Everything,
    }
    return kinds[alone, case.second is None](spec, seed, **more)


def _close(rig: ConnectorRig) -> None:
    """The engine ends, workers first: a store below has threads."""
    for rank in rig.ranks:
        if rank.worker is not None:
            rank.worker.connector.shutdown()
    rig.scheduler.connector.shutdown()


@define(eq=False)
class Traffic:
    """What clients and operators do, until all requests have ended and the engine is idle; checked after every step."""

    rig: ConnectorRig
    case: Case
    rng: Random
    left: int
    _families: list[list[int]] = field(init=False)
    _longest: int = field(init=False)
    _resets: float = field(init=False)
    _sessions: int = 0

    def __attrs_post_init__(self) -> None:
        ranks = self.case.parallel.decode  # each has its share of a block's tokens
        self._longest = ranks * max(2, longest_text(self.rig.spec) - 4)  # guesses come on top
        self._resets = self.rng.choice((0.0, 0.01, 0.03))
        self._families = [self._words(40 * ranks) for _ in range(3)]

    def _words(self, count: int) -> list[int]:
        return [self.rng.randrange(10, 1000) for _ in range(count)]

    def go(self) -> None:
        """The whole run. Raises whatever was wrong, and TimeoutError where requests are left."""
        rig, paced = self.rig, self.case.below is not None
        for _ in range(STEPS):
            self._arrive()
            self._disturb()
            before = rig.verified
            if not rig.step() and not self.left:
                if not self._sessions:
                    break
                self._end_sessions()
            if paced and rig.verified == before:
                time.sleep(PACE_S)
            rig.check()
        else:
            raise TimeoutError(f"the engine is not idle after {STEPS} steps ({len(rig.running)} requests have not ended)")
        rig.check_empty()

    def _arrive(self) -> None:
        rig, rng = self.rig, self.rng
        while self.left and len(rig.running) < rng.randint(1, 2 * rig.spec.max_num_seqs):
            self.left -= 1
            tail = self._words(rng.choice((0, 0, 1, 3, 9)))
            answer = min(rng.randint(1, 14), self._longest - 1)
            prompt = (rng.choice(self._families)[: rng.randint(1, len(self._families[0]))] + tail)[: self._longest - answer]
            if self.case.sessions and rng.random() < 0.3:
                self._speak(prompt, answer)
                continue
            salt = rng.choice(("pepper", "salt")) if self.case.salts and rng.random() < 0.4 else None
            limits = None
            if self.case.limits and rng.random() < 0.5:
                limits = {key: rng.choice((0, 3, 9, 17, 33)) for key in LIMITS if rng.random() < 0.7}
            name = rig.add(prompt, answer, rng.randint(0, 3), salt, limits)
            if self.case.hurried and rng.random() < 0.2:
                rig.wants_no_prefix(name)

    def _speak(self, prompt: list[int], answer: int) -> None:
        """A part of a session that waits for more, or of a new one."""
        rig = self.rig
        for name in [f"s{number}" for number in range(self._sessions)]:
            held = rig.scheduler.requests.get(name)
            if held is None or held.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
                continue
            if held.num_tokens + len(prompt) + answer <= self._longest:
                rig.part(name, prompt, answer)
            else:
                rig.abort(name)
            return
        rig.part(f"s{self._sessions}", prompt, answer)
        self._sessions += 1

    def _end_sessions(self) -> None:
        """Who waits for more will get none."""
        for name in [name for name in self.rig.scheduler.requests if name.startswith("s")]:
            self.rig.abort(name)
        self._sessions = 0

    def _disturb(self) -> None:
        rig, rng, quiet = self.rig, self.rng, not self.rig._queue
        if rng.random() < 0.04 and rig.running:
            rig.abort(rng.choice(sorted(rig.running)), late=rng.random() < 0.5)
        if rng.random() < 0.03 and quiet:
            rig.reset_prefix_cache()  # of the device's memory only
        if rng.random() < self._resets and quiet:
            self._reset(rng.random() < 0.4, rng.random() < 0.5)
        if rng.random() < self._resets / 4:
            rig.side.reset()
        if rng.random() < 0.01 and self.case.naps and quiet and rig.can_reset(True, True):
            nap(rig)

    def _reset(self, running: bool, connector: bool) -> None:
        rig = self.rig
        done = rig.can_reset(running, connector) and rig.reset_prefix_cache(running, connector)
        if done and connector:  # what is below stays, and is not found again
            rig.renew_weights()


# --- many runs ------------------------------------------------------------------------------------------------------------


@define
class Tally:
    """What many runs have shown: by feature the runs that ended clean, and the blocks that were stored and loaded in them."""

    runs: int = 0
    verified: int = 0
    refused: Counter[str] = field(factory=Counter)
    wrong: list[int] = field(factory=list)
    clean: Counter[str] = field(factory=Counter)
    stored: Counter[str] = field(factory=Counter)
    loaded: Counter[str] = field(factory=Counter)

    def add(self, verdict: Verdict) -> None:
        """Count one run."""
        self.runs += 1
        self.verified += verdict.verified
        if verdict.refused:
            self.refused[verdict.refused] += 1
        elif verdict.wrong:
            self.wrong.append(verdict.seed)
        else:
            for name in ("all", *verdict.features):
                self.clean[name] += 1
                self.stored[name] += verdict.stored
                self.loaded[name] += verdict.loaded

    @property
    def idle(self) -> list[str]:
        """Features with which no clean run moved a block both ways."""
        return sorted(name for name in self.clean if not (self.stored[name] and self.loaded[name]))

    def lines(self) -> Iterator[str]:
        """A table for people."""
        for name, count in sorted(self.clean.items(), key=lambda each: -each[1]):
            yield f"{name:34} {count:6} runs {self.stored[name]:9} blocks stored {self.loaded[name]:9} loaded"
        for reason, count in self.refused.most_common():
            yield f"refused {count:4} times: {reason}"
        yield f"{self.runs} runs, {self.verified} blocks compared, {len(self.wrong)} wrong {self.wrong or ''}".rstrip()


def verdicts(seeds: Sequence[int], processes: int, requests: int) -> Iterator[Verdict]:
    """Run the seeds, in their order or (*processes*) as they end."""
    if processes == 1:
        yield from (run(seed, requests) for seed in seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(partial(run, requests=requests), seeds, chunksize=4)


@stoppable
def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds. Exit status 1 if any was not clean."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.fuzz", description=__doc__)
    parser.add_argument("--runs", type=positive, default=100)
    parser.add_argument("--first", type=natural, default=0, metavar="SEED", help="the first seed (default: 0)")
    parser.add_argument("--requests", type=positive, default=REQUESTS, help=f"of each run (default: {REQUESTS})")
    parser.add_argument("--processes", type=positive, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="one JSON object a run, one a line")
    arguments = parser.parse_args(argv)
    seeds, tally = range(arguments.first, arguments.first + arguments.runs), Tally()
    for verdict in verdicts(seeds, arguments.processes, arguments.requests):
        tally.add(verdict)
        if arguments.json:
            print(json.dumps(asdict(verdict)), flush=True)
        elif verdict.wrong:
            print(verdict, flush=True)
        elif tally.runs % EVERY == 0:
            print(f"{tally.runs} of {arguments.runs} runs, {len(tally.wrong)} wrong", file=sys.stderr)
    if not arguments.json:
        print(*tally.lines(), sep="\n")
    idle = tally.idle if tally.runs >= MANY else []
    if idle:
        print(f"nothing was stored and loaded with: {', '.join(idle)}", file=sys.stderr)
    return 1 if tally.wrong or idle else 0


if __name__ == "__main__":
    with_fixed_hashes("tests.vllm.fuzz")
    sys.exit(main())
