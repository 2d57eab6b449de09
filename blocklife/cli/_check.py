"""`blocklife check`: every state of a small world, and what holds in all of them. Here: its options, and which world is meant.

Another way to look at a world (long walks, say) is one more option here and one more function that takes its settings.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from blocklife.cli._common import OK, Parser, file, number, whole, wrapped
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from blocklife.testing.worlds._format import Value
    from blocklife.testing.worlds._world import WorldSettings

_EXAMPLES = """\
examples:
  blocklife check                                   two requests, three blocks, two slots: every state
  blocklife check --contract hold --faults hang=1,preempt=1
                                                    hold a busy block; one copy may hang, one request be preempted
  blocklife check --list                            the pinned worlds
  blocklife check --world windows --last-step drain a pinned world, with one thing changed
  blocklife check world.toml --max-seconds 60       a world from a file; 60 seconds at most
  blocklife check --groups full:2,swa:2:2 --blocks 6 --requests abcd.ef,abcd.gh
                                                    a hybrid model
  blocklife check world.toml --write DIR            on a violation: story, scenario, program and diagram
  blocklife check --walk 100000 --seed 7            a long walk through a world too large to enumerate
  blocklife check --json | jq .states               one JSON report
exit status: 0 all holds, 1 something is violated, 2 bad input, 3 the search stopped at a limit, 130 after Ctrl-C
"""

_PREFIX = "word_"


def add_options(parser: Parser) -> None:
    """Its options: one for each word of `testing.world_format`, and the bounds."""
    parser.describe(
        "Explore every state of a small world: the real scheduler and ledger, an independent device, and the messages "
        "between them. Every rule is checked in every step, and from every state all work must be able to finish.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add("file", nargs="?", type=file, metavar="WORLD.toml", help="a world from a file; options override what it says")
    add("--world", metavar="NAME", help="a pinned world; options override what it says")
    add("--list", action="store_true", help="list the pinned worlds")
    _add_words(parser)
    bounds = parser.add_argument_group("bounds", "a search that hits one is never a pass")
    bounds.add_argument("--max-states", type=whole, metavar="N", help="give up after N states")
    bounds.add_argument("--max-depth", type=whole, metavar="N", help="give up N steps away from the initial state")
    bounds.add_argument("--max-seconds", type=number, metavar="S", help="give up after S seconds")
    add(
        "--processes",
        type=whole,
        metavar="N",
        help="number of processes (one for a small world, one per processor for a large one)",
    )
    add("--walk", type=whole, metavar="STEPS", help="walk STEPS random steps instead; all work must finish after every leg")
    add("--seed", type=whole, metavar="N", help="seed of --walk (default 0)")
    add("--all", action="store_true", help="go on after the first counterexample, and find one of each property")
    add(
        "--write", type=file, metavar="DIR", help="on a violation, write story.txt and counterexample.toml, .py and .mmd to DIR"
    )
    add("-v", "--verbose", action="store_true", help="name the rows that were never taken")
    add("--json", action="store_true", help="print one JSON report instead of tables; with --list a line for each world")
    parser.set_defaults(run=_check)


def _add_words(parser: Parser) -> None:
    from blocklife.testing.worlds._actions import FAULT_DOCS
    from blocklife.testing.worlds._format import WORDS

    group = parser.add_argument_group(
        "the world", "defaults, unless the file or pinned world says otherwise, are in parentheses"
    )
    group.add_argument(
        "--requests", metavar="LIST", help="requests that may arrive: PROMPT.OUTPUT, one letter a token (a.bc,a.bd)"
    )
    group.add_argument("--faults", metavar="LIST", help=f"maximum number of each fault: {', '.join(FAULT_DOCS)} (none)")
    for word in WORDS:
        option, dest = f"--{word.name.replace('_', '-')}", _PREFIX + word.name
        told = f"{word.doc} ({word.default_said})"
        if word.kind is bool:
            group.add_argument(option, dest=dest, action=argparse.BooleanOptionalAction, default=None, help=word.doc)
        elif word.choices:
            group.add_argument(option, dest=dest, choices=word.choices, help=told)
        elif word.kind is int:
            group.add_argument(option, dest=dest, type=whole, metavar="N", help=told)
        elif word.kind is float:
            group.add_argument(option, dest=dest, type=number, metavar="T", help=told)
        else:
            group.add_argument(option, dest=dest, metavar=word.name.upper(), help=told)


def _check(args: argparse.Namespace) -> int:
    from blocklife.cli._exploring import explore_world, walk_in

    mode = "--list" if args.list else "--walk" if args.walk is not None else ""
    for option in _given(args):
        if option != mode and option not in _GOES_WITH[mode]:
            raise MisuseError(f"{option} does not go with {mode or 'an exploration'} (leave one of them out)")
    if mode == "--list":
        return _list(as_json=args.json)
    if mode == "--walk":
        return walk_in(_asked_for(args), args)
    return explore_world(world_of(args), args)


_WORLD, _BOUNDS = "what describes a world", ("--max-states", "--max-depth", "--max-seconds")
_GOES_WITH: Mapping[str, frozenset[str]] = {
    "": frozenset({_WORLD, "--verbose", "--all", "--write", "--processes", *_BOUNDS}),
    "--walk": frozenset({_WORLD, "--seed", "--write"}),
    "--list": frozenset(),
}
"""Which options each way of looking at worlds takes besides `--json`; the others would be passed over in silence."""


def _given(args: argparse.Namespace) -> list[str]:
    """The options that were given."""
    found = [_WORLD] if args.file or args.world or _words_given(args) else []
    for option in ("--list", "--walk", "--verbose", "--seed", "--all", "--write", "--processes", *_BOUNDS):
        value = getattr(args, option.removeprefix("--").replace("-", "_"))
        if value is not None and value is not False:
            found.append(option)
    return found


def _words_given(args: argparse.Namespace) -> bool:
    words = [value for name, value in vars(args).items() if name.startswith(_PREFIX)]
    return any(value is not None for value in (*words, args.requests, args.faults))


def _asked_for(args: argparse.Namespace) -> WorldSettings:
    """The world to walk in: a large one where none is described."""
    from blocklife.testing.exploring._walk import LARGE

    return world_of(args) if args.file or args.world or _words_given(args) else LARGE


def world_of(args: argparse.Namespace) -> WorldSettings:
    """The world that is meant: a file or a pinned one, and what options override."""
    from blocklife.testing.worlds._format import FAULTS, REQUESTS, make_world, parse_faults, read_world, words_of
    from blocklife.testing.worlds._pinned import pinned_world

    if args.file and args.world:
        raise MisuseError(f"{args.file} and --world {args.world} both name a world (give one)")
    words: dict[str, object] = {}
    if args.file:
        words = read_world(args.file)
        make_world(words, args.file)  # so that the file is blamed for what it says
    elif args.world:
        words = dict(words_of(pinned_world(args.world).settings))
    said = {name.removeprefix(_PREFIX): value for name, value in vars(args).items() if name.startswith(_PREFIX)}
    given: dict[str, Value] = {name: value for name, value in said.items() if value is not None}
    if args.requests is not None:
        given[REQUESTS] = [each.strip() for each in args.requests.split(",")]
    if args.faults is not None:
        given[FAULTS] = parse_faults(args.faults) if args.faults.strip() else {}
    if not given:
        return make_world(words, args.file or "the world")
    _blame_options(given)
    return make_world({**words, **given}, "the world")


def _blame_options(given: Mapping[str, Value]) -> None:
    """A value that is wrong in itself is refused under the name of its option."""
    from blocklife.testing.worlds._format import WORDS

    for word in WORDS:
        if word.name in given:
            word.checked(given[word.name], f"--{word.name.replace('_', '-')}")


def _list(*, as_json: bool) -> int:
    from blocklife.testing.worlds._format import said, words_of
    from blocklife.testing.worlds._pinned import WORLDS

    for each in WORLDS:
        if as_json:
            record = {
                "name": each.name,
                "about": each.about,
                "large": each.large,
                "world": words_of(each.settings),
                "counts": each.counts._asdict(),
            }
            print(json.dumps(record))
        else:
            size = f"{each.counts.states:,} states{', large' if each.large else ''}"
            print(wrapped(f"{each.name} ({size}): {each.about}\n    {said(each.settings)}", 8))
    return OK
