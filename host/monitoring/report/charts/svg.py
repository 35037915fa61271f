"""Matplotlib figures as SVG for inlining: colours are CSS variables, so a page shows them light and dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)

# Colours that stand for CSS variables until the figure is text; nothing is ever shown in them.
INK, MUTED, RULE, SURFACE = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
SERIES = tuple(f"#0a0c{number:02d}" for number in range(1, 9))
_VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", SURFACE: "--surface"} | {
    colour: f"--s{number}" for number, colour in enumerate(SERIES, 1)
}
_COLOUR = re.compile("|".join(_VARIABLES))

# Sizes in CSS pixels at a scale of 1; a narrow figure fits a phone.
NARROW, WIDE = 360, 980
_FONT = 11.0
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "csd-emu",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": _FONT,
    "axes.titlesize": _FONT + 0.5,
    "axes.titlelocation": "left",
    "axes.labelsize": _FONT,
    "xtick.labelsize": _FONT,
    "ytick.labelsize": _FONT,
    "legend.fontsize": _FONT,
    "legend.frameon": False,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.8,
    "hatch.linewidth": 0.9,
    "axes.formatter.limits": (-4, 6),
    "axes.formatter.useoffset": False,
}


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    Attributes:
        name: unique on the page, letters and dashes.
        title: over it.
        caption: below it: what is shown, in which unit and clock.
        narrow: an SVG element for narrow pages.
        wide: one for wide pages, empty if the narrow one does for both.
    """

    name: str
    title: str
    caption: str
    narrow: str
    wide: str = ""


def draw(
    name: str,
    alternative: str,
    pixels: tuple[float, float],
    paint: Callable[[Figure], None],
    tooltips: Mapping[str, str] | None = None,
) -> str:
    """Return what `paint` draws as one SVG element.

    Args:
        name: unique on the page, letters and dashes.
        alternative: the chart in words, with the figures that matter, for who cannot see it.
        pixels: width and height, in CSS pixels at a scale of 1.
        paint: draws on an empty figure.
        tooltips: text to be shown over what was drawn with this `gid`.
    """
    with _quiet_fonts(), mpl.rc_context(_STYLE):
        # One point is one CSS pixel: at 72 per inch.
        layout = ConstrainedLayoutEngine(w_pad=2 / 72, h_pad=2 / 72)
        figure = Figure(figsize=(pixels[0] / 72, pixels[1] / 72), dpi=72, layout=layout)
        FigureCanvasSVG(figure)  # whose letters are measured
        paint(figure)
        # With a layout still to make, savefig would draw everything twice.
        layout.execute(figure)
        figure.set_layout_engine(None)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _tidy(buffer.getvalue(), name, alternative, tooltips or {})


def legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Put the legend of `axes` above all of the figure, if it has labelled things."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside upper left", ncols=columns, handlelength=1.6, columnspacing=1.2, borderpad=0.1
        )


def printable(text: str, longest: int = 60) -> str:
    """Return `text` without what an SVG must not hold, shortened."""
    clean = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"


@contextmanager
def _quiet_fonts() -> Iterator[None]:
    """Say nothing of letters that the measuring font lacks: the browser has its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield


def _tidy(svg: bytes, name: str, alternative: str, tooltips: Mapping[str, str]) -> str:
    root = ElementTree.fromstring(svg)
    _add_tooltips(root, tooltips)
    for child in list(root):
        # A style element inside a page would be one of the page's.
        if child.tag == f"{{{SVG}}}metadata" or child.find(f"{{{SVG}}}style") is not None:
            root.remove(child)
    width, height = root.attrib["viewBox"].split()[2:]
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    text = ElementTree.tostring(root, encoding="unicode")
    text = _COLOUR.sub(lambda match: f"var({_VARIABLES[match.group()]})", text)
    text = _rename(text, name)
    # The font is the page's; matplotlib has only measured with its own.
    text = re.sub(r"font-family: [^;]*; ", "", text)
    text = re.sub(r' fill="(var[^"]+)"', r' style="fill: \1"', text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r"\n\s*", "", text)
    label = ElementTree.Element("title", {"id": f"{name}-title"})
    label.text = alternative
    inner = ElementTree.tostring(label, encoding="unicode")
    opening, rest = text.split(">", 1)
    return (
        f'{opening} role="img" aria-labelledby="{name}-title" style="max-width:{float(width) * 1.5:.0f}px;'
        f'aspect-ratio:{width}/{height}">{inner}{rest}'
    )


def _add_tooltips(root: ElementTree.Element, tooltips: Mapping[str, str]) -> None:
    """Give elements a title: browsers show it when the pointer rests on them, without any script."""
    for element in root.iter():
        text = tooltips.get(element.attrib.get("id", ""))
        if text is not None:
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = printable(text, 200)
            element.insert(0, title)


def _rename(text: str, name: str) -> str:
    """Make ids unique on the page; those that nothing refers to go."""
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text))
    names = {first or second for first, second in used}
    text = re.sub(r' id="([^"]+)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in names else "", text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    return re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
