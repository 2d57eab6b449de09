"""Drawings and tables of lifecycles, all made from the compiled tables."""

from blocklife._doors import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "_dot": "dot",
        "_mermaid": "mermaid",
        "_notebook": "disable enable load_ipython_extension unload_ipython_extension",
        "_page": "page",
        "_picture": "Emphasis Mark Marks Panel Picture picture",
        "_png": "png",
        "_svg": "svg",
        "_tables": "coupling_table event_table guard_table markdown plain row_table state_event_table state_table",
        "_terminal": "terminal",
        "_theme": "Theme",
    },
)
