"""The programs that drive and measure vLLM's scheduler: what makes no sense is refused, and Ctrl-C is never lost."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Sequence

import pytest

from tests.vllm import bench_connector, bench_watch, chat, hits
from tests.vllm.stopwatch import Stopwatch

SMALL = ("--running", "2", "--steps", "5", "--warm-up", "5")
BENCHES: list[tuple[Callable[[Sequence[str]], int], tuple[str, ...]]] = [
    (bench_connector.main, (*SMALL, "--features", "2", "--passes", "2")),
    (bench_watch.main, (*SMALL, "--rounds", "1", "--samples", "4")),
]


@pytest.mark.parametrize(("main", "words"), BENCHES)
def test_interrupt_while_the_collector_is_at_work_ends_a_bench(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    main: Callable[[Sequence[str]], int],
    words: Sequence[str],
) -> None:
    """There an exception would be dropped. Nothing listens to the collector afterwards, and the handler is as before."""
    pause, go_on, came = Stopwatch.pause, Stopwatch.go_on, list[str]()

    def interrupted(stopwatch: Stopwatch, phase: str, info: object) -> None:
        pause(stopwatch, phase, info)
        if not came:
            came.append(phase)
            signal.raise_signal(signal.SIGINT)

    def collecting(stopwatch: Stopwatch) -> None:
        gc.collect(0)
        go_on(stopwatch)

    before = signal.getsignal(signal.SIGINT), list(gc.callbacks)
    monkeypatch.setattr(Stopwatch, "pause", interrupted)
    monkeypatch.setattr(Stopwatch, "go_on", collecting)

    assert main(words) == 130
    assert capsys.readouterr() == ("", "stopped\n")
    assert came == ["start"]
    assert (signal.getsignal(signal.SIGINT), gc.callbacks) == before


@pytest.mark.parametrize(("main", "words"), BENCHES)
def test_bench_of_the_smallest_sizes_ends_with_a_table(
    capsys: pytest.CaptureFixture[str], main: Callable[[Sequence[str]], int], words: Sequence[str]
) -> None:
    """No figure of it is divided by nothing."""
    assert main(words) == 0
    assert "| 2 |" in capsys.readouterr().out


def test_hits_are_told_by_size_and_by_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """With every connector and policy, and the same again for the same seeds."""
    said = []
    for window in ((), (), ("--window", "64")):
        assert hits.main(("--seeds", "2", "--host-blocks", "400", "--requests", "30", *window)) == 0
        said.append(capsys.readouterr().out)

    assert said[0] == said[1] != said[2]
    assert all(row in each for each in said for row in ("| 400 | lru |", "| 400 | arc |", "| 400 | 1 |"))


def test_conversations_come_again_with_a_prefix_that_has_grown() -> None:
    """A prompt is all that was said before, what the user says now, or a system prompt that others have, too."""
    asked = list(chat.turns(0, 100))
    texts = [tuple(turn.text) for turn in asked]
    again = [at for at, turn in enumerate(asked) if any(texts[at][: len(text)] == text for text in texts[:at])]
    shared = {text[:64] for text in texts}

    assert len(again) > 30
    assert len(shared) < 10
    assert all(0 < turn.prompt < turn.prompt + turn.answer == len(turn.text) for turn in asked)
    assert [turn.text for turn in chat.turns(0, 100)] == [turn.text for turn in asked]
