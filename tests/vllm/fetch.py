"""``python -m tests.vllm.fetch [VERSION ...]``: an environment for vLLM's scheduler side on the CPU, and releases' sources.

Rules of this file:

* The standard library only: this runs before anything is installed.
* pip does all the talking to the outside, by package names; where from is the business of its configuration.
* A run that was interrupted, at any point, is gone on with by the next one; what pip has downloaded comes from its cache then.

Why source packages: they hold the tests of exactly that release; a wheel does not, and is eight times as large. pip insists on
a package's metadata, for which vLLM's ``setup.py`` imports torch; it compiles nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from tests.vllm.releases import CHECKSUMS, DEFAULT, MODEL, PROJECT, REQUIREMENTS, Shelf, entry_points, version

WHAT = "Fetch an environment for vLLM's scheduler side on the CPU, and the source packages of releases, into .vllm."
KEPT = ("vllm", "tests", "pyproject.toml", "LICENSE")
"""What is unpacked of a source package."""
CONFIG = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "torch_dtype": "float16"}
"""A model without weights: all that is not said here has the default of its type, which is this very model."""
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
STEP_S = 2.0
"""A new line of progress comes at most this often."""
PAUSE_S = 10.0
"""A command that says nothing new is known to be still at work after so long."""
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


def make_environment(shelf: Shelf) -> None:
    """The environment, from nothing unless it is whole: pip can tell what is installed, not whether all of it is."""
    if shelf.has_environment():
        say("environment: here")
        return
    shelf.stamp.unlink(missing_ok=True)
    if shelf.environment.exists():
        say("environment: removing one that is half-made or out of date")
        shutil.rmtree(shelf.environment)
    wanted = [line for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if "==" in line]
    say(f"environment: {len(wanted)} packages, about 1.3 GB")
    pip = (shelf.python, "-m", "pip", "install", "--no-deps", "--only-binary", ":all:")
    watched([sys.executable, "-m", "venv", shelf.environment], shelf, "environment")
    watched([*pip, "--requirement", REQUIREMENTS], shelf, "environment", total=len(wanted))
    watched(
        [shelf.python, "-c", "import torch"],
        shelf,
        "torch does not start (without its CUDA packages only a CPU build does; PIP_EXTRA_INDEX_URL can name where those are)",
    )
    stamped(shelf.stamp, shelf.fingerprint())


def install_blocklife(shelf: Shelf) -> None:
    """blocklife from the working tree, anew when what it announces to pytest and vLLM has changed."""
    if shelf.has_blocklife():
        return
    say("environment: installing blocklife from the working tree")
    shelf.stamp_of_blocklife.unlink(missing_ok=True)
    pip = (shelf.python, "-m", "pip", "install", "--no-deps", "--no-build-isolation")
    watched([*pip, "--editable", PROJECT], shelf, "blocklife in the environment")
    stamped(shelf.stamp_of_blocklife, entry_points())


def download(shelf: Shelf, release: str, target: Path) -> Path:
    """The source package of a release, with the checksum that is known here."""
    wanted, downloaded, checksum = target / "wanted.txt", target / "download", CHECKSUMS.get(release)
    say(f"vLLM {release}: the source package, 35 to 50 MB" + ("" if checksum else " (its checksum is not known here)"))
    wanted.write_text(f"vllm=={release}" + (f" --hash=sha256:{checksum}" if checksum else "") + "\n", encoding="utf-8")
    pip = (shelf.python, "-m", "pip", "download", "--no-deps", "--no-binary", "vllm", "--no-build-isolation")
    # Without the first, vLLM adds to its version what the second says, and pip refuses a package that changes its version.
    settings = {"VLLM_VERSION_OVERRIDE": release, "VLLM_TARGET_DEVICE": "empty"}
    watched([*pip, "--requirement", wanted, "--dest", downloaded], shelf, f"vLLM {release}", environ=settings)
    archives = sorted(downloaded.glob("vllm-*.tar.gz"))
    if len(archives) != 1:
        raise FetchError(f"vLLM {release}: pip brought {len(archives)} source packages, not one")
    return archives[0]


def unpack(archive: Path, target: Path, release: str) -> None:
    """The kept parts of a source package."""
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                top, *rest = PurePosixPath(member.name).parts
                if top != f"vllm-{release}" or not rest or rest[0] not in KEPT:
                    continue
                if ".." in rest or not (member.isfile() or member.isdir()):
                    raise tarfile.TarError(f"{member.name}: it is no file of the package's own folder")
                member.name = "/".join(rest)
                if hasattr(tarfile, "data_filter"):
                    opened.extract(member, target, filter="data")
                else:  # Python 3.11.0 to 3.11.3: what the filter refuses is looked at above
                    opened.extract(member, target)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise FetchError(f"vLLM {release}: the source package cannot be unpacked: {error}") from error
    if missing := [name for name in KEPT if not (target / name).exists()]:
        raise FetchError(f"vLLM {release}: the source package has no {', '.join(missing)}")


def add_stand_ins(target: Path, release: str) -> None:
    """Metadata, from whose version older releases learn that the platform is a CPU, and the configuration of a model."""
    metadata = target / f"vllm-{release}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}+cpu\n", encoding="utf-8")
    config = target / MODEL / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")


def make_release(shelf: Shelf, release: str) -> None:
    """The sources of one release; the last thing done is to give the folder its name."""
    if shelf.has(release):
        say(f"vLLM {release}: here")
        return
    partial = shelf.source(f".part-{release}")
    if partial.exists():
        shutil.rmtree(partial)
    tree = partial / "tree"
    tree.mkdir(parents=True)
    try:
        unpack(download(shelf, release, partial), tree, release)
        add_stand_ins(tree, release)
        tree.rename(shelf.source(release))
    finally:
        shutil.rmtree(partial)


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


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.fetch", description=WHAT)
    parser.add_argument(
        "versions",
        nargs="*",
        metavar="VERSION",
        help=f"releases of vLLM (default {DEFAULT}); tests were run with {', '.join(CHECKSUMS)}",
    )
    chosen = parser.parse_args(arguments)
    for each in chosen.versions:
        try:
            version(each)
        except ValueError:
            parser.error(f"{each!r} is not a version of vLLM (such as {DEFAULT})")
    return chosen


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


def make_releases(shelf: Shelf, releases: Sequence[str]) -> None:
    """The environment, blocklife in it, and the sources of these releases: what of it is missing."""
    make_environment(shelf)
    install_blocklife(shelf)
    for release in dict.fromkeys(releases):
        make_release(shelf, release)


def fetch(shelf: Shelf, releases: Sequence[str]) -> int:
    """Fetch what is missing; the status of `carry_out`."""
    return carry_out("tests.vllm.fetch", shelf, lambda: make_releases(shelf, releases))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what was asked for into the folder that git ignores."""
    chosen = parsed(arguments)
    return fetch(Shelf(), chosen.versions or [DEFAULT])


if __name__ == "__main__":
    sys.exit(main())
