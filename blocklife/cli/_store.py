"""`blocklife store`: stores below the host tier, and whether they keep what the protocol promises."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from blocklife.cli._common import INTERRUPTED, OK, WRONG, Parser, stopping, telling, wrapped
from blocklife.errors import MisuseError

_EXAMPLES = """\
examples:
  blocklife store check fs:/data/kv-check:48M       every check, against files in a folder
  blocklife store check my_package.module:factory   against a store of your own
  blocklife store check fs:/data/kv --only any_key  one of them; may be given more than once
  blocklife store check --list                      what is checked
exit status: 0 no check fails, 1 some fail, 2 there is no such store or check, 130 after Ctrl-C
What a check puts it takes away again, where the store can. A folder that was no store before is left as it was, and removed if
it was not there. Checks of its room need a store of 2 MiB to 64 MiB. A bound counts for all that is in a folder: with BYTES the
folder must be empty, so that nothing that is in use is evicted.
"""


def add_options(parser: Parser) -> None:
    """Its commands."""
    check = parser.commands("Stores that keep content below the host tier.")(
        "check", "run the conformance suite against a store"
    )
    check.describe(
        "Check that a store does what blocklife.tiers.ContentStore promises. Each check passes, fails or is skipped, and says "
        "why.",
        _EXAMPLES,
    )
    said = "the store: fs:DIR, fs:DIR:BYTES, mooncake:HOST:PORT or package.module:factory"
    check.add_argument("address", nargs="?", metavar="ADDRESS", help=said)
    check.add_argument("--only", action="append", default=[], metavar="NAME", help="make this check only")
    check.add_argument("--list", action="store_true", help="list the checks")
    check.add_argument("--json", action="store_true", help="print one JSON line for each check")
    check.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    from blocklife.testing.tiers._suite import StoreCheckVerdict, check_address, store_checks
    from blocklife.testing.tiers._trial import CHECKS

    if args.list:
        for name in store_checks():
            says = CHECKS[name].says
            print(json.dumps({"name": name, "says": says}) if args.json else wrapped(f"{name:<34}{says}", 34))
        return OK
    if args.address is None:
        raise MisuseError("no store is named (give fs:DIR, mooncake:HOST:PORT or package.module:factory)")
    verdicts: list[StoreCheckVerdict] = []
    interrupted = False
    answers, total = sys.stdout, len(args.only) or len(store_checks())
    # what a store prints, now or in a thread of its own, is no line of the report
    with contextlib.redirect_stdout(sys.stderr), stopping() as stop, telling("store check") as tell:
        for each in check_address(args.address, names=args.only):
            verdicts.append(each.verdict)
            record = {"name": each.name, "verdict": each.verdict.name.lower(), "says": each.says}
            tell.print(json.dumps(record) if args.json else str(each), answers)
            tell(lambda: f"{len(verdicts)} checks", len(verdicts), total)
            if interrupted := stop():
                break
    failed = verdicts.count(StoreCheckVerdict.FAILED)
    if not args.json:
        passed, skipped = verdicts.count(StoreCheckVerdict.PASSED), verdicts.count(StoreCheckVerdict.SKIPPED)
        print(f"{len(verdicts)} checks of {args.address}: {passed} passed, {failed} failed, {skipped} skipped")
    if interrupted:
        return INTERRUPTED
    return WRONG if failed else OK
