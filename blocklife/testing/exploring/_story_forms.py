"""A story in other forms: a Python program, a scenario file, a sequence diagram.

Rules of this file:

* All forms describe the same path; a path that a form cannot express is refused with the reason.
* A scenario adds no expectation of its own: it fails while the rule breaks, and passes once the bug is fixed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf

from attrs import evolve

from blocklife.drawing._sequence import Item, Message, Note, Party, PartySequence, Way, mermaid
from blocklife.errors import MisuseError
from blocklife.knobs import written
from blocklife.lifecycle import Tone
from blocklife.testing.exploring._story import Change, Happened, Story
from blocklife.testing.scenarios._driver import POLICIES
from blocklife.testing.scenarios._format import MEMORY_RULES, POLICY, RULES, SAFETY, Scenario, ScenarioStep, write_scenario
from blocklife.testing.scenarios._kinds import ORDINALS, Value
from blocklife.testing.scenarios._running import WRONG, Outcome, parse_scenario, run_scenario
from blocklife.testing.worlds._cross_checks import LAST_STEP
from blocklife.testing.worlds._device import Landing
from blocklife.testing.worlds._format import PYTHON_IMPORTS, as_python
from blocklife.testing.worlds._world import Action

DEADLINE = 1_000_000
"""Steps that a copy may run in a scenario: long enough that it is late only where the world says so."""


# --- a program --------------------------------------------------------------------------------------------------------------


def program(story: Story) -> str:
    """A Python program that replays the path and prints the story."""
    end = "" if story.breaks else f", {story.rule!r}, {story.message!r}"
    lines = [f"settings = {text}" if number == 0 else text for number, text in enumerate(as_python(story.settings))]
    lines += ["path = [", *(f"    {_call(action)}," for action in story.actions), "]", f"print(tell(settings, path{end}))"]
    body = "\n".join(lines)
    return "\n".join([*_imports(body), "", body]) + "\n"


def _call(action: Action) -> str:
    given = [repr(action.verb)]
    given += [f"{name}={value!r}" for name, value in zip(action._fields[1:], action[1:], strict=True) if value]
    return f"Action({', '.join(given)})"


def _imports(body: str) -> Iterator[str]:
    """The imports that a program needs."""
    for line in ("from blocklife.testing.exploring._story import tell", *PYTHON_IMPORTS):
        module, _, names = line.partition(" import ")
        needed = [name for name in names.split(", ") if re.search(rf"\b{name}\b", body)]
        if needed:
            yield f"{module} import {', '.join(needed)}"


# --- a scenario -------------------------------------------------------------------------------------------------------------


def scenario(story: Story) -> Scenario:
    """The path as a scenario. Raises `MisuseError` if a scenario cannot express it."""
    if story.settings.engine.below is not None:
        raise MisuseError("a scenario cannot say what a store below does (its world has one)")
    if story.settings.engine.policies.pending_wait < inf:
        raise MisuseError("a scenario cannot say how long a request waits for content on its way (its world does)")
    said = _ScenarioSteps(story)
    steps = [step for happened in said.steps() for step in happened]
    end: dict[str, Value] = {}
    if story.rule and not story.breaks:
        steps += _drained(story)
    if story.rule == LAST_STEP:
        # nothing is wrong with any place yet: the fault is a missing wait
        waits = [said.named[job] for job in story.out]
        steps[-1] = evolve(steps[-1], expect={"flushes": waits})
    if story.rule and (story.idle or not story.breaks):
        end = {"nothing_left": True, "pending": False}
    return Scenario(
        id=f"counterexample-{story.rule.replace(' ', '-')}",
        title=f"{story.rule}: {story.message}"[:200],
        tests=SAFETY if story.rule in MEMORY_RULES else POLICY,
        invariants=(story.rule,) if story.rule in RULES else (),
        world=_world(story),
        steps=tuple(steps),
        end=end,
    )


def _drained(story: Story) -> Iterator[ScenarioStep]:
    """Steps in which all requests can end and all copies can land."""
    yield from [ScenarioStep(verb="settle", note="from here on everybody ends, and every copy lands")] * story.plans_out
    yield from (ScenarioStep(verb="regain_worker", arguments={"worker": worker}) for worker in story.lost)
    yield ScenarioStep(verb="prove_quiet")
    yield ScenarioStep(verb="drain")
    if story.asleep:
        yield ScenarioStep(verb="wake")
    for _ in story.settings.requests:
        letters = max(len(each.text) for each in story.settings.requests)
        yield ScenarioStep(verb="step", arguments={"times": letters})
        yield ScenarioStep(verb="land")
        yield ScenarioStep(verb="tick")
    yield ScenarioStep(verb="drain")


def scenario_text(story: Story) -> str:
    """The file of that scenario."""
    return write_scenario(scenario(story))


def replayed(story: Story) -> str:
    """Run the scenario of a story: empty if it fails as the story does, otherwise what happened instead."""
    verdict = run_scenario(parse_scenario(scenario_text(story)))
    said = verdict.message
    if verdict.outcome in WRONG and (story.rule in said or story.rule not in RULES or ": at the end: " in said):
        return ""
    shown = {Outcome.HELD: "holds", Outcome.NOT_APPLICABLE: "cannot be run"}.get(verdict.outcome, "fails otherwise")
    return f"as a scenario the same path {shown}" + (f" ({verdict.message})" if verdict.message else "")


def _world(story: Story) -> dict[str, Value]:
    engine = story.settings.engine
    plain = {each.name: written(getattr(engine.policies, each.name)) for each in POLICIES}
    return {
        "groups": engine.groups,
        "blocks_per_chunk": engine.blocks_per_chunk,
        "blocks": engine.num_blocks,
        "slots": engine.num_slots,
        "workers": engine.num_workers,
        "jobs": engine.max_jobs,
        "contract": engine.contract.name.lower(),
        "scheduling": "async" if engine.asynchronous else "sync",
        "deadline": DEADLINE,
        "replacement": engine.replacement,
        "step_tokens": engine.step_tokens or 0,
        **{name: value for name, value in plain.items() if value is not None},
        "state_drafts": engine.drafts if "mamba" in engine.groups else 0,
    }


class _ScenarioSteps:
    """The steps of a scenario, with names for the copies that they mention."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.owners = {copy.job: copy.owner for copy in story.copies}
        self.named: dict[int, str] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.landings: dict[tuple[int, int], Landing] = {}
        self.weights = ""
        last = {job for each in story.steps for job in (each.named.job, *each.proven) if job}
        self.needed = {*last, *(story.out if story.rule == LAST_STEP else ())}

    def steps(self) -> Iterator[list[ScenarioStep]]:
        """The scenario steps for each step of the story."""
        for number, happened in enumerate(self.story.steps, start=1):
            self.landings |= {(each.job, each.worker): each for each in happened.landed}
            yield [
                ScenarioStep(
                    verb=verb,
                    arguments=arguments,
                    note=f"{number}: {happened.sentence}",
                    remember=self.remembered(happened),
                )
                for verb, arguments in self.said(happened)
            ]

    def remembered(self, happened: Happened) -> dict[str, str]:
        """Names for the copies of a plan that later steps mention."""
        found: dict[str, str] = {}
        orders = (*happened.orders.loads, *happened.orders.stores) if happened.orders is not None else ()
        planned = [("store" if order.stores else "load", self.owners.get(order.job, "")) for order in orders]
        for copy in dict.fromkeys(planned):
            self.counts[copy] = self.counts.get(copy, 0) + 1
        for order, (kind, owner) in zip(orders, planned, strict=True):
            if order.job in self.needed:
                at = self.counts[kind, owner]
                if not owner or at > len(ORDINALS) or planned.count((kind, owner)) > 1:
                    raise MisuseError(f"job {order.job}: a scenario has no name for this {kind} (it is the {at}. of {owner!r})")
                self.named[order.job] = f"job-{order.job}"
                found[self.named[order.job]] = f"the {ORDINALS[at - 1]} {kind} of {owner}"
        return found

    def copy(self, job: int) -> str:
        """The name of a copy."""
        if job not in self.named:
            raise MisuseError(f"job {job}: a scenario cannot name it, since no plan has carried it")
        return self.named[job]

    def said(self, happened: Happened) -> Iterator[tuple[str, dict[str, Value]]]:
        """The verbs of one step, with their arguments."""
        named = happened.named
        match named.verb:
            case "arrive":
                script = next(each for each in self.story.settings.requests if each.name == named.request)
                reply = script.text[script.prompt :]
                yield "arrive", {"request": script.name, "prompt": script.text[: script.prompt], "reply": reply}
            case "step":
                yield "step", {"settle": False}
            case "step_failing":
                yield "step", {"settle": False, "failing": True}
            case "settle":
                yield "settle", {}
            case "settle_late":
                yield "settle", {"after": DEADLINE}
            case "land" | "fail" | "hang":
                yield named.verb, {"copies": [self.copy(named.job)], "worker": named.worker}
            case "lose":
                yield "lose_report", {"copy": self.copy(named.job), "worker": named.worker}
            case "repeat":
                yield "check", {}
            case "echo":
                failed = not self.landings[named.job, named.worker].ok
                yield "report", {"copy": self.copy(named.job), "worker": named.worker, "failed": failed}
            case "abort" | "preempt":
                yield named.verb, {"request": named.request}
            case "drain":
                yield "reset", {"drain": True}
            case "renew":
                self.weights += "x"
                yield "renew", {"generation": self.weights}
            case "lose_worker" | "regain_worker":
                yield named.verb, {"worker": named.worker}
            case "prove":
                yield "prove_quiet", {"copies": [self.copy(job) for job in happened.proven]}
            case verb:
                yield verb, {}


# --- a diagram --------------------------------------------------------------------------------------------------------------


ENGINE, LEDGER = Party("E", "engine"), Party("L", "ledger")


def diagram(story: Story) -> str:
    """The path as a Mermaid sequence diagram of engine, ledger and workers."""
    return mermaid(sequence(story))


def sequence(story: Story) -> PartySequence:
    """The path as a sequence."""
    ranks = range(story.settings.engine.num_workers)
    workers = [Party(_worker(rank), f"worker {rank}") for rank in ranks]
    items: list[Item] = []
    for number, step in enumerate(story.steps, start=1):
        items += _messages(number, step, ranks)
        if step.changes:
            items.append(Note((LEDGER.key,), tuple(_change(each) for each in step.changes)))
    if story.rule:
        across = ENGINE.key, workers[-1].key
        items.append(Note(across, (f"{story.rule} is broken: {story.message}",), Tone.TROUBLE))
    return PartySequence((ENGINE, LEDGER, *workers), tuple(items))


def _messages(number: int, step: Happened, ranks: range) -> Iterator[Item]:
    """The messages of one step."""
    named, sentence = step.named, f"{number}. {step.sentence}"
    if named.verb in ("land", "fail", "hang", "refuse"):
        yield Note((_worker(named.worker),), (sentence,), Tone.COPY)
        return
    if named.verb in ("lose", "repeat", "echo"):
        yield Message(_worker(named.worker), ENGINE.key, sentence, Way.LOST if named.verb == "lose" else Way.ANSWERS)
        return
    for each in step.told:
        done = "landed" if each.ok else "failed"
        yield Message(_worker(each.worker), ENGINE.key, f"job {each.job} {done}", Way.ANSWERS)
    yield Message(ENGINE.key, LEDGER.key, sentence)
    if step.orders is not None:
        waits = f", wait for {', '.join(f'job {job}' for job in step.orders.flushes)}" if step.orders.flushes else ""
        loads = "".join(f", load {order.job}" for order in step.orders.loads)
        stores = "".join(f", store {order.job} later" for order in step.orders.stores)
        plan = f"plan {step.orders.plan}{waits}{loads}{stores}"
        yield from (Message(LEDGER.key, _worker(rank), plan) for rank in ranks)
    for each in step.landed:
        yield Note((_worker(each.worker),), (f"job {each.job} {'lands' if each.ok else 'fails'}",), Tone.COPY)


def _worker(rank: int) -> str:
    return f"W{rank}"


def _change(change: Change) -> str:
    return f"{change.machine} {change.thing}: {' then '.join(change.states)}"
