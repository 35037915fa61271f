"""Names and texts full of markup, and what a page looks like in which none of it has had any effect."""

from __future__ import annotations

from tests.support.browser import Tab

HOSTILE = (
    "<img src=x onerror=\"window.hit='img'\">",
    "\"'><script>window.hit='script'</script>",
    "<a href='http://evil.example/'>csd-02</a>",
    "</title></style></script><svg onload=\"window.hit='svg'\"><iframe src='javascript:window.hit=1'>",
    "]]>{{7*7}}${7*7}%{x}<extra></extra><b>bold</b>&lt;i&gt;",
    "\u202edrowkcab\u2066<br><style>body{display:none}</style>\x1b]0;title\x07",
)

# Elements that nobody but a hostile name would have made.
_MADE = """[...document.querySelectorAll('iframe, img[src="x"], [onerror], [onload], a[href*="evil"], svg a')]
  .map((element) => element.outerHTML)"""


def check_harmless(tab: Tab, address: str) -> None:
    """Nothing was run, made, asked for or complained of, and what was said can be read as it was said."""
    assert tab.evaluate("typeof window.hit") == "undefined"
    assert tab.evaluate(_MADE) == []
    assert tab.complaints() == []
    assert {url for url in tab.requests() if not url.startswith((address, "data:"))} == set()
    assert tab.evaluate("getComputedStyle(document.body).display") != "none"
    text = tab.evaluate("document.body.textContent")
    for hostile in HOSTILE[:3]:
        assert hostile in text
