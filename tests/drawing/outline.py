"""What a page says, read by a parser."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

VOID = frozenset({"meta", "br", "rect", "circle", "path", "polygon"})


class Outline(HTMLParser):
    """The words of a page, how many it has of each element, and what is not closed; it may fetch and run nothing."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.said: list[str] = []
        self.counts: Counter[str] = Counter()
        self.bars = 0
        """Elements with a ground of their own."""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] += 1
        self.bars += any(name == "style" and "background" in (value or "") for name, value in attrs)
        assert not {name for name, _ in attrs} & {"src", "href", "onclick"}, attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] += 1

    def handle_data(self, data: str) -> None:
        self.said.append(data)
