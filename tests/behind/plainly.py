"""``python -P -S tests/behind/plainly.py [--mends FILE] SCRIPT ...``: scripts that show faults of an engine, without us.

Rules of this file:

* It imports the standard library only: it is run by its path, in an engine's environment, where blocklife cannot be imported.
* What the scripts import is imported once; each run is a process of its own, forked off behind that.
* With *mends* a script is run three times: as it is, with the fault mended by the function of its name in that file, and asked
  for help. A mend is what the report proposes, put around the engine's own methods. It is made for one release.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from pathlib import Path

AS_IT_IS, MENDED, HELP = "as it is", "mended", "help"
FELL = 70
"""The status of a script that has raised: what it says is the exception."""
HANGS_S = 600
"""Seconds after which a script is ended."""


def import_all(script: Path) -> None:
    """What a script imports; what cannot be imported is left to the script."""
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            with contextlib.suppress(Exception):
                exec(compile(ast.Module([node], []), str(script), "exec"), {})


def play(script: Path, mode: str, mends: dict[str, object], said: Path) -> int:
    """Run a script in a process of its own; what it prints goes to a file. Returns its exit status."""
    child = os.fork()
    if not child:
        signal.alarm(HANGS_S)
        with said.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            status: object = FELL
            try:
                sys.argv = [str(script), *["--help"] * (mode == HELP)]
                if mode == MENDED:
                    mend = mends[script.stem]
                    assert callable(mend)
                    mend()
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit as end:
                status = end.code
            except Exception as error:
                traceback.print_exc()
                print(f"{type(error).__name__}: {error}")
            finally:
                sys.stdout.flush()
                os._exit(int(status) if isinstance(status, int) else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(argv: list[str] | None = None) -> None:
    """Print one JSON object a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mends", metavar="FILE", help="the functions that mend, by the names of the scripts")
    parser.add_argument("scripts", nargs="+", type=Path, metavar="SCRIPT")
    chosen = parser.parse_args(argv)
    if importlib.util.find_spec("blocklife") is not None:
        sys.exit("blocklife can be imported here")
    if importlib.util.find_spec("sitecustomize") is not None:
        importlib.import_module("sitecustomize")  # -S has left it out
    for script in chosen.scripts:
        import_all(script)
    mends = runpy.run_path(chosen.mends) if chosen.mends else {}
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "said")
        for script in chosen.scripts:
            for mode in (AS_IT_IS, MENDED, HELP) if chosen.mends else (AS_IT_IS,):
                status = play(script, mode, mends, said)
                run = {"script": script.stem, "mode": mode, "status": status, "said": said.read_text(encoding="utf-8")}
                print(json.dumps(run), flush=True)


if __name__ == "__main__":
    main()
