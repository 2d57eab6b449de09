"""In place of a package that SGLang imports on its way and never uses here."""


class Dataset:
    """Nothing."""


def load_dataset(*_: object, **__: object) -> Dataset:
    """There is none."""
    raise RuntimeError("the rig has no data sets")
