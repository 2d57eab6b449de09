"""The worker's side on tensors as vLLM lays them out: which bytes a block is, and in which order a step moves them.

Goal: every byte of a block goes to the host and back, in each layout that vLLM has, and nothing else does. Method: small
tensors with every byte different, stored, wiped and loaded by plans made by hand; on the CPU, and on a CUDA device where there
is one.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from blocklife.copiers._protocol import EngineCopier
from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.engines.vllm.connector._messages import Moved, StepPlan, WorkerReport
from blocklife.engines.vllm.connector._scheduler import loads_beside
from blocklife.engines.vllm.connector._worker import ConnectorWorker, MakeCopier, WorkerShape, torch_copier
from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Direction, JobId, Plan, Result, Transfer, Worker

BLOCKS, PAGE = 6, 32
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu])]
Caches = Mapping[str, torch.Tensor | Sequence[torch.Tensor]]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Where the tensors are."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return str(request.param)


def raw(device: str, layers: int = 2) -> torch.Tensor:
    """Bytes that all differ from their neighbours: so many layers of all blocks."""
    return (torch.arange(layers * BLOCKS * PAGE, device=device) % 251).to(torch.uint8)


def outer(device: str) -> tuple[Caches, torch.Tensor]:
    """Each layer by itself, block after block; keys and values are an axis inside the block."""
    memory = raw(device)
    halves = memory.view(2, BLOCKS, 2, PAGE // 2)
    return {"a": halves[0], "b": halves[1]}, memory


def strided(device: str) -> tuple[Caches, torch.Tensor]:
    """The same, with the axes inside a block in another order."""
    memory = raw(device)
    halves = memory.view(2, BLOCKS, 2, 4, PAGE // 8).transpose(2, 3)
    return {"a": halves[0], "b": halves[1]}, memory


def split(device: str) -> tuple[Caches, torch.Tensor]:
    """Each block is two blocks of the kernel: the first axis counts those."""
    memory = raw(device)
    return {"a": memory.view(2, 2 * BLOCKS, PAGE // 2)[0], "b": memory.view(2, 2 * BLOCKS, PAGE // 2)[1]}, memory


def packed(device: str) -> tuple[Caches, torch.Tensor]:
    """Blocks outermost: a block's pages of both layers lie side by side."""
    memory = raw(device)
    pages = memory.view(BLOCKS, 2, PAGE)
    return {"a": pages[:, 0], "b": pages[:, 1]}, memory


def states(device: str) -> tuple[Caches, torch.Tensor]:
    """One layer with two states in a page, as a list of tensors."""
    memory = raw(device)
    pages = memory.view(2, BLOCKS, PAGE)
    return {"a": [pages[0][:, :8], pages[0][:, 8:]], "b": pages[1]}, memory


def apart(device: str) -> tuple[Caches, torch.Tensor]:
    """Each layer by itself, with a gap behind each page that is somebody else's."""
    memory = raw(device, 4)
    pages = memory.view(2, BLOCKS, 2, PAGE)
    return {"a": pages[0, :, 0], "b": pages[1, :, 0]}, memory


def mixed(device: str) -> tuple[Caches, torch.Tensor]:
    """One layer with gaps between its pages, and one without."""
    memory = raw(device, 3)
    wide, dense = memory[: 2 * BLOCKS * PAGE], memory[2 * BLOCKS * PAGE :]
    return {"a": wide.view(BLOCKS, 2, PAGE)[:, 1], "b": dense.view(BLOCKS, PAGE)}, memory


LAYOUTS = [outer, strided, split, packed, states]


def made(
    caches: Caches,
    groups: Sequence[Sequence[str]] = (("a", "b"),),
    places: int = 8,
    make_copier: MakeCopier = torch_copier,
) -> ConnectorWorker:
    """A worker of rank 3 on these tensors."""
    shape = WorkerShape(
        rank=3,
        num_blocks=BLOCKS,
        num_places=places,
        groups=tuple(dict.fromkeys(names, PAGE) for names in groups),
        reports_blocks=len(groups) == 1,
    )
    worker = ConnectorWorker(shape, make_copier)
    worker.register(caches)
    return worker


def transfer(
    number: int, direction: Direction, blocks: Sequence[int], places: Sequence[int], sizes: Sequence[int] = ()
) -> Transfer:
    """A job."""
    one, other = np.array(blocks, dtype=np.int64), np.array(places, dtype=np.int64)
    source, target = (one, other) if direction is Direction.STORE else (other, one)
    return Transfer(JobId(1, number), direction, source, target, tuple(sizes) or (len(one),))


def run(worker: ConnectorWorker, *plans: Plan, loads: Mapping[JobId, str] | None = None) -> WorkerReport:
    """One step without a forward pass, through a pipe."""
    step = pickle.loads(pickle.dumps(StepPlan(plans, loads or {})))
    worker.begin(step)
    worker.end(step)
    worker.receive()
    report: WorkerReport = pickle.loads(pickle.dumps(worker.report()))
    return report


def settled(worker: ConnectorWorker, plan: Plan, loads: Mapping[JobId, str] | None = None) -> list[Completion]:
    """One step, and empty ones until a report says that something is over."""
    report = run(worker, plan, loads=loads)
    for number in range(plan.number + 1, plan.number + 1000):
        if report.completions:
            return list(report.completions)
        report = run(worker, Plan(number, (), (), ()))
    raise TimeoutError("nothing was reported")


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_worker_brings_every_byte_of_a_block_back(layout: type, device: str) -> None:
    """A block that was stored, wiped and loaded elsewhere has all its bytes, and no other block has changed."""
    caches, memory = layout(device)
    worker, before = made(caches), memory.clone()
    stored = settled(worker, Plan(1, (), (transfer(1, Direction.STORE, [4, 1], [7, 2]),), ()))
    settled(worker, Plan(2000, (transfer(2, Direction.LOAD, [2, 3], [7, 2]),), (), ()), loads={JobId(1, 2): "a"})
    own = memory.view(BLOCKS, 2 * PAGE).unsqueeze(0) if layout is packed else memory.view(2, BLOCKS, PAGE)
    old = before.view(own.shape)

    assert stored == [Completion(JobId(1, 1), Worker(3), Result.OK)]
    assert torch.equal(own[:, 2], old[:, 4])
    assert torch.equal(own[:, 3], old[:, 1])
    assert torch.equal(own[:, [0, 1, 4, 5]], old[:, [0, 1, 4, 5]])
    worker.close()


@pytest.mark.parametrize("layout", [apart, mixed], ids=lambda layout: layout.__name__)
def test_worker_leaves_gaps_between_pages_alone(layout: type, device: str) -> None:
    """Where pages of a layer have gaps between them, every byte of a page comes back, and what lies in the gaps stays."""
    caches, memory = layout(device)
    worker, before = made(caches), memory.clone()
    old = {name: torch.as_tensor(page).clone() for name, page in caches.items()}
    settled(worker, Plan(1, (), (transfer(1, Direction.STORE, [4, 1, 2], [7, 2, 3]),), ()))
    settled(worker, Plan(2000, (transfer(2, Direction.LOAD, [2, 3, 5], [7, 2, 3]),), (), ()), loads={JobId(1, 2): "a"})
    changed = {name: torch.as_tensor(page).clone() for name, page in caches.items()}
    for name, page in caches.items():
        torch.as_tensor(page)[:] = old[name]

    for name, page in changed.items():
        assert torch.equal(page, old[name][[0, 1, 4, 1, 4, 2]])
    assert torch.equal(memory, before)
    worker.close()


def test_worker_moves_groups_that_overlay_each_other(device: str) -> None:
    """Two groups share the blocks: a job of both moves each one's pages of its own blocks."""
    memory = raw(device)
    pages = memory.view(2, BLOCKS, PAGE)
    caches: Caches = {"a": pages[0], "b": pages[1], "c": pages[0]}
    worker, before = made(caches, (("a", "b"), ("c",))), memory.clone().view(2, BLOCKS, PAGE)
    settled(worker, Plan(1, (), (transfer(1, Direction.STORE, [1, 2], [0, 1], [1, 1]),), ()))
    settled(worker, Plan(2000, (transfer(2, Direction.LOAD, [3, 4], [0, 1], [1, 1]),), (), ()), loads={JobId(1, 2): "r"})

    assert torch.equal(pages[:, 3], before[:, 1])
    assert torch.equal(pages[0, 4], before[0, 2])
    assert torch.equal(pages[1, 4], before[1, 4])
    worker.close()


def test_worker_launches_stores_in_the_next_step_and_waits_first(device: str) -> None:
    """A store reads what its own step computes, and nothing of the next step is written before a flush of it is over."""
    memory = raw(device)
    caches: Caches = {"a": memory.view(2, BLOCKS, PAGE)[0], "b": memory.view(2, BLOCKS, PAGE)[1]}
    worker = made(caches)
    step = StepPlan((Plan(1, (), (transfer(1, Direction.STORE, [1], [0]),), ()),), {})
    worker.begin(step)
    memory.view(2, BLOCKS, PAGE)[:, 1] = 7  # the forward pass
    worker.end(step)
    first = worker.report()
    following = StepPlan((Plan(2, (), (), (JobId(1, 1),)),), {})
    worker.begin(following)
    memory.view(2, BLOCKS, PAGE)[:, 1] = 9  # the next tenant's
    worker.end(following)
    worker.receive()
    second = worker.report()
    settled(worker, Plan(3, (transfer(2, Direction.LOAD, [5], [0]),), (), ()), loads={JobId(1, 2): "r"})

    assert first.launched == ()
    assert [each.job for each in second.launched] == [JobId(1, 1)]
    assert memory.view(2, BLOCKS, PAGE)[:, 5].eq(7).all()
    worker.close()


@pytest.mark.parametrize("beside", [True, False])
def test_worker_launches_loads_beside_the_forward_pass_where_the_plan_says_so(beside: bool) -> None:
    """Together with the stores that were left; otherwise behind what it marks as computed. Each job is launched once."""
    calls: list[str] = []

    class Listening(TorchCopier):
        def computed(self, engine: object = None) -> None:
            calls.append("computed")
            super().computed(engine)

        def launch(self, transfer: Transfer) -> None:
            calls.append(f"{transfer.direction.name.lower()} {'beside' if self._behind else 'behind'}")
            super().launch(transfer)

    worker = made(outer("cpu")[0], make_copier=lambda cache, host, worker: Listening(cache, host, worker=worker))
    run(worker, Plan(1, (), (transfer(1, Direction.STORE, [1], [0]),), ()))
    calls.clear()
    plan = Plan(2, (transfer(2, Direction.LOAD, [5], [1]),), (transfer(3, Direction.STORE, [2], [2]),), ())
    step = StepPlan((plan,), {JobId(1, 2): "r"}, loads_beside=beside)
    worker.begin(step)
    worker.end(step)

    middle = ["load beside", "computed"] if beside else ["computed", "load behind"]
    assert calls == ["computed", "store beside", *middle]
    worker.close()


@pytest.mark.parametrize(
    ("zeroed", "copied", "beside"), [(None, None, True), ([4], [6], True), ([5], [], False), ([], [5], False)]
)
def test_loads_wait_for_a_step_that_fills_their_blocks_first(
    zeroed: list[int] | None, copied: list[int] | None, beside: bool
) -> None:
    """A block may have been given to a request that was preempted in the same step, and then to the one that loads."""
    copies = None if copied is None else [SimpleNamespace(dst_block_id=block) for block in copied]
    output: Any = SimpleNamespace(new_block_ids_to_zero=zeroed, kv_cache_block_copies=copies)
    plan = Plan(1, (transfer(1, Direction.LOAD, [3, 5], [0, 1]),), (), ())

    assert loads_beside(plan, output) is beside


def test_worker_launches_what_was_planned_between_two_steps_before_it_waits(device: str) -> None:
    """The stores of an early plan are on their way before the wait of the step's own plan for them."""
    caches, memory = outer(device)
    worker = made(caches)
    early = Plan(1, (), (transfer(1, Direction.STORE, [1], [0]),), ())
    step = StepPlan((early, Plan(2, (), (), (JobId(1, 1),))), {})
    worker.begin(step)
    memory.fill_(0)
    worker.end(step)
    worker.receive()
    report = worker.report()
    settled(worker, Plan(3, (transfer(2, Direction.LOAD, [5], [0]),), (), ()), loads={JobId(1, 2): "r"})

    assert report.number == 2
    assert [each.job for each in report.completions] == [JobId(1, 1)]
    assert memory.view(2, BLOCKS, PAGE)[:, 5].any()
    worker.close()


def test_worker_does_a_step_once() -> None:
    """vLLM may call the hooks of a step in any number: what was done is not done again."""
    caches, _ = outer("cpu")
    worker = made(caches)
    step = StepPlan((Plan(1, (), (transfer(1, Direction.STORE, [1], [0]),), ()),), {})
    for _ in range(3):
        worker.begin(step)
        worker.end(step)
        worker.end(step)
    completions = settled(worker, Plan(2, (), (), ()))

    assert len(completions) == 1
    worker.close()


@pytest.mark.parametrize("groups", [(("a", "b"),), (("a",), ("b",))], ids=["one group", "two groups"])
def test_worker_tells_a_failed_load_by_what_vllm_understands(groups: Sequence[Sequence[str]]) -> None:
    """A load of a place that does not exist fails: one group tells its blocks, several tell the request."""
    caches, _ = outer("cpu")
    worker = made(caches, groups)
    sizes = [2] if len(groups) == 1 else [1, 1]
    step = StepPlan((Plan(1, (transfer(1, Direction.LOAD, [2, 3], [0, 99], sizes),), (), ()),), {JobId(1, 1): "r"})
    worker.begin(step)
    worker.end(step)
    received = worker.receive()
    wanted = ([], [2, 3]) if len(groups) == 1 else (["r"], [])

    assert received.requests == {"r"}
    assert (sorted(received.failed), sorted(worker.bad_blocks())) == wanted
    assert worker.report().completions == (Completion(JobId(1, 1), Worker(3), Result.FAILED),)
    worker.close()


def test_worker_tells_of_a_copy_that_lands_behind_the_last_hook_of_its_step() -> None:
    """vLLM asks for what has been received at the end of a step: what has landed by then is told, and not a step later."""
    caches, _ = outer("cpu")

    class Slow(TorchCopier):
        lands = False

        def poll(self) -> list[Completion]:
            return super().poll() if self.lands else []

    def slow(cache: KvCache, host: HostMemory, worker: Worker) -> EngineCopier:
        return Slow(cache, host, worker=worker)

    worker = made(caches, make_copier=slow)
    step = StepPlan((Plan(1, (transfer(1, Direction.LOAD, [2], [0]),), (), ()),), {JobId(1, 1): "r"})
    worker.begin(step)
    worker.end(step)
    before = worker.receive().requests
    Slow.lands = True
    after = worker.receive().requests

    assert (sorted(before), sorted(after)) == ([], ["r"])
    assert [each.job for each in worker.report().completions] == [JobId(1, 1)]
    worker.close()


def test_worker_counts_the_bytes_that_it_moved() -> None:
    """A report says how many bytes arrived, how long it took, and how large each copy was."""
    caches, _ = outer("cpu")
    worker = made(caches)
    run(worker, Plan(1, (), (transfer(1, Direction.STORE, [1, 2], [0, 1]),), ()))
    report = run(worker, Plan(2, (), (), ()))

    assert (report.stored.num_bytes, report.stored.sizes) == (4 * PAGE, (4 * PAGE,))
    assert report.stored.seconds > 0
    assert report.loaded == Moved()
    worker.close()


def test_worker_takes_the_time_of_a_copy_that_ends_where_it_began() -> None:
    """Of a copy that is launched and landed within one call the time is that of its bytes: the copier reads both ends."""
    caches, _ = outer("cpu")
    ticks = itertools.count(start=100.0, step=0.5)

    def timed(cache: KvCache, host: HostMemory, worker: Worker) -> EngineCopier:
        return TorchCopier(cache, host, worker=worker, clock=lambda: next(ticks))

    worker = made(caches, make_copier=timed)
    run(worker, Plan(1, (), (transfer(1, Direction.STORE, [1, 2], [0, 1]), transfer(2, Direction.STORE, [3], [2])), ()))
    stored = run(worker, Plan(2, (), (), ())).stored
    load = Plan(3, (transfer(3, Direction.LOAD, [2], [0]),), (), ())
    loaded = run(worker, load, loads={JobId(1, 3): "r"}).loaded

    assert (stored.seconds, loaded.seconds) == (1.0, 0.5)
    worker.close()


def test_reports_of_workers_are_put_together() -> None:
    """What all workers have done is what the slowest has done; what they said is all of it."""
    one = WorkerReport(7, completions=(Completion(JobId(1, 1), Worker(0), Result.OK),), stored=Moved(3, 1.0, (3,)))
    other = WorkerReport(6, completions=(Completion(JobId(1, 1), Worker(1), Result.OK),), stored=Moved(4, 0.5, (4,)))
    both = one + other

    assert both.number == 6
    assert [each.worker for each in both.completions] == [0, 1]
    assert both.stored == Moved(7, 1.5, (3, 4))


def test_worker_refuses_tensors_that_it_cannot_copy() -> None:
    """A first axis that is no block, layers that interleave in two ways, and a step before any tensor are refused."""
    shape = WorkerShape(rank=0, num_blocks=BLOCKS, num_places=2, groups=({"a": PAGE, "b": PAGE},), reports_blocks=True)
    worker = ConnectorWorker(shape, torch_copier)
    memory = raw("cpu", 4)
    with pytest.raises(MisuseError, match="register_kv_caches comes first"):
        worker.begin(StepPlan((Plan(1, (), (), ()),), {}))
    with pytest.raises(MisuseError, match="its first axis must be the block"):
        worker.register({"a": torch.zeros(2, BLOCKS, PAGE // 2), "b": torch.zeros(2, BLOCKS, PAGE // 2)})
    with pytest.raises(MisuseError, match=f"one distance between blocks, not {4 * PAGE} and {3 * PAGE} bytes"):
        worker.register({"a": memory.view(BLOCKS, 4, PAGE)[:, 0], "b": memory[: 3 * BLOCKS * PAGE].view(BLOCKS, 3, PAGE)[:, 1]})
    short = memory.untyped_storage()[: BLOCKS * PAGE - 1]
    cut = torch.empty(0, dtype=torch.uint8).set_(short, 0, (BLOCKS, PAGE - 1), (PAGE, 1))
    with pytest.raises(MisuseError, match=f"{BLOCKS} blocks of {PAGE} bytes from 0 on do not fit {BLOCKS * PAGE - 1} bytes"):
        worker.register({"a": cut, "b": cut})
