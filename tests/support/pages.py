"""An HTML page, read as far as tests ask: it is whole, it needs nothing else, and everyone can read it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "path", "use", "rect"}
# What can fetch or run something.
REFERENCES = {"src", "href", "xlink:href", "srcset", "data", "action", "poster"}


class Page(HTMLParser):
    """A parsed page; broken nesting raises."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.raw = "", text
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.links: list[str] = []
        self.headers: list[dict[str, str | None]] = []
        self.tables: list[list[int]] = []
        self.charts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        if tag not in VOID:
            self._open.append(tag)
        self.ids += [values["id"] or ""] if "id" in values else []
        # A link is followed by whoever clicks on it, and fetches nothing before.
        found = [value or "" for key, value in attrs if key in REFERENCES]
        if tag == "a" and list(values) == ["href"]:
            self.links += found
        else:
            self.references += found
        if tag == "th":
            self.headers.append(values)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append(0)
        if tag in ("td", "th"):
            self.tables[-1][-1] += 1
        if tag == "svg":
            self.charts.append(values.get("aria-labelledby") or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "title"):
            self.text += data

    def assert_sound(self) -> None:
        """Nothing is fetched, nothing runs, ids are unique, tables are regular, charts and columns are named."""
        assert all(re.match(r"#|data:,$", reference) for reference in self.references), self.references
        assert all(re.fullmatch(r"(\.\./)*[\w%./-]+\.json", link) for link in self.links), self.links
        assert not re.search(r"url\((?!#)", self.raw)
        assert not re.search(r"@import", self.raw)
        assert "script" not in self.tags
        assert len(set(self.ids)) == len(self.ids), [name for name in self.ids if self.ids.count(name) > 1]
        used = set(re.findall(r'url\(#([^)]+)\)|xlink:href="#([^"]+)"|aria-labelledby="([^"]+)"', self.raw))
        assert {name for found in used for name in found if name} <= set(self.ids)
        assert all(header.get("scope") in ("row", "col") for header in self.headers)
        assert all(len(set(rows)) == 1 for rows in self.tables), self.tables
        assert all(name and f'<title id="{name}">' in self.raw for name in self.charts)
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", self.raw)
        assert "{{" not in self.raw
        assert "Undefined" not in self.text
