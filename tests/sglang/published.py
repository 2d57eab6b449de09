"""``python -m tests.sglang.run --python VERSION -m tests.sglang.published [NAME]``: published faults, each with a story.

Random traffic seldom meets them, so each is a short program that drives SGLang's own scheduler and cache step by step. One line
says what harm is seen, and when the watch has named it. Exit status 0 if each does harm in this release.
`specs/sglang-watch.md` tells them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import Any, TypeAlias

from tests.programs import with_fixed_hashes

if __name__ == "__main__":
    with_fixed_hashes("tests.sglang.published")

from blocklife.engines.sglang.watch import Options, Watch, WatchMode, attach
from tests.behind.stories import tell
from tests.sglang.engine import RELEASE
from tests.sglang.rig import Rig
from tests.sglang.turns import step_aside
from tests.sglang.worlds import WorldSpec
from tests.texts import Chain

MOST = 400
"""Steps that anything in a story takes at most."""
Tell: TypeAlias = Callable[[Callable[[Rig], None]], tuple[Rig, str]]
"""Takes what is done to the rig first, a watch say. Returns the rig, and the harm that was seen; "" for none."""


def held(controller: Any) -> Event:
    """Nothing comes from storage until this is set."""
    opened, get = Event(), controller.storage_backend.batch_get

    def gets(*args: object, **kwargs: object) -> object:
        step_aside(opened)
        return get(*args, **kwargs)

    controller.storage_backend.batch_get = gets
    return opened


def until(rig: Rig, reached: Callable[[], bool]) -> None:
    """Step until this is so."""
    for _ in range(MOST):
        if reached():
            return
        rig.step()
    raise TimeoutError(f"nothing of the kind in {MOST} steps")


def refilled_behind_a_page_without_a_copy(made: Callable[[Rig], None]) -> tuple[Rig, str]:
    """sglang#30106, and #31902 for the other tree: what storage brings is kept on the host behind a page that is not there.

    Pages of four tokens, written through when they are hit twice. A text of six pages is in storage alone. A request for all
    of it waits for storage; meanwhile another one computes the first two pages, and the second of them is hit once, so it has
    no copy on the host. What storage brings is kept behind it. The tree takes it for a leaf of the device, and falls when it
    is to be evicted.
    """
    spec = WorldSpec(page_tokens=4, device_pages=20, host_pages=40, storage=True, policy="write_through_selective")
    rig = Rig(spec, 0)
    made(rig)
    begins = [10, 11, 12]
    whole = Chain(begins)
    whole.token(23)
    text = whole.tokens[:24]
    for _ in range(2):
        rig.add(text, 1)
        rig.drain()
    rig.flush()
    comes = held(rig.ranks[0].engine.controller)
    rig.add(text, 30)
    early = rig.add(begins, 9)
    until(rig, lambda: early in rig.finished)
    large = rig.add(range(500, 520), 54)
    until(rig, lambda: any(each.rid == large for each in rig.ranks[0].scheduler.running_batch.reqs))
    comes.set()
    try:
        until(rig, lambda: large in rig.finished)
        rig.drain()
    except AssertionError as error:
        return rig, f"AssertionError: {error}"
    finally:
        rig.close()
    wrong = [str(each) for each in rig.corruptions] + rig.wrong_texts
    return rig, "; ".join(wrong) or rig.missing()


PUBLISHED: tuple[Tell, ...] = (refilled_behind_a_page_without_a_copy,)


def watched(story: Tell) -> tuple[Rig, str, dict[str, int], list[Watch]]:
    """Tell a story under a watch that counts. Returns also the step at which each rule was named first, and the watches."""
    watches: list[Watch] = []
    named: dict[str, int] = {}

    def made(rig: Rig) -> None:
        watches.extend(attach(rank.scheduler, Options(mode=WatchMode.COUNT)) for rank in rig.ranks)
        rig.after_step.append(look)

    def look(rig: Rig) -> None:
        for watch in watches:
            for rule in watch.counts:
                named.setdefault(rule, rig.step_number)

    rig, seen = story(made)
    look(rig)
    return rig, seen, named, watches


def main(argv: Sequence[str] | None = None) -> int:
    """Tell the stories."""

    def said(story: Tell) -> str:
        rig, seen, named, _ = watched(story)
        rules = ", ".join(f"{rule} at step {step}" for rule, step in named.items())
        return f"{seen or 'no harm'} at step {rig.step_number}; named: {rules or 'nothing'}"

    stories = {story.__name__: partial(said, story) for story in PUBLISHED}
    return tell("tests.sglang.published", f"SGLang {RELEASE}", __doc__, stories, argv)


if __name__ == "__main__":
    sys.exit(main())
