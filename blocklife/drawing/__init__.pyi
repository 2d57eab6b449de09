# Written by `make spec`, from the table in __init__.py.

from blocklife.drawing._dot import (dot as dot)
from blocklife.drawing._mermaid import (mermaid as mermaid)
from blocklife.drawing._notebook import (disable as disable, enable as enable, load_ipython_extension as
    load_ipython_extension, unload_ipython_extension as unload_ipython_extension)
from blocklife.drawing._page import (page as page)
from blocklife.drawing._picture import (Emphasis as Emphasis, Mark as Mark, Marks as Marks, Panel as Panel, Picture as
    Picture, picture as picture)
from blocklife.drawing._png import (png as png)
from blocklife.drawing._svg import (svg as svg)
from blocklife.drawing._tables import (coupling_table as coupling_table, event_table as event_table, guard_table as
    guard_table, markdown as markdown, plain as plain, row_table as row_table, state_event_table as state_event_table,
    state_table as state_table)
from blocklife.drawing._terminal import (terminal as terminal)
from blocklife.drawing._theme import (Theme as Theme)

__all__: list[str]
