// Curves and the timeline. The plotting library is large: it is loaded when all else has been drawn.
import { byId, make, makeTable, setText } from "./dom.js";
import { NONE, short } from "./format.js";

const LIBRARY = "/static/plotly.min.js";
const CONFIG = { displayModeBar: false, responsive: true, showTips: false, doubleClick: false };
const MOST_ROWS = 40;

let last = null;
let library = null;
let drawn = "";

/** Redraw when the theme changes. */
export function startCharts() {
  addEventListener("themechange", () => redraw(true));
}

/** Show the curves of a state; the library is asked for once the page has been painted. */
export function showCharts(state) {
  if (!last) {
    byId("charts").append(...state.charts.map((chart) => makeFigure(chart.name, chart.title, chart.name === "cost" ? "cost" : "")));
    byId("timeline").append(makeFigure("gantt", "", "wide-figure"));
  }
  last = state;
  tell(state);
  if (library === null) {
    library = "asked";
    requestAnimationFrame(() => setTimeout(load, 0));
  }
  redraw(false);
}

function load() {
  const script = make("script", { src: LIBRARY });
  script.onload = () => {
    library = "here";
    redraw(true);
  };
  script.onerror = () => {
    library = "missing";
    for (const plot of document.querySelectorAll(".plot")) setText(plot, "Curves need Plotly, which the host has not; the table has the figures.");
  };
  document.head.append(script);
}

function makeFigure(id, title, kind) {
  return make("figure", { id: `figure-${id}`, class: kind || null },
    title ? make("h3", {}, title) : null,
    make("div", { class: "plot", id: `plot-${id}`, role: "img", "aria-label": `${title || "Timeline"}: not drawn yet` }, "not drawn yet"),
    make("figcaption", {}),
    make("details", {}, make("summary", {}, "Figures", make("span", { class: "hidden" }, ` of ${title || "the timeline"}`)), make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Figures of ${title || "the timeline"}` })));
}

/** All curves of a chart, whatever pane they are in. */
const curvesOf = (chart) => chart.panes.flatMap((pane) => pane.curves);

/** Words and tables, which need no library. */
function tell({ charts, timeline }) {
  for (const chart of charts) {
    const curves = curvesOf(chart);
    const ends = curves.map(({ name, y }) => `${name} ${short(y.at(-1))}`);
    const figure = byId(`figure-${chart.name}`);
    figure.querySelector(".plot").setAttribute("aria-label", curves.length ? `${chart.told}, last: ${ends.join(", ")}.` : `${chart.title}: no data yet`);
    setText(figure.querySelector("figcaption"), chart.caption);
    fillTable(figure, chart.title, () => [[chart.x_title, (row) => short(row[0]), true], ...curves.map(({ name }, index) => [name, (row) => short(row[1][index]), true])], () => rowsOf(curves));
  }
  tellTimeline(timeline);
}

/** A table inside details is made when they are opened, and again with every change while they are. */
function fillTable(figure, title, columns, rows) {
  const details = figure.querySelector("details");
  const fill = () => details.lastChild.replaceChildren(makeTable(title, columns(), rows()));
  details.ontoggle = () => details.open && fill();
  if (details.open) fill();
}

/** The last points of curves by their x, the newest first. */
function rowsOf(curves) {
  const points = new Map();
  curves.forEach((curve, index) => curve.x.forEach((x, at) => {
    if (!points.has(x)) points.set(x, curves.map(() => null));
    points.get(x)[index] = curve.y[at];
  }));
  return [...points].sort(([one], [other]) => other - one).slice(0, MOST_ROWS);
}

function tellTimeline(timeline) {
  const figure = byId("figure-gantt");
  const plot = figure.querySelector(".plot");
  setText(byId("timeline-title"), timeline ? timeline.title : "");
  if (!timeline) {
    setText(figure.querySelector("figcaption"), "Who did what when; there are no spans yet.");
    return;
  }
  const sums = timeline.rows.map(() => timeline.phases.map(() => 0));
  for (const [row, phase, begin, end] of timeline.bars) sums[row][phase] += end - begin;
  plot.setAttribute("aria-label", timeline.told);
  setText(figure.querySelector("figcaption"), timeline.caption);
  fillTable(figure, "Seconds of each phase", () => [["drive", (row) => row[0]], ...timeline.phases.map((phase, index) => [`${phase}, s`, (row) => (row[1][index] ? short(row[1][index]) : NONE), true])],
    () => timeline.rows.map((name, index) => [name, sums[index]]));
}

/** Draw what has changed. */
function redraw(anyway) {
  const key = last ? `${last.instance}/${last.totals.round}/${last.run.clock}` : "";
  if (library !== "here" || !last || (key === drawn && !anyway)) return;
  drawn = key;
  const colour = palette();
  const shown = last.charts.map((chart) => draw(chart, colour));
  if (last.timeline) shown.push(drawTimeline(last.timeline, colour));
  Promise.all(shown).then(() => {
    // The words are those of the picture's label; the library's own elements say nothing.
    for (const element of document.querySelectorAll(".plot > *, #js-plotly-tester")) element.setAttribute("aria-hidden", "true");
    if (!performance.getEntriesByName("drawn").length) performance.mark("drawn");
  });
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

const axisOf = (colour) => ({ gridcolor: colour("rule"), linecolor: colour("rule"), zeroline: false, fixedrange: true, automargin: true, tickfont: { color: colour("muted") }, ticks: "" });

function layout(colour, more) {
  const axis = axisOf(colour);
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", height: 220, margin: { l: 8, r: 10, t: 6, b: 8 },
    font: { family: "system-ui, sans-serif", size: 12, color: colour("ink") }, dragmode: false, hovermode: "x",
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("rule"), font: { color: colour("ink"), size: 12 } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", xanchor: "left", font: { size: 11 }, itemclick: false, itemdoubleclick: false },
    ...more,
    xaxis: { ...axis, nticks: 6, ...more.xaxis },
    yaxis: { ...axis, nticks: 5, ...more.yaxis },
  };
}

/** Text for Plotly, which takes some of HTML for markup, links too, and %{...} in a template for a value. */
const plainly = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("%{", "% {");

function draw(chart, colour) {
  const plot = byId(`plot-${chart.name}`);
  const curves = curvesOf(chart);
  if (!curves.length) return null;
  if (!plot.classList.contains("js-plotly-plot")) plot.replaceChildren();
  const panes = chart.panes.map((pane, index) => ({ pane, key: index ? `y${index + 1}` : "y" }));
  const several = curves.length > 1;
  const axes = panes.map(({ pane, key }, index) => [key.replace("y", "yaxis"), axisIn(pane, index, panes.length, colour)]);
  return Plotly.react(plot, panes.flatMap(({ pane, key }) => pane.curves.map((curve) => traceOf(curve, key, colour))), layout(colour, {
    showlegend: several, margin: { l: 8, r: 10, t: several ? 26 : 10, b: 8 }, xaxis: { anchor: panes.at(-1).key }, ...Object.fromEntries(axes),
    shapes: targetsOf(panes, (target, yref) => ({ type: "line", xref: "paper", yref, x0: 0, x1: 1, y0: target, y1: target, line: { color: colour("warn"), width: 1.5, dash: "dash" } })),
    annotations: targetsOf(panes, (target, yref) => ({ xref: "paper", yref, x: 0, y: target, text: `target ${target}`, showarrow: false, yanchor: "top", xanchor: "left", font: { size: 11, color: colour("warn") } })),
  }), CONFIG);
}

function traceOf(curve, key, colour) {
  const tone = colour(curve.colour);
  return {
    type: "scatter", name: plainly(curve.name), x: curve.x, y: curve.y, mode: curve.x.length < 3 ? "lines+markers" : "lines",
    line: { color: tone, width: 2, dash: curve.dash || "solid", shape: curve.steps ? "hv" : "linear" }, marker: { size: 4, color: tone },
    yaxis: key, stackgroup: curve.fill === "stacked" ? key : undefined, hovertemplate: `%{y:.5~g}<extra>${plainly(curve.name)}</extra>`,
  };
}

/** The y axis of a pane, among so many from above. */
function axisIn(pane, index, count, colour) {
  const range = pane.high === undefined ? { rangemode: pane.low === 0 ? "tozero" : "normal" } : { range: [pane.low, pane.high] };
  const domain = [(count - 1 - index) / count + (index < count - 1 ? 0.04 : 0), (count - index) / count - (index ? 0.04 : 0)];
  return { ...axisOf(colour), nticks: count > 1 ? 4 : 5, domain, ...range };
}

const targetsOf = (panes, make) => panes.filter(({ pane }) => pane.target !== undefined).map(({ pane, key }) => make(pane.target, key));

function drawTimeline(timeline, colour) {
  const plot = byId("plot-gantt");
  const rows = timeline.rows.map(plainly);
  if (!plot.classList.contains("js-plotly-plot")) plot.replaceChildren();
  const traces = timeline.phases.map((phase, index) => {
    const bars = timeline.bars.filter((bar) => bar[1] === index);
    const [tone, pattern] = timeline.looks[index];
    return {
      type: "bar", orientation: "h", name: phase, y: bars.map((bar) => rows[bar[0]]), x: bars.map((bar) => bar[3] - bar[2]), base: bars.map((bar) => bar[2]),
      marker: { color: colour(tone), line: { width: 0 }, pattern: { shape: pattern, fgcolor: colour("surface"), fillmode: "overlay", size: 6, solidity: 0.25 } },
      hovertemplate: `%{y}: ${phase}, %{customdata} s<extra></extra>`, customdata: bars.map((bar) => short(bar[3] - bar[2])),
    };
  });
  const end = Math.max(...timeline.bars.map((bar) => bar[3]));
  const shapes = timeline.begins.map((begin) => ({ type: "line", yref: "paper", y0: 0, y1: 1, x0: begin, x1: begin, line: { color: colour("muted"), width: 1, dash: "dot" } }));
  return Plotly.react(plot, traces, layout(colour, {
    barmode: "overlay", bargap: 0.25, hovermode: "closest", showlegend: true, shapes, height: 84 + 24 * timeline.rows.length, margin: { l: 8, r: 10, t: plot.clientWidth < 600 ? 52 : 30, b: 8 },
    xaxis: { range: [timeline.begins[0], end], title: { text: `array seconds (${plainly(timeline.clock)})`, font: { size: 12, color: colour("muted") } }, nticks: plot.clientWidth < 600 ? 5 : 12 },
    yaxis: { categoryorder: "array", categoryarray: [...rows].reverse(), range: [-0.6, timeline.rows.length - 0.4], nticks: timeline.rows.length + 1, showgrid: false },
  }), CONFIG);
}
