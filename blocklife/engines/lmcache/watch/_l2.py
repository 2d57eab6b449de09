"""Ears on LMCache's L2: what adapters are asked and answer, and what the controllers do about it."""

from __future__ import annotations

from functools import partial
from typing import Any

from blocklife.engines.lmcache.watch._parts import BY_TIER, ServerParts, name_of, names_of
from blocklife.watch import Ears, HeardCall


class AdapterEars:
    """Ears on the adapters of one storage manager, also on those that come later."""

    def __init__(self, ears: Ears, parts: ServerParts) -> None:
        self._ears = ears
        self._parts = parts
        self._book = parts.book
        self._asks: dict[tuple[int, int], list[bytes]] = {}
        """The keys of each lookup that is out, by adapter and number."""
        for number, adapter in parts.storage._l2_adapters.items():
            self._hear(number, adapter)
        ears.hear(parts.storage, "_build_l2_adapter", after=self._comes, tells="adapters that come later")

    def _comes(self, call: HeardCall) -> None:
        found: Any = call.result
        self._hear(int(found[0]), found[1])

    def _hear(self, number: int, adapter: object) -> None:
        hear = self._ears.hear
        for kind in ("store", "load"):
            hear(adapter, f"submit_{kind}_task", after=partial(self._submitted, number, kind), tells="copies of adapters")
        hear(adapter, "pop_completed_store_tasks", after=partial(self._stored, number))
        hear(adapter, "query_load_result", after=partial(self._loaded, number))
        hear(adapter, "query_lookup_and_lock_result", after=partial(self._found, number))
        hear(adapter, "submit_lookup_and_lock_task", after=partial(self._asked, number))
        hear(adapter, "submit_unlock", before=partial(self._unlocks, number))

    def _submitted(self, number: int, kind: str, call: HeardCall) -> None:
        keys, objects = call.given("keys", "objects")
        places = [self._parts.place(each) for each in objects] if isinstance(objects, list) else []
        task: Any = call.result
        self._book.submitted((number, kind, int(task)), names_of(keys), places)

    def _stored(self, number: int, call: HeardCall) -> None:
        found: Any = call.result
        for task in found:
            self._book.reported((number, "store", int(task)), ())

    def _loaded(self, number: int, call: HeardCall) -> None:
        bits: Any = call.result
        if bits is not None:
            (task,) = call.given("task_id")
            self._book.reported((number, "load", int(str(task))), set(bits.get_indices_list()))

    def _asked(self, number: int, call: HeardCall) -> None:
        (keys,) = call.given("keys")
        self._asks[number, int(str(call.result))] = names_of(keys)

    def _found(self, number: int, call: HeardCall) -> None:
        bits: Any = call.result
        (task,) = call.given("task_id")
        if bits is not None and (keys := self._asks.pop((number, int(str(task))), None)) is not None:
            self._book.found_below(number, [keys[at] for at in bits.get_indices_list()])

    def _unlocks(self, number: int, call: HeardCall) -> None:
        self._book.unlocked_below(number, names_of(call.given("keys")[0]))


class ControllerEars:
    """Ears on the controllers that store and prefetch."""

    def __init__(self, ears: Ears, parts: ServerParts) -> None:
        self._parts = parts
        self._book = parts.book
        self._asking: dict[int, str] = {}
        """By number of a prefetch: the request that it is for."""
        self._early: dict[int, tuple[list[bytes], int]] = {}
        """What was found by prefetches whose request is not known yet: keys, and how often each is locked."""
        self._left: set[str] = set()
        """Requests that have ended before their prefetch."""
        storage = parts.storage
        for controller in storage._store_controllers.values():
            ears.hear(
                controller,
                "_submit_store_for_single_shape",
                after=lambda call: self._book.slots.ask_loose(),
                scope=BY_TIER,
                tells="stores to adapters",
            )
            ears.hear(controller, "_finalize_store", after=self._stored, scope=BY_TIER)
            ears.hear(controller, "_cleanup_in_flight_tasks", scope=BY_TIER)
        prefetch = storage._prefetch_controller
        ears.hear(
            prefetch,
            "_transition_to_load_phase",
            after=lambda call: self._book.slots.ask_pending(),
            scope="prefetch",
            tells="prefetches",
        )
        ears.hear(prefetch, "_poll_load_results", after=lambda call: self._book.loaded())
        ears.hear(prefetch, "_publish_result", before=self._publishes, tells="hits")
        ears.hear(storage, "submit_prefetch_task", before=self._asks_for, after=self._submitted)

    def _stored(self, call: HeardCall) -> None:
        task: Any = call.given("task_key")[0]
        self._book.stored((int(task[0]), "store", int(task[1])))

    # --- hits ---------------------------------------------------------------------------------------------------------------

    def _publishes(self, call: HeardCall) -> None:
        request: Any
        result: Any
        request, result = call.given("request", "result")
        locks = request.num_kv_readers if getattr(request.lock_mode, "name", "LOCK") == "LOCK" else 0
        number = int(request.request_id)
        keys: list[bytes] = []
        for group, bits in zip(request.key_groups, result.hit_cells, strict=True):
            keys += [name_of(group.keys[at]) for at in bits.get_indices_list()]
        who = self._asking.pop(number, None)
        for key in keys:
            self._book.told(key, who or f"prefetch {number}", locked=bool(locks))
        if who is not None:
            self._owns(who, keys, locks)
        else:
            self._early[number] = keys, locks

    def _asks_for(self, call: HeardCall) -> None:
        self._parts.step()

    def _submitted(self, call: HeardCall) -> None:
        handle: Any = call.result
        who, number = str(handle.external_request_id), int(handle.prefetch_request_id)
        if (found := self._early.pop(number, None)) is not None:
            self._owns(who, *found)
        else:
            self._asking[number] = who

    def _owns(self, who: str, keys: list[bytes], locks: int) -> None:
        if who and locks:
            self._book.owns(who, keys, locks)
        if who in self._left:
            self._left.discard(who)
            self._book.ends(who)

    def ended(self, who: str) -> None:
        """A request has ended."""
        if who in self._asking.values():
            self._left.add(who)
        else:
            self._book.ends(who)
