"""Ranks execute every plan together, and none of them can hold up or corrupt the others.

Method: what rank 0 makes of answers is tested in one process, over wires that are queues, with `serve` on a thread: a wire can
be cut, or its words changed, at an exact place. What only processes can show is shown by processes on 127.0.0.1 that run the
example: once by torchrun, and with one rank that is killed or stopped in the middle of a forward pass. Nothing sleeps.
"""

from __future__ import annotations

import os
import pickle
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="ranks need torch (pip install torch)")

from blocklife.copiers import (
    CpuCopier,
    Executor,
    ForwardError,
    Link,
    LinkError,
    Loss,
    Ranks,
    RankStatistics,
    Report,
    connect,
    serve,
)
from blocklife.errors import MisuseError
from blocklife.ledger.records import Completion, Direction, JobId, Launched, Plan, Result, Transfer, Worker
from tests.programs import HANGS_S

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ranks.py"
"""What takes longer hangs."""
STOP = b""
"""Ends a wire."""


class Wire(Link):
    """One end of a link in one process. ``change`` may replace what arrives; a wire that is ``cut`` says why."""

    def __init__(self, peer: int, here: queue.SimpleQueue[bytes], there: queue.SimpleQueue[bytes]) -> None:
        self.peer = Worker(peer)
        self._here = here
        self._there = there
        self.change: Callable[[bytes], bytes] = bytes
        self.cut = ""
        self.given: list[float] = []
        """The seconds that this end was given, for each message that it sent or waited for."""
        self.num_received = self.num_sent = 0

    def send(self, payload: bytes, timeout_s: float) -> None:
        self.num_sent += 1
        self.given.append(timeout_s)
        self._there.put(payload)

    def receive(self, timeout_s: float) -> bytes:
        self.given.append(timeout_s)
        if self.cut:
            raise LinkError(self.cut)
        payload = self.change(self._here.get(timeout=HANGS_S))
        self.num_received += 1
        if payload == STOP:
            raise LinkError("the other end is gone")
        return payload


class Rig:
    """Rank 0 in this thread, and each other rank on a thread of its own; every rank has memory and a copier."""

    def __init__(self, num_ranks: int) -> None:
        self.device = [np.arange(32, dtype=np.uint64).reshape(8, 4) + np.uint64(1000 * rank) for rank in range(num_ranks)]
        self.host = [np.zeros((8, 4), dtype=np.uint64) for _ in range(num_ranks)]
        self.executors = [
            Executor(CpuCopier(device, host, worker=Worker(rank), blocks_per_poll=8))
            for rank, (device, host) in enumerate(zip(self.device, self.host, strict=True))
        ]
        self.wires, self.ends, self.threads = [], [], []
        self.work: Callable[[object], object] = lambda work: work
        self.gone: list[str] = []
        for rank in range(1, num_ranks):
            up: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            down: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            self.wires.append(Wire(rank, up, down))
            self.ends.append(Wire(0, down, up))
            self.threads.append(threading.Thread(target=self._serve, args=(rank,)))
        self.ranks = Ranks(self.executors[0], self.wires, timeout_s=5.0)
        for thread in self.threads:
            thread.start()

    def _serve(self, rank: int) -> None:
        try:
            serve(self.executors[rank], self.ends[rank - 1], lambda work: self.work(work), lambda question: (rank, question))
        except LinkError as problem:
            self.gone.append(str(problem))

    def close(self) -> None:
        self.ranks.close()
        for wire in self.wires:
            wire.send(STOP, 0.0)
        for thread in self.threads:
            thread.join(HANGS_S)
        assert not [thread for thread in self.threads if thread.is_alive()]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(3)
    yield made
    made.close()


def transfer(number: int, direction: Direction, source: list[int], target: list[int]) -> Transfer:
    return Transfer(JobId(1, number), direction, np.array(source), np.array(target), (len(source),))


def plan(number: int, *, loads: list[Transfer] | None = None, stores: list[Transfer] | None = None, flushes: int = 0) -> Plan:
    return Plan(number, tuple(loads or ()), tuple(stores or ()), (JobId(1, flushes),) if flushes else ())


def nothing() -> None:
    """A forward pass that computes nothing."""


STORE = transfer(1, Direction.STORE, [1, 2], [5, 0])
LOAD = transfer(2, Direction.LOAD, [5, 0], [6, 7])


# --- together ----------------------------------------------------------------------------------------------------------


def test_ranks_copy_each_its_own_share(rig: Rig) -> None:
    """A store and a load run on every rank, in its own memory, and each rank reports its share."""
    ranks = rig.ranks
    first = ranks.execute(plan(1, stores=[STORE]), nothing, "a")
    second = ranks.execute(plan(2, flushes=1), nothing, "b")
    third = ranks.execute(plan(3, loads=[LOAD]), nothing, "c")
    ranks.wait([LOAD.job])
    loaded = [device[[6, 7]].tolist() for device in rig.device]
    rest = ranks.report()

    assert (first.launched, first.completions) == ((), ())
    assert first.results == {1: "a", 2: "a"}
    assert second.launched == tuple(Launched(STORE.job, Worker(rank)) for rank in range(3))
    done = [*second.completions, *third.completions, *rest.completions]
    assert sorted((each.job.number, each.worker) for each in done) == [(job, rank) for job in (1, 2) for rank in range(3)]
    assert {each.result for each in done} == {Result.OK}
    for rank in range(3):
        assert np.array_equal(rig.host[rank][[5, 0]], rig.device[rank][[1, 2]])
        assert loaded[rank] == rig.device[rank][[1, 2]].tolist()
    assert ranks.statistics() == tuple(RankStatistics(Worker(rank), 3, 2, 2, 0, "") for rank in range(3))
    assert not ranks.take_losses()


def test_ranks_wait_until_every_rank_is_quiet(rig: Rig) -> None:
    """A store that every rank still holds back has moved everywhere when the wait returns."""
    rig.ranks.execute(plan(1, stores=[STORE]), nothing)
    rig.ranks.wait([STORE.job])

    for rank in range(3):
        assert np.array_equal(rig.host[rank][[5, 0]], rig.device[rank][[1, 2]])


def test_ranks_begin_before_rank_0_has_computed(rig: Rig) -> None:
    """The plan is with every rank while rank 0 computes: its forward pass can wait for theirs."""
    computing = threading.Barrier(3)
    rig.work = lambda _: computing.wait(HANGS_S)
    rig.ranks.execute(plan(1), lambda: void(computing.wait(HANGS_S)))

    assert not computing.broken


def void(_value: object) -> None:
    """Drop a result."""


def test_ranks_answer_questions(rig: Rig) -> None:
    assert rig.ranks.ask("how many?") == {1: (1, "how many?"), 2: (2, "how many?")}


def test_ranks_are_busy_while_any_rank_is(rig: Rig) -> None:
    """What another rank still has to say counts, as it last told."""
    rig.executors[1].copier.launch(LOAD)
    before = rig.ranks.busy()
    rig.ranks.report()
    after = rig.ranks.busy()
    rig.ranks.report()
    rig.ranks.report()

    assert (before, after, rig.ranks.busy()) == (False, True, False)


def test_ranks_forget_everywhere(rig: Rig) -> None:
    """A share that was proven quiet is dropped on each rank, and is not reported as finished by the executor's own record."""
    rig.ranks.execute(plan(1, loads=[LOAD]), nothing)
    rig.ranks.wait([LOAD.job])
    rig.ranks.drop([LOAD.job])

    assert not any(executor._running for executor in rig.executors)


def test_ranks_that_close_have_moved_everything_and_serve_no_longer(rig: Rig) -> None:
    """Every rank drains its copier and its `serve` ends; a second close says nothing to anyone."""
    for rank, host in enumerate(rig.host):
        host[:] = 7 + rank
    rig.ranks.execute(plan(1, loads=[LOAD]), nothing)
    rig.ranks.close()
    for thread in rig.threads:
        thread.join(HANGS_S)
    sent = [wire.num_sent for wire in rig.wires]
    rig.ranks.close()

    assert [thread.is_alive() for thread in rig.threads] == [False, False]
    assert rig.gone == []
    assert [wire.num_sent for wire in rig.wires] == sent
    for rank in range(3):
        assert np.array_equal(rig.device[rank][[6, 7]], rig.host[rank][[5, 0]])


def test_ranks_of_one_are_an_executor() -> None:
    """Without other ranks it is the executor that it was given."""
    alone = Rig(1)
    alone.ranks.execute(plan(1, loads=[LOAD]), nothing)
    alone.ranks.wait([LOAD.job])

    assert alone.ranks.report().completions == (Completion(LOAD.job, Worker(0), Result.OK),)
    alone.close()


# --- trouble -----------------------------------------------------------------------------------------------------------


def test_ranks_hear_what_a_forward_pass_raised(rig: Rig) -> None:
    """The error names the rank and what it was; the copies of that step are reported by the next call."""

    def fail(_work: object) -> object:
        raise ValueError("no such weight")

    rig.work = fail
    with pytest.raises(ForwardError, match=r"rank 1: ValueError: no such weight; rank 2: "):
        rig.ranks.execute(plan(1, loads=[LOAD]), nothing)
    rig.ranks.wait([LOAD.job])
    report = rig.ranks.report()

    assert sorted(each.worker for each in report.launched) == [0, 1, 2]
    assert sorted(each.worker for each in report.completions) == [0, 1, 2]
    assert not rig.ranks.lost


def test_ranks_stay_in_step_when_rank_0_raises(rig: Rig) -> None:
    """What rank 0's own forward pass raises comes out, and the next plan finds every rank ready."""

    def fail() -> None:
        raise ArithmeticError("here")

    with pytest.raises(ArithmeticError, match="here"):
        rig.ranks.execute(plan(1, stores=[STORE]), fail, "first")
    rig.ranks.execute(plan(2), nothing, "second")
    rig.ranks.wait([STORE.job])

    assert sorted(each.worker for each in rig.ranks.report().completions) == [0, 1, 2]


def test_ranks_name_a_result_that_cannot_travel(rig: Rig) -> None:
    """A result that no pickle holds is an error of that forward pass, and the rank goes on."""
    rig.work = lambda _: threading.Lock()
    with pytest.raises(ForwardError, match="rank 1: its result cannot be pickled"):
        rig.ranks.execute(plan(1), nothing)
    rig.work = lambda work: work

    assert rig.ranks.execute(plan(2), nothing, "well").results == {1: "well", 2: "well"}


def test_ranks_lose_one_that_is_silent(rig: Rig) -> None:
    """The others' reports count, the loss is told once, and nothing is sent to the lost rank any more."""
    rig.ranks.execute(plan(1, stores=[STORE]), nothing)
    rig.wires[0].cut = "rank 1: silent"
    told = rig.ranks.execute(plan(2, flushes=1), nothing, "work")
    losses = rig.ranks.take_losses()
    sent, heard = rig.wires[0].num_sent, rig.wires[0].num_received
    rig.ranks.execute(plan(3), nothing)

    assert losses == (Loss(Worker(1), "rank 1: silent"),)
    assert rig.ranks.take_losses() == ()
    assert rig.ranks.lost == {1}
    assert told.results == {2: "work"}
    assert [each.worker for each in told.launched] == [0, 2]
    assert {each.worker for each in told.completions} == {0, 2}
    assert (rig.wires[0].num_sent, rig.wires[0].num_received) == (sent, heard)
    assert [each.lost for each in rig.ranks.statistics()] == ["", "rank 1: silent", ""]


def test_ranks_lose_one_that_cannot_be_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_payload: bytes, _timeout_s: float) -> None:
        raise LinkError("rank 2: send")

    monkeypatch.setattr(rig.wires[1], "send", broken)
    told = rig.ranks.execute(plan(1), nothing, "work")
    monkeypatch.undo()

    assert told.results == {1: "work"}
    assert rig.ranks.take_losses() == (Loss(Worker(2), "rank 2: send"),)


def test_ranks_lose_one_that_cannot_prove_quiet(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that raises elsewhere proves nothing: that rank's memory is nobody's from then on."""

    def broken(_jobs: object) -> None:
        raise OSError("device lost")

    monkeypatch.setattr(rig.executors[2], "wait", broken)
    rig.ranks.wait([JobId(1, 9)])

    assert rig.ranks.take_losses() == (Loss(Worker(2), "rank 2: OSError: device lost"),)


def test_ranks_pass_over_an_old_answer(rig: Rig) -> None:
    """What answers an older message is not taken for the answer to this one."""
    rig.ranks.execute(plan(1), nothing, "old")
    rig.ends[0].send(answer(1, 1, result="old"), 0.0)
    told = rig.ranks.execute(plan(2), nothing, "new")

    assert rig.wires[0].num_received == 3
    assert told.results == {1: "new", 2: "new"}


def answer(number: int, worker: int, result: object = None, report: Report | None = None) -> bytes:
    """An answer as bytes, made like a real one."""
    from blocklife.copiers._distributed import _RankAnswer

    return pickle.dumps(_RankAnswer(number, Worker(worker), report or Report((), ()), result, False, ""))


def forged(number: int) -> bytes:
    done = Completion(JobId(1, 1), Worker(2), Result.OK)
    return answer(number, 1, report=Report((), (done,)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda _: b"nonsense", "rank 1: its answer cannot be read"),
        (lambda _: pickle.dumps("hello"), "rank 1: it answers a message that was never sent"),
        (lambda _: answer(99, 1), "rank 1: it answers a message that was never sent"),
        (lambda _: answer(1, 2), "rank 1: it reports in the name of another worker"),
        (lambda _: forged(1), "rank 1: it reports in the name of another worker"),
    ],
    ids=["no pickle", "no answer", "future", "signed by another", "for another"],
)
def test_ranks_lose_one_that_speaks_nonsense(rig: Rig, change: Callable[[bytes], bytes], why: str) -> None:
    """No word of it is believed, and the others' words are."""
    rig.wires[0].change = change
    told = rig.ranks.execute(plan(1), nothing, "work")
    (loss,) = rig.ranks.take_losses()

    assert loss.worker == 1
    assert loss.why.startswith(why)
    assert told.results == {2: "work"}
    assert told.completions == ()


def test_serve_ends_when_rank_0_is_gone(rig: Rig) -> None:
    """A rank whose link breaks drains its copier and raises; its share is quiet."""
    rig.executors[1].copier.launch(LOAD)
    rig.wires[0].send(STOP, 0.0)
    rig.threads[0].join(HANGS_S)
    rig.wires[0].cut = "rank 1: silent"

    assert rig.gone == ["the other end is gone"]
    assert np.array_equal(rig.device[1][[6, 7]], rig.host[1][[5, 0]])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda rig: Ranks(rig.executors[1], []), "the copier of rank 0 is worker 1"),
        (lambda rig: Ranks(rig.executors[0], rig.wires[::-1]), r"links to \[2, 1\]"),
        (lambda rig: Ranks(rig.executors[0], rig.wires, timeout_s=0.0), "leave no time"),
        (lambda _: connect(), "not initialised"),
    ],
    ids=["wrong worker", "wrong links", "no time", "no process group"],
)
def test_ranks_refuse_what_cannot_work(rig: Rig, build: Callable[[Rig], object], message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        build(rig)


# --- time --------------------------------------------------------------------------------------------------------------


class Line:
    """What stands below a link, in a time of its own: each part of a message takes so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *takes: float) -> None:
        self.takes = list(takes)
        self.given: list[float] = []
        """The seconds that each part was given."""
        self.now = 100.0
        self.link = Link(Worker(1), None)  # type: ignore[arg-type]
        monkeypatch.setattr("blocklife.copiers._distributed.time", self)
        monkeypatch.setattr("torch.distributed.isend", lambda tensor, peer, group: self)
        monkeypatch.setattr("torch.distributed.irecv", lambda tensor, peer, group: (tensor.fill_(3), self)[1])

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: timedelta) -> None:
        self.given.append(timeout.total_seconds())
        left, needs = self.given[-1], self.takes.pop(0)
        self.now += min(left, needs)
        if needs > left:
            raise RuntimeError("timed out")


@pytest.mark.parametrize("way", ["send", "receive"])
def test_link_gives_a_message_its_time_and_no_more(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parts of a message share one time; who does not keep it is told from who has gone."""

    def talk(line: Line, timeout_s: float) -> None:
        if way == "send":
            line.link.send(b"abc", timeout_s)
        else:
            assert line.link.receive(timeout_s) == bytes([3] * 3)

    in_time = Line(monkeypatch, 2.0, 1.0)
    talk(in_time, 5.0)
    slow = Line(monkeypatch, 2.0, 9.0)
    with pytest.raises(LinkError, match="rank 1: no answer in time"):
        talk(slow, 5.0)

    assert in_time.given == [5.0, 3.0]
    assert (slow.given, slow.now) == ([5.0, 3.0], 105.0)


def test_link_takes_what_has_arrived_although_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that came while another rank was waited for counts; what is still not there then is late at once."""
    there = Line(monkeypatch, 0.0, 0.0)
    assert there.link.receive(-3.0) == bytes([3] * 3)
    missing = Line(monkeypatch, 9.0)
    with pytest.raises(LinkError, match="no answer in time"):
        missing.link.receive(-3.0)

    assert 0.0 < missing.now - 100.0 <= 1.0


def test_ranks_give_all_ranks_together_the_time_of_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """To be told each has the whole time; to answer they share it, and an old answer buys nobody more."""
    line = Line(monkeypatch)

    def slow(payload: bytes) -> bytes:
        line.now += 2.0
        return payload

    rig.ranks.execute(plan(1), nothing, "old")
    rig.ends[0].send(answer(1, 1, result="old"), 0.0)
    rig.wires[0].given.clear()
    rig.wires[1].given.clear()
    rig.wires[0].change = slow
    told = rig.ranks.execute(plan(2), nothing, "new")

    assert told.results == {1: "new", 2: "new"}
    assert rig.wires[0].given == [5.0, 5.0, 3.0]
    assert rig.wires[1].given == [5.0, 1.0]


# --- processes ---------------------------------------------------------------------------------------------------------


PLANTED = """\
import importlib.util, os, signal, sys

sign, victim, at = (int(word) for word in sys.argv[2:5])
spec = importlib.util.spec_from_file_location("ranks_example", sys.argv[1])
example = importlib.util.module_from_spec(spec)
sys.modules["ranks_example"] = example
spec.loader.exec_module(example)
example.TIMEOUT_S = 6.0 if sign == signal.SIGSTOP else 30.0
passes, real = 0, example.check_and_write


def planted(*args):
    global passes
    passes += 1
    if passes == at:
        os.kill(os.getpid(), sign)
    return real(*args)


if int(os.environ["RANK"]) == victim:
    example.check_and_write = planted
    import blocklife.engines.toy._engine

    blocklife.engines.toy._engine.check_and_write = planted
sys.exit(example.main())
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**clean, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **more}


def planted(tmp_path: Path, sign: signal.Signals, *, victim: int, at: int) -> list[tuple[int | None, str, str]]:
    """Run the example on two ranks, one of which gets a signal in that forward pass; status and output of each rank.

    A rank that still stands stopped when the other has ended is killed, and has no status.
    """
    script, port = tmp_path / "planted.py", str(free_port())
    script.write_text(PLANTED)
    command = [sys.executable, str(script), str(EXAMPLE), *map(str, (int(sign), victim, at))]
    processes = [
        subprocess.Popen(
            command,
            env=environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found: dict[int, tuple[int | None, str, str]] = {}
    try:
        for rank in (1 - victim, victim):
            if rank == victim and sign is signal.SIGSTOP:
                processes[rank].kill()
            out, err = processes[rank].communicate(timeout=HANGS_S)
            found[rank] = (processes[rank].returncode, out, err)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [found[rank] for rank in range(2)]


def test_ranks_replay_under_torchrun() -> None:
    """Two ranks, started as the example says, verify the same blocks each, and nothing is corrupt."""
    where = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *where, str(EXAMPLE)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    verified = re.findall(r"^rank (\d): (\d+) blocks verified, (\d+) shares of jobs moved$", ran.stdout, re.MULTILINE)

    assert ran.returncode == 0, ran.stderr
    assert [rank for rank, _, _ in verified] == ["0", "1"]
    assert verified[0][1:] == verified[1][1:]
    assert int(verified[0][1]) > 0
    assert int(verified[0][2]) > 0
    assert "every rank verified as much: True\ncorrupt blocks: 0\nleaked places: 0\n" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_rank_0_outlives_a_rank_that(sign: signal.Signals, tmp_path: Path) -> None:
    """Rank 0 ends by itself: what the rank owed has failed, nothing is corrupt, and no place is lost."""
    (status, out, err), (gone, _, _) = planted(tmp_path, sign, victim=1, at=40)
    why = {signal.SIGKILL: "the connection is broken", signal.SIGSTOP: "no answer in time"}[sign]

    assert status == 1, err
    assert err == f"lost rank 1: {why}\n"
    assert gone == -signal.SIGKILL
    assert "'FAILED': " in out
    assert "every rank verified as much: False\ncorrupt blocks: 0\nleaked places: 0\n" in out


@pytest.mark.slow
def test_a_rank_ends_when_rank_0_dies(tmp_path: Path) -> None:
    """Nobody is left to give it work, and it does not wait for any."""
    (gone, _, _), (status, out, err) = planted(tmp_path, signal.SIGKILL, victim=0, at=40)

    assert gone == -signal.SIGKILL
    assert (status, out) == (1, "")
    assert "rank 1 ends: rank 0: the connection is broken\n" in err
