"""Charts as SVG for inlining, by matplotlib: colours are CSS variables, so a page shows them light and dark."""

from __future__ import annotations

import functools
import io
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from host.monitoring.charts.chart import Chart, Curve, Mark, Pane
from host.monitoring.charts.chart_timeline import Timeline

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)

Style = dict[str, Any]
Values = npt.NDArray[np.float64]
# Colours that stand for CSS variables until the figure is text; nothing is ever shown in them.
_NAMES = ("ink", "muted", "rule", "surface", *(f"s{number}" for number in range(1, 9)))
COLOURS = {name: f"#0a0b{number:02d}" for number, name in enumerate(_NAMES)}
INK, MUTED, RULE = (COLOURS[name] for name in ("ink", "muted", "rule"))
_VARIABLES = {colour: f"--{name}" for name, colour in COLOURS.items()}
_COLOUR = re.compile("|".join(_VARIABLES))

# Sizes in CSS pixels at a scale of 1; a narrow figure fits a phone.
NARROW, WIDE = 360, 980
_NARROW_COLUMNS, _WIDE_COLUMNS, _KEY_PIXELS = 2, 5, 17.0
# Longer lines have no markers.
_MARKED_POINTS = 40
_MARKERS = ("o", "s", "^", "D", "v", "P")
# Of the words of a description.
_DASHES: dict[str, Any] = {
    **{"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"},
    **{"longdashdot": (0, (5, 1, 1, 1, 1, 1)), "longdash": (0, (8, 2))},
}
_HATCHES = {"": "", "|": "|||", "/": "///", "\\": "\\\\\\", "x": "xxx", "+": "+++", "-": "---", ".": "..."}
_FONT = 11.0
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "csd-emu",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": _FONT,
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
class ChartSvg:
    """A chart as it stands in the page.

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


def draw_chart(chart: Chart) -> ChartSvg:
    """Return a chart as SVG, its marks with tooltips."""
    tooltips = {f"mark-{number}": mark.text for number, mark in enumerate(chart.marks)}
    names = {curve.name for pane in chart.panes for curve in pane.curves} | {mark.name for mark in chart.marks}
    height = 235.0 + 75.0 * (len(chart.panes) - 1)
    narrow = (NARROW, height + _KEY_PIXELS * math.ceil(len(names) / _NARROW_COLUMNS))

    def draw(suffix: str, pixels: tuple[float, float], columns: int) -> str:
        paint = functools.partial(paint_chart, chart=chart, colours=COLOURS, columns=columns)
        return draw_svg(f"{chart.name}{suffix}", chart.told, pixels, paint, tooltips)

    if not chart.wide:
        return ChartSvg(chart.name, chart.title, chart.caption, draw("", narrow, _NARROW_COLUMNS))
    wide = draw("-wide", (WIDE, height + _KEY_PIXELS * math.ceil(len(names) / _WIDE_COLUMNS)), _WIDE_COLUMNS)
    return ChartSvg(chart.name, chart.title, chart.caption, draw("-narrow", narrow, _NARROW_COLUMNS), wide)


def draw_timeline(timeline: Timeline) -> ChartSvg:
    """Return a timeline as SVG, for narrow and for wide pages."""
    height = 74.0 + 22.0 * len(timeline.rows)
    narrow, wide = (
        draw_svg(
            *(f"timeline-{kind}", timeline.told, (width, height + extra)),
            functools.partial(_paint_timeline, timeline=timeline, columns=columns),
        )
        for kind, width, extra, columns in (("narrow", NARROW, 44.0, 3), ("wide", WIDE, 0.0, 8))
    )
    return ChartSvg("timeline", f"Device timeline, {timeline.title}", timeline.caption, narrow, wide)


def paint_chart(figure: Figure, chart: Chart, colours: Mapping[str, str], columns: int) -> None:
    """Draw a chart on an empty figure, in these colours, with its key in so many columns."""
    grid: list[Axes] = figure.subplots(len(chart.panes), 1, sharex=True, squeeze=False)[:, 0].tolist()
    first = {mark.name: number for number, mark in reversed(list(enumerate(chart.marks)))}
    for axes, pane in zip(grid, chart.panes, strict=True):
        _paint_pane(axes, pane, colours)
        for number, mark in enumerate(chart.marks):
            label = mark.name if first[mark.name] == number else None
            _paint_mark(axes, mark, {"gid": f"mark-{number}", "label": label}, colours)
    last = grid[-1]
    for number, (x, y, text) in enumerate(chart.notes):
        place = (6, 9 if number % 2 else -13)
        style: Style = {"color": colours["ink"], "fontsize": "small"}
        last.annotate(printable(text, 30), (x, y), xytext=place, textcoords="offset points", **style)
    last.set_xlabel(chart.x_title)
    if chart.x_log:
        last.set_xscale("log")
        low, high = last.get_xlim()
        last.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 4 * low else MaxNLocator(6))
        last.xaxis.set_minor_locator(NullLocator())
        last.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        last.xaxis.set_major_locator(MaxNLocator(6, integer=chart.whole))
    places = {x for pane in chart.panes for curve in pane.curves for x in curve.x}
    if chart.x_range is not None:
        last.set_xlim(chart.x_range)
    elif len(places) == 1:  # one point needs room around it
        x = places.pop()
        last.set_xlim((x - 1, x + 1) if chart.whole else (0, x * 2 or 1))
    _paint_key(figure, grid, columns)


def _paint_pane(axes: Axes, pane: Pane, colours: Mapping[str, str]) -> None:
    axes.set_ylabel(pane.unit)
    if pane.target is not None:
        axes.axhline(pane.target, color=colours["muted"], linewidth=1, linestyle="--")
    base = np.zeros(1)
    for index, curve in enumerate(pane.curves):
        base = _paint_curve(axes, curve, base, _MARKERS[index % len(_MARKERS)], colours)
    every = np.array([each for curve in pane.curves for each in (*curve.y, *curve.low)], dtype=float)
    values = np.append(every[np.isfinite(every)], base if base.size > 1 else [])
    if not values.size:
        text = "nothing here is a number that can be drawn"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=colours["muted"])
        return
    if pane.log:
        axes.set_yscale("symlog", linthresh=1, base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if pane.low is not None:
        high = pane.high if pane.high is not None else 1.08 * float(values.max())
        low = min(pane.low, float(values.min()))
        axes.set_ylim(low, high if high > low else low + 1.0)


def _paint_curve(axes: Axes, curve: Curve, base: Values, marker: str, colours: Mapping[str, str]) -> Values:
    """Draw a curve; areas are stacked on `base`. Return what the next one is stacked on."""
    x, y = np.array(curve.x), np.array(curve.y, dtype=float)
    colour, label = colours[curve.colour], printable(curve.name, 40) or None
    step: Any = "post" if curve.steps else None
    if curve.fill == "stacked":
        style: Style = {"hatch": _HATCHES[curve.pattern], "edgecolor": colours["surface"], "linewidth": 0.0}
        axes.fill_between(x, base, base + y, step=step, facecolor=colour, label=label, **style)
        return np.asarray(base + y)
    if curve.fill == "band":
        low = np.array(curve.low, dtype=float)
        axes.fill_between(x, low, y, step=step, color=colour, alpha=0.3, linewidth=0, label=label)
    elif curve.points == "ring":
        axes.plot(x, y, "o", markersize=13, markerfacecolor="none", markeredgecolor=colour, label=label)
    elif curve.points:
        left, right, below, above = zip(*curve.spans, strict=True)
        style = {"fmt": "s" if curve.points == "square" else "o", "markersize": 4, "elinewidth": 0.8}
        axes.errorbar(x, y, xerr=[left, right], yerr=[below, above], color=colour, label=label, **style)
    else:
        shape = marker if len(x) <= _MARKED_POINTS and curve.name and not curve.steps else ""
        style = {"linestyle": _DASHES[curve.dash], "marker": shape, "markersize": 4}
        style |= {} if curve.name else {"linewidth": 1.0}
        axes.plot(x, y, color=colour, drawstyle="steps-post" if curve.steps else "default", label=label, **style)
    return base


def _paint_mark(axes: Axes, mark: Mark, tag: Mapping[str, Any], colours: Mapping[str, str]) -> None:
    if mark.end > mark.begin:
        axes.axvspan(mark.begin, mark.end, color=colours["muted"], alpha=0.16, linewidth=0, **tag)
    else:
        axes.axvline(mark.begin, color=colours["muted"], linewidth=0.9, linestyle=":")
        top: Style = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        axes.plot([mark.begin], [1.0], "v", markersize=7, color=colours["ink"], **top, **tag)


def _paint_key(figure: Figure, grid: Iterable[Axes], columns: int, keys: Iterable[Patch] = ()) -> None:
    """Put what the labelled things are above all of the figure."""
    found = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    found |= {patch.get_label(): patch for patch in keys}
    if found:
        style = {"ncols": columns, "handlelength": 1.7, "columnspacing": 1.2, "borderpad": 0.1}
        figure.legend(found.values(), found.keys(), loc="outside upper left", **style)


def _paint_timeline(figure: Figure, timeline: Timeline, columns: int) -> None:
    axes = figure.subplots()
    looks: list[Style] = [
        {"facecolor": COLOURS[colour], "hatch": _HATCHES[pattern], "edgecolor": COLOURS["surface"], "linewidth": 0.3}
        for colour, pattern in timeline.looks
    ]
    bars: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for row, phase, begin, end in timeline.bars:
        bars[row, phase].append((begin, end - begin))
    for (row, phase), own in sorted(bars.items()):
        axes.broken_barh(own, (row - 0.36, 0.72), **looks[phase])
    for begin in timeline.begins:
        axes.axvline(begin, color=MUTED, linewidth=1, linestyle=":")
    axes.set_yticks(range(len(timeline.rows)), [printable(name, 14) for name in timeline.rows])
    axes.set_ylim(len(timeline.rows) - 0.4, -0.6)
    axes.set_xlim(timeline.begins[0], max(bar[3] for bar in timeline.bars))
    axes.grid(visible=False)
    axes.set_xlabel(f"array seconds ({timeline.clock})")
    axes.xaxis.set_major_locator(MaxNLocator(5 if columns < 4 else 12))
    names = [printable(phase, 14) for phase in timeline.phases]
    _paint_key(figure, (), columns, [Patch(**look, label=name) for look, name in zip(looks, names, strict=True)])


def draw_svg(
    name: str,
    alternative: str,
    pixels: tuple[float, float],
    paint: Callable[[Figure], None],
    tooltips: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return what `paint` draws as one SVG element.

    Args:
        name: unique on the page, letters and dashes.
        alternative: the chart in words, with the figures that matter, for who cannot see it.
        pixels: width and height, in CSS pixels at a scale of 1.
        paint: draws on an empty figure.
        tooltips: text to be shown over what was drawn with this `gid`.
    """
    # Letters that the measuring font lacks are no matter: the browser has its own.
    with warnings.catch_warnings(), mpl.rc_context(_STYLE):
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
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
    return _tidy(buffer.getvalue(), name, alternative, tooltips)


def printable(text: str, longest: int = 60) -> str:
    """Return `text` without what an SVG must not hold, shortened."""
    clean = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"


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
        if (text := tooltips.get(element.attrib.get("id", ""))) is not None:
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = printable(text, 200)
            element.insert(0, title)


def _rename(text: str, name: str) -> str:
    """Make ids unique on the page; those that nothing refers to go."""
    names = {first or second for first, second in set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text))}
    text = re.sub(r' id="([^"]+)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in names else "", text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    return re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
