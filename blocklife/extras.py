"""What the extras of the package bring, and how they are installed."""

from __future__ import annotations


def to_install(extra: str) -> str:
    """The command that installs the packages of an extra; it works however blocklife itself was installed.

    `pyproject.toml` says what they are, and the metadata of the installed package repeats it.
    """
    from importlib.metadata import PackageNotFoundError, requires  # slow to import, and needed only where a package is missing

    try:
        required = requires("blocklife") or []
    except PackageNotFoundError:  # a source tree that was never installed
        return f"install what pyproject.toml lists under {extra}"
    parts = (line.partition("; extra == ") for line in required)
    return f"pip install {' '.join(repr(what) for what, _, of in parts if of[1:-1] == extra)}"
