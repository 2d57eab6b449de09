"""What fetches an engine for tests, whichever it is: pip in an environment of its own, under a lock, with progress and a log.

Rules of this file:

* The standard library only: this runs before anything is installed.
* pip does all the talking to the outside, by package names; where from is the business of its configuration.
* A run that was interrupted, at any point, is gone on with by the next one; what pip has downloaded comes from its cache then.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.behind.shelf import PROJECT, Shelf, entry_points, version

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
STEP_S = 2.0
"""A new line of progress comes at most this often."""
PAUSE_S = 10.0
"""A command that says nothing new is known to be still at work after so long."""
INSTALL = ("-m", "pip", "install", "--no-deps", "--no-compile")
"""What stands behind the interpreter. Of large packages little is imported, and that is compiled then."""
CPU_TORCH = "import sys, torch; sys.exit(torch.version.cuda is not None)"
"""A program that fails where torch is not the CPU build."""
_TOLD = re.compile(
    r"\s*(Collecting \S+|(Downloading|Using cached) \S+ \(.*\)|Preparing metadata|Installing collected packages)"
)
_LONGEST = 200


class FetchError(Exception):
    """Something could not be fetched; the message is one line and says what."""


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


def reason(said: Sequence[str]) -> str:
    """Why pip has failed, in one line."""
    errors = [line.strip() for line in said if line.strip().lower().startswith("error:")]
    if any("Retrying (" in line for line in said) and "No matching distribution" in "".join(errors[-1:]):
        return "no package index can be reached"
    if not errors or errors[-1] == "ERROR: Exception:":
        errors = [line.strip() for line in said if line.strip()] or ["pip said nothing"]
    return errors[-1].removeprefix("ERROR: ").removeprefix("error: ")[:_LONGEST]


@contextlib.contextmanager
def handed_over(waiting: queue.SimpleQueue[str | KeyboardInterrupt | None]) -> Iterator[None]:
    """Put interrupts into a queue: one that came while a process is being started would leave it running, unknown to us."""

    def put(number: int, frame: object) -> None:
        waiting.put(KeyboardInterrupt())

    before = {each: signal.signal(each, put) for each in INTERRUPTS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def next_of(waiting: queue.SimpleQueue[str | KeyboardInterrupt | None]) -> str | None:
    """The next line; "" if none comes for a while, None at the end."""
    try:
        found = waiting.get(timeout=PAUSE_S)
    except queue.Empty:
        return ""
    if isinstance(found, KeyboardInterrupt):
        raise found
    return found


def run(command: Sequence[str | Path], environ: Mapping[str, str], hear: Callable[[str], None]) -> int:
    """The exit status of a command. *hear* gets what it says, line by line, and "" when it has said nothing for a while."""
    waiting: queue.SimpleQueue[str | KeyboardInterrupt | None] = queue.SimpleQueue()
    with (
        handed_over(waiting),
        subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(environ),
            start_new_session=True,
        ) as process,
    ):

        def pump() -> None:
            for line in process.stdout or ():
                waiting.put(line)
            waiting.put(None)

        threading.Thread(target=pump, daemon=True).start()
        try:
            while (line := next_of(waiting)) is not None:
                hear(line)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # the command and all that it has started
            process.wait()
            raise
    while not waiting.empty():
        next_of(waiting)  # an interrupt that came with the end
    return process.returncode


def watched(
    command: Sequence[str | Path], shelf: Shelf, doing: str, *, total: int = 0, environ: Mapping[str, str] | None = None
) -> None:
    """Run a command that talks much: progress on stderr, everything in the log, and one line if it fails."""
    settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **(environ or {})}
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    begun = told = time.monotonic()
    said, latest = list[str](), "at work"

    def hear(line: str) -> None:
        nonlocal told, latest
        log.write(line)
        said.append(line)
        if found := _TOLD.match(line):
            latest = found[0].strip()
        now = time.monotonic()
        if now - told >= (STEP_S if found else PAUSE_S):
            told = now
            count = sum(each.startswith("Collecting ") for each in said)
            place = f"{count} of {total}: " if total and latest.startswith("Collecting") else ""
            say(f"  {now - begun:4.0f} s  {place}{latest}")

    with shelf.log.open("a", encoding="utf-8") as log:
        status = run(command, {**kept, **settings}, hear)
    if status:
        raise FetchError(f"{doing}: {reason(said)} (all that was said is in {shelf.log})")


def stamped(stamp: Path, text: str) -> None:
    """Write a stamp, the whole of it or none."""
    partial = stamp.with_suffix(".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(stamp)


def make_environment(shelf: Shelf, size: str, asked: Sequence[tuple[str, str]]) -> None:
    """The environment, from nothing unless it is whole: pip can tell what is installed, not whether all of it is.

    *size* is said ahead of it. What is *asked* of it at the end are programs, each with what is wrong where it fails.
    """
    if shelf.has_environment():
        say("environment: here")
        return
    for each in shelf.outdated():
        say(f"environment: {each} is for other requirements; remove it when nobody runs from it")
    shelf.stamp.unlink(missing_ok=True)
    if shelf.environment.exists():
        say("environment: removing one that is half-made, or whose interpreter is gone")
        shutil.rmtree(shelf.environment)
    wanted = [line for line in shelf.requirements.read_text(encoding="utf-8").splitlines() if "==" in line]
    say(f"environment: {len(wanted)} packages, {size}")
    pip = (shelf.python, *INSTALL, "--only-binary", ":all:")
    watched([sys.executable, "-m", "venv", shelf.environment], shelf, "environment")
    watched([*pip, "--requirement", shelf.requirements], shelf, "environment", total=len(wanted))
    for program, complaint in asked:
        watched([shelf.python, "-c", program], shelf, complaint)
    stamped(shelf.stamp, "whole\n")


def install_blocklife(shelf: Shelf) -> None:
    """blocklife from the working tree, anew when what it announces to pytest and vLLM has changed."""
    if shelf.has_blocklife():
        return
    say("environment: installing blocklife from the working tree")
    shelf.stamp_of_blocklife.unlink(missing_ok=True)
    pip = (shelf.python, *INSTALL, "--no-build-isolation")
    watched([*pip, "--editable", PROJECT], shelf, "blocklife in the environment")
    stamped(shelf.stamp_of_blocklife, entry_points())


@contextlib.contextmanager
def making(folder: Path) -> Iterator[Path]:
    """A tree that is being made. It gets its name when all is in it; of one that fails, or that was killed, nothing remains."""
    partial = folder.with_name(f".part-{folder.name}")
    if partial.exists():
        shutil.rmtree(partial)
    tree = partial / "tree"
    tree.mkdir(parents=True)
    try:
        yield tree
        tree.rename(folder)
    finally:
        shutil.rmtree(partial)


def downloaded(
    shelf: Shelf,
    what: str,
    size: str,
    pin: str,
    checksum: str | None,
    tree: Path,
    *options: str,
    environ: Mapping[str, str] | None = None,
) -> Path:
    """What pip brings of a *pin* (``vllm==0.33.0``), checked where its checksum is known; beside the *tree* that is made.

    The line of progress tells *what* it is, and its *size*; the *options* are those of ``pip download``.
    """
    say(f"{what}: {size}" + ("" if checksum else " (its checksum is not known here)"))
    wanted, target = tree.with_name("wanted.txt"), tree.with_name("download")
    wanted.write_text(pin + (f" --hash=sha256:{checksum}" if checksum else "") + "\n", encoding="utf-8")
    pip = (shelf.python, "-m", "pip", "download", "--no-deps")
    watched([*pip, *options, "--requirement", wanted, "--dest", target], shelf, what, environ=environ)
    package = pin.partition("==")[0].replace("-", "_")
    brought = sorted(target.glob(f"{package}-*")) if target.is_dir() else []
    if len(brought) != 1:
        raise FetchError(f"{what}: pip brought {len(brought)} packages, not one")
    return brought[0]


def unpacked(what: str, wheel: Path, tree: Path) -> None:
    """All of a *wheel*, in the *tree* that is made."""
    try:
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(tree)
    except (zipfile.BadZipFile, OSError) as error:
        raise FetchError(f"{what}: the wheel cannot be unpacked: {error}") from error


@contextlib.contextmanager
def alone(shelf: Shelf) -> Iterator[None]:
    """One run at a time in one folder; a second one waits."""
    shelf.root.mkdir(parents=True, exist_ok=True)
    with (shelf.root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is at work here: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def interrupt(number: int, frame: object) -> None:
    """A polite end is asked for: the same as Ctrl-C, so that pip ends, too."""
    raise KeyboardInterrupt


def carry_out(program: str, shelf: Shelf, work: Callable[[], None]) -> int:
    """Do the *work* of a program that fetches: 0 all is here, 1 something could not be had, 130 interrupted."""
    begun = time.monotonic()
    for each in INTERRUPTS:
        signal.signal(each, interrupt)
    try:
        with alone(shelf):
            shelf.log.unlink(missing_ok=True)
            work()
    except (FetchError, OSError) as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted; nothing half-made will be used, and the next run goes on", file=sys.stderr)
        return 130
    say(f"all is here ({time.monotonic() - begun:.0f} s)")
    return 0


def with_releases(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, name: str, known: Iterable[str], default: str
) -> argparse.Namespace:
    """What was asked for, with the ``versions`` of the engine *name*; one that cannot be a version is refused."""
    parser.add_argument(
        "versions",
        nargs="*",
        metavar="VERSION",
        help=f"releases of {name} (default {default}); tests were run with {', '.join(known)}",
    )
    chosen = parser.parse_args(arguments)
    for each in chosen.versions:
        try:
            version(each)
        except ValueError:
            parser.error(f"{each!r} is not a version of {name} (such as {default})")
    return chosen
