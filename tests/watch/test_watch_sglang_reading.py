"""How the watch over SGLang reads indices: all of a page, both sides of a copy, and what lies on a device once a step.

Goal: a copy of torn pages, or of lists that do not belong together, is named; and the watch waits for the device as often for
many requests as for one. Method: fakes, and indices that count who waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blocklife.engines.sglang.watch import Options, Watch, WatchMode, attach
from blocklife.engines.sglang.watch._reading import IndexReading
from tests.watch.sglang_fakes import PAGE, FakeEngine, Indices, slots_of, swapped

torch = pytest.importorskip("torch")

TEXT = [*range(100, 116)]


def watched() -> tuple[FakeEngine, Watch]:
    """An engine with a text in pages 1 to 4, and a watch over it."""
    engine = FakeEngine()
    watch = attach(engine, Options(mode=WatchMode.LOG))
    engine.take(1, 2, 3, 4)
    engine.compute("a", TEXT, [1, 2, 3, 4])
    engine.keep(TEXT, [1, 2, 3, 4])
    return engine, watch


# --- whole pages ----------------------------------------------------------------------------------------------------------


def foreign(indices: Indices) -> Indices:
    """The last token of the first page lies in the second."""
    found = indices.copy()
    found[PAGE - 1] = found[PAGE]
    return found


def shifted(indices: Indices) -> Indices:
    """All pages begin one token late."""
    return indices + 1


@pytest.mark.parametrize("torn", [swapped, foreign, shifted, lambda indices: indices[:-1]])
@pytest.mark.parametrize("side", ["device", "host"])
def test_store_of_torn_pages_is_named_when_it_is_queued(torn: Any, side: str) -> None:
    """On either side: all tokens of a page are looked at, and not its first alone."""
    engine, watch = watched()
    device, host = slots_of([1, 2, 3, 4]), slots_of([0, 1, 2, 3])
    device, host = (torn(device), host) if side == "device" else (device, torn(host))
    engine.host.next = [0, 1, 2, 3]
    engine.host.alloc(4 * PAGE)
    engine.controller.write_queue.append(SimpleNamespace(device_indices=device, host_indices=host, pool_transfers=[]))
    engine.controller.write(slots_of([]))
    found = [each.rule for each in watch.violations if "whole pages" in each.what or "of the device and" in each.what]

    assert found == (["I15", "I8"] if len(device) != len(host) else ["I8"])


class OnHost(np.ndarray):
    """Indices that say where they lie, as those of a tensor do."""

    is_cuda = False


@pytest.mark.parametrize("how", ["pages", "another pool"])
def test_host_pool_that_is_told_other_numbers_is_not_compared(how: str) -> None:
    """The unified pools number their memory in another way than their tables; some pools copy pages, and name pages."""
    engine = FakeEngine()
    if how == "pages":
        pages = lambda host, device, backend: (host[::PAGE] // PAGE, device[::PAGE] // PAGE)  # noqa: E731
        vars(engine.host)["prepare_transfer_indices"] = pages

    def submit(given: list[SimpleNamespace]) -> None:
        pool = None if how == "pages" else SimpleNamespace(host_transfer_translate=lambda indices: indices + PAGE)
        for each in given:
            host, device = each.host_pool.prepare_transfer_indices(each.host_indices, each.device_indices, "direct")
            if pool is not None:
                device = pool.host_transfer_translate(device)
            each.host_pool.backup_from_device_all_layer_physical(pool, host.view(OnHost), device.view(OnHost), "direct")

    vars(engine.controller.l2_transfer_engine)["submit_device_to_host"] = submit
    watch = attach(engine, Options(mode=WatchMode.LOG))
    engine.take(1, 2)
    engine.compute("a", TEXT[:8], [1, 2])
    engine.store([1, 2], [0, 1])

    assert watch.counts == {}


# --- waiting for the device -----------------------------------------------------------------------------------------------


class Device:
    """Counts how often anybody waits for it."""

    type = "cuda"
    waited = 0


class There(np.ndarray):
    """Indices that lie on a device: who looks at their entries waits for it."""

    device = Device  # type: ignore[assignment]
    is_cuda = True

    def tolist(self) -> Any:
        """Wait for the device."""
        Device.waited += 1
        return np.asarray(self).tolist()

    def item(self, *args: Any) -> Any:
        """The same of one entry."""
        Device.waited += 1
        return np.asarray(self).item(*args)

    def __iter__(self) -> Any:
        Device.waited += 1
        return iter(np.asarray(self))

    def numel(self) -> int:
        """What a tensor calls its size."""
        return self.size

    def clone(self) -> There:
        """What a tensor calls a copy."""
        return self.copy()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is torch.cat
        return np.concatenate([np.asarray(each) for each in args[0]]).view(There)


def there(values: Any) -> There:
    """These, on the device."""
    return np.asarray(values, dtype=np.int64).view(There)


def served_on_device(num_requests: int, num_steps: int = 5) -> tuple[int, int, Watch]:
    """Requests of one page that are decoded together, kept, stored, freed. Returns how often a step waited, and the rest."""
    engine = FakeEngine()
    tree = engine.tree_cache
    tree.req_to_token_pool.req_to_token = there(np.zeros((8, 64)))
    watch = attach(engine, Options(mode=WatchMode.STRICT))
    pages = range(1, num_requests + 1)
    names = [f"r{page}" for page in pages]
    requests = [
        SimpleNamespace(rid=name, origin_input_ids=[at, 1], output_ids=[], req_pool_idx=at, finished=lambda: True)
        for at, name in enumerate(names)
    ]
    most = 0
    Device.waited = 0
    for step in range(num_steps):
        before = Device.waited
        if not step:
            engine.allocator.alloc_extend(there(slots_of(pages)))
            for row, page in enumerate(pages):
                tree.req_to_token_pool.req_to_token[row, :PAGE] = slots_of([page])
        engine.batch = SimpleNamespace(
            reqs=requests,
            forward_mode=SimpleNamespace(is_extend=lambda is_first=not step: is_first),
            prefix_lens=[0] * num_requests,
            req_pool_indices=there(range(num_requests)),
            seq_lens_cpu=np.full(num_requests, min(step + 2, PAGE)),
            hicache_consumer_index=-1,
        )
        engine.get_next_batch_to_run()
        engine.forward()
        engine.result()
        for request in requests:
            request.output_ids = [5, 6][: step + 1]
        most = max(most, Device.waited - before)
    before = Device.waited
    finished(engine, requests, pages)
    engine.rest(1)
    return most, Device.waited - before, watch


def finished(engine: FakeEngine, requests: Sequence[Any], pages: Sequence[int]) -> None:
    """All requests have ended: each is kept and stored by itself, and half of them are evicted."""
    tree = engine.tree_cache
    engine.process_batch_result(SimpleNamespace(reqs=requests), None)
    for page, request in zip(pages, requests, strict=True):
        key = SimpleNamespace(token_ids=[*request.origin_input_ids, 5, 6])
        tree.insert(SimpleNamespace(key=key, value=there(slots_of([page]))))
        engine.host.next = [page]
        engine.controller.write(there(slots_of([page])))
        engine.controller.start_writing()
    engine.land()
    for page in list(pages)[::2]:
        engine.allocator.free(there(slots_of([page])))


def test_step_waits_for_the_device_once_for_any_number_of_requests() -> None:
    """A step is read all at once, and so is all that happens between two steps: for six requests as often as for one."""
    for number in (1, 6):
        in_a_step, behind, watch = served_on_device(number)

        assert watch.counts == {}
        assert watch.lost is None
        assert in_a_step == 1
        assert behind == 2  # ahead of the acknowledgements, and at the next look


def test_what_is_read_late_is_judged_by_what_it_was() -> None:
    """A page is freed by a part of a table that another request gets before anybody has read it; facts keep their order."""
    engine = FakeEngine()
    table = there(slots_of([1, 2]))
    watch = attach(engine, Options(mode=WatchMode.LOG))
    engine.allocator.alloc_extend(there(slots_of([1, 2])))
    engine.allocator.free(table[:PAGE])
    table[:PAGE] = slots_of([2])
    engine.allocator.alloc_extend(there(slots_of([1])))
    engine.free_host(3)  # on the host, and behind all these
    assert watch.counts == {}
    engine.rest(1)
    assert watch.counts == {"I4": 1}

    engine.allocator.free(there(slots_of([1, 2])))
    engine.allocator.free(there(slots_of([2])))
    engine.rest(1)

    assert [each.what for each in watch.violations] == [
        "slot 3 is freed, and nobody holds it",
        "block 2 is freed, and nobody holds it",
    ]


def test_reading_takes_along_what_is_ahead_of_it() -> None:
    """In order, and once; what lies on the host is told at once unless something is ahead of it."""
    reading, told = IndexReading(), list[object]()
    Device.waited = 0
    reading.later(told.append, np.array([1, 2]))
    reading.later(told.append, there([3]))
    reading.later(lambda *lists: told.append(lists), np.array([4]), None, there([5, 6]))
    assert told == [[1, 2]]
    assert reading.now(there([7]), np.array([8])) == [[7], [8]]
    assert told == [[1, 2], [3], ([4], [], [5, 6])]
    assert Device.waited == 1
    reading.report()

    assert Device.waited == 1
