"""One block, from its first tenant to the host tier and to its second tenant.

Prints::

    the store is in flight: block 1 is IN_FLIGHT
    its holder has gone: block 1 is IN_FLIGHT
    the next tenant waits: block 1 is FLUSHED
    the wait is proven: block 1 is ALLOCATED
    what was stored can be found: slot [0]
    a name from the old life: block 1: cannot acquire its life 1, which is over; it is ALLOCATED in life 2 (look it up again)
"""

from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Ledger, Limits, Result, Store, Worker


def main() -> None:
    ledger = Ledger(Limits(num_blocks=2, num_slots=1))  # block 0 is the null block: one is left
    ledger.add_request("first")
    block = ledger.allocate("first", 1)
    sealed = ledger.seal(block, [b"the quick"])
    store = ledger.plan_store(Store.of(sealed, slots=[0], keys=[b"the quick"]))
    plan = ledger.dispatch(now=1)
    print("the store is in flight: block 1 is", ledger.blocks.state(1).name)
    ledger.settle(plan.number, now=1)

    ledger.finish("first")
    print("its holder has gone: block 1 is", ledger.blocks.state(1).name)
    ledger.add_request("second")
    ledger.allocate("second", 1)
    print("the next tenant waits: block 1 is", ledger.blocks.state(1).name)
    plan = ledger.dispatch(now=2)  # plan.flushes names the store: the worker waits for it before anything writes
    ledger.settle(plan.number, now=2, completions=[Completion(store.ids[0], Worker(0), Result.OK)])
    print("the wait is proven: block 1 is", ledger.blocks.state(1).name)
    print("what was stored can be found: slot", ledger.slots.prefix([b"the quick"]))
    try:
        ledger.acquire("second", sealed.lives)
    except MisuseError as problem:
        print("a name from the old life:", problem)


if __name__ == "__main__":
    main()
