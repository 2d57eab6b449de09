"""`blocklife completion`: a script that completes commands, options and their choices in a shell.

The script is text: a shell that completes starts no Python. Where a command has nothing to offer, the shell completes files.
zsh runs the script for bash, by its own `bashcompinit`.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from attrs import define, field

from blocklife.cli._common import OK, Parser, put_out

SHELLS = ("bash", "zsh")
_EXAMPLES = """\
examples:
  blocklife completion bash > ~/.local/share/bash-completion/completions/blocklife
                                                    for every new bash; needs the package bash-completion
  source <(blocklife completion bash)               for this bash
  source <(blocklife completion zsh)                for this zsh; or this line in ~/.zshrc, behind compinit
"""

_SCRIPT = """\
_blocklife() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" at=blocklife each commands= options=
    COMPREPLY=()
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$at $each" in
            {paths}) at="$at $each" ;;
        esac
    done
    case "$at $before" in
{choices}
    esac
    case "$at" in
{words}
    esac
    if [[ "$word" == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    elif [[ "$before" != -* ]]; then
        COMPREPLY=($(compgen -W "$commands" -- "$word"))
    fi
}}
complete -o default -F _blocklife blocklife
"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "Print a script that completes commands, options and choices. A shell that completes starts no Python.", _EXAMPLES
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=" or ".join(SHELLS))
    parser.set_defaults(run=_completion)


def _completion(args: argparse.Namespace) -> int:
    from blocklife.cli import make_parser

    put_out((_ZSH if args.shell == "zsh" else "") + script(make_parser()))
    return OK


@define(eq=False)
class _Words:
    """What can follow the words of one command."""

    commands: list[str] = field(factory=list)
    options: list[str] = field(factory=list)
    choices: dict[str, list[str]] = field(factory=dict)
    """Of each option that has some."""


def script(parser: Parser) -> str:
    """The script for all commands of a parser, in the language of bash."""
    found = dict(_commands("blocklife", parser))
    paths = [_quoted(path) for path in found if path != "blocklife"]
    choices = [
        f'        {_quoted(path, option)}) COMPREPLY=($(compgen -W {_quoted(*each)} -- "$word")); return ;;'
        for path, words in found.items()
        for option, each in words.choices.items()
    ]
    words = [
        f"        {_quoted(path)}) commands={_quoted(*each.commands)} options={_quoted(*each.options)} ;;"
        for path, each in found.items()
    ]
    return _SCRIPT.format(paths="|".join(paths), choices="\n".join(choices), words="\n".join(words))


def _quoted(*words: str) -> str:
    """Words as one word of the shell."""
    return shlex.quote(" ".join(words))


def _commands(path: str, parser: Parser) -> Iterator[tuple[str, _Words]]:
    """A command with all below it, each by its path."""
    parser.complete()
    here = _Words()
    yield path, here
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            here.commands += action.choices
            for name, below in action.choices.items():
                yield from _commands(f"{path} {name}", below)
            continue
        here.options += action.option_strings
        if action.choices is not None:
            each = [str(choice) for choice in action.choices]
            here.choices.update(dict.fromkeys(action.option_strings, each))
            if not action.option_strings:
                here.commands += each
