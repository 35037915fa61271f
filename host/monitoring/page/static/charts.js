// Curves and the timeline. The plotting library is large: it is loaded when all else has been drawn.
import { byId, make, makeTable, setText } from "./dom.js";
import { NONE, number, short } from "./format.js";

const LIBRARY = "/static/plotly.min.js";
const CONFIG = { displayModeBar: false, responsive: true, showTips: false, doubleClick: false };
const MOST_ROWS = 40;
// Colour (a CSS variable) and pattern of each phase of the timeline.
const PHASES = {
  receive: ["--s1", ""], read: ["--s6", "|"], forward: ["--s3", ""], backward: ["--s2", "/"],
  update: ["--s4", "x"], encode: ["--s8", "+"], send: ["--s5", "\\"], aggregate: ["--s7", "-"], tail: ["--s3", "-"],
};
const COLOURS = ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6", "--s8", "--s7"];

/** What there is to see: title, unit, and the lines with name, series, colour, dash and more. */
const CHARTS = [
  { id: "array-rate", title: "Array's throughput", unit: "records / array s", zero: true,
    lines: [["array, link and waiting included", "array_rate", "--s1"]] },
  { id: "device-rate", title: "Drive's throughput", unit: "records / device s", zero: true,
    lines: [["mean of a drive, compute alone", "device_rate", "--s3"]] },
  { id: "accuracy", title: "Accuracy and loss", unit: "above: share of held-out records; below: mean cross-entropy", target: true, panes: true,
    lines: [["accuracy", "accuracy", "--s1"], ["held-out loss", "test_loss", "--s2", { pane: "y2" }], ["training loss", "train_loss", "--s6", { dash: "dot", pane: "y2" }]] },
  { id: "power", title: "Power", unit: "W, modelled", zero: true,
    lines: [["drives", "drive_watts", "--s3", { stack: true }], ["host and chassis", "host_watts", "--s7", { stack: true }]] },
  { id: "batches", title: "Batch sizes", unit: "records per step", zero: true, batches: true, lines: [] },
  { id: "cost", title: "Cost of emulation", unit: "wall s per array s", zero: true, cost: true,
    lines: [["wall seconds that one array second took", "wall_per_array_second", "--s4", { dash: "dash" }]] },
];

let last = null;
let library = null;
let drawn = "";

/** Make room for the charts, and redraw when the theme changes. */
export function startCharts() {
  byId("charts").append(...CHARTS.map((chart) => makeFigure(chart.id, chart.title, chart.cost ? "cost" : "")));
  byId("timeline").append(makeFigure("gantt", "", "wide-figure"));
  addEventListener("themechange", () => redraw(true));
}

/** Show the curves of a state; the library is asked for once the page has been painted. */
export function showCharts(state) {
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

/** The lines of a chart in this state: [name, series, colour, style]. */
function linesOf(chart, { series, batches, hidden_batches }) {
  const lines = chart.lines.map(([name, key, colour, style]) => [name, series[key], colour, style || {}]);
  if (chart.batches) {
    const several = Object.entries(batches);
    if (hidden_batches || !several.length) {
      lines.push(["largest", series.batch_high, "--muted", { step: true, dash: "dot" }], ["median", series.batch_median, "--ink", { step: true }], ["smallest", series.batch_low, "--muted", { step: true, dash: "dash" }]);
    }
    several.forEach(([name, curve], index) => lines.push([name, curve, COLOURS[index % COLOURS.length], { step: true }]));
  }
  return lines.filter(([, curve]) => curve && curve.x.length);
}

/** Words and tables, which need no library. */
function tell(state) {
  const clock = state.run.clock || "no clock yet";
  for (const chart of CHARTS) {
    const lines = linesOf(chart, state);
    const ends = lines.map(([name, curve]) => `${name} ${short(curve.y.at(-1))}`);
    const figure = byId(`figure-${chart.id}`);
    figure.querySelector(".plot").setAttribute("aria-label", lines.length ? `${chart.title} in ${chart.unit}, last: ${ends.join(", ")}.` : `${chart.title}: no data yet`);
    const hidden = chart.batches && state.hidden_batches ? ` ${number(state.hidden_batches)} more drives lie between largest and smallest.` : "";
    setText(figure.querySelector("figcaption"), `${chart.unit}, over array seconds (${clock})${chart.cost ? ": says nothing of a drive" : ""}.${hidden}`);
    fillTable(figure, chart.title, () => [[`array s (${clock})`, (row) => short(row[0]), true], ...lines.map(([name], index) => [name, (row) => short(row[1][index]), true])], () => rowsOf(lines));
  }
  tellTimeline(state.timeline);
}

/** A table inside details is made when they are opened, and again with every change while they are. */
function fillTable(figure, title, columns, rows) {
  const details = figure.querySelector("details");
  const fill = () => details.lastChild.replaceChildren(makeTable(title, columns(), rows()));
  details.ontoggle = () => details.open && fill();
  if (details.open) fill();
}

/** The last points of lines by their x, the newest first. */
function rowsOf(lines) {
  const points = new Map();
  lines.forEach(([, curve], index) => curve.x.forEach((x, at) => {
    if (!points.has(x)) points.set(x, lines.map(() => null));
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
  const whole = sums.flat().reduce((sum, each) => sum + each, 0) || 1;
  const shares = timeline.phases.map((phase, index) => `${phase} ${number((100 * sums.reduce((sum, row) => sum + row[index], 0)) / whole)} %`);
  plot.setAttribute("aria-label", `Timeline of ${timeline.title} for ${timeline.rows.length} rows; of the time shown: ${shares.join(", ")}.`);
  setText(figure.querySelector("figcaption"), `What each drive did when, in array seconds (${timeline.clock}); dotted lines: a round or step begins. ${timeline.note}`);
  fillTable(figure, "Seconds of each phase", () => [["drive", (row) => row[0]], ...timeline.phases.map((phase, index) => [`${phase}, s`, (row) => (row[1][index] ? short(row[1][index]) : NONE), true])],
    () => timeline.rows.map((name, index) => [name, sums[index]]));
}

/** Draw what has changed. */
function redraw(anyway) {
  const key = last ? `${last.instance}/${last.totals.round}/${last.run.clock}` : "";
  if (library !== "here" || !last || (key === drawn && !anyway)) return;
  drawn = key;
  const colour = palette();
  const shown = CHARTS.map((chart) => draw(chart, colour));
  if (last.timeline) shown.push(drawTimeline(last.timeline, colour));
  Promise.all(shown).then(() => {
    // The words are those of the picture's label; the library's own elements say nothing.
    for (const element of document.querySelectorAll(".plot > *, #js-plotly-tester")) element.setAttribute("aria-hidden", "true");
    if (!performance.getEntriesByName("drawn").length) performance.mark("drawn");
  });
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(name).trim();
}

const axisOf = (colour) => ({ gridcolor: colour("--rule"), linecolor: colour("--rule"), zeroline: false, fixedrange: true, automargin: true, tickfont: { color: colour("--muted") }, ticks: "" });

function layout(colour, more) {
  const axis = axisOf(colour);
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", height: 220, margin: { l: 8, r: 10, t: 6, b: 8 },
    font: { family: "system-ui, sans-serif", size: 12, color: colour("--ink") }, dragmode: false, hovermode: "x",
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--rule"), font: { color: colour("--ink"), size: 12 } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", xanchor: "left", font: { size: 11 }, itemclick: false, itemdoubleclick: false },
    ...more,
    xaxis: { ...axis, nticks: 6, ...more.xaxis },
    yaxis: { ...axis, nticks: 5, ...more.yaxis },
  };
}

/** Text for Plotly, which takes some of HTML for markup, links too, and %{...} in a template for a value. */
const plainly = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("%{", "% {");

function draw(chart, colour) {
  const plot = byId(`plot-${chart.id}`);
  const lines = linesOf(chart, last);
  if (!lines.length) return null;
  if (!plot.classList.contains("js-plotly-plot")) plot.replaceChildren();
  const traces = lines.map(([name, curve, tone, style]) => ({
    type: "scatter", name: plainly(name), x: curve.x, y: curve.y, mode: style.mode || (curve.x.length < 3 ? "lines+markers" : "lines"),
    line: { color: colour(tone), width: 2, dash: style.dash || "solid", shape: style.step ? "hv" : "linear" }, marker: { size: 4, color: colour(tone) },
    yaxis: style.pane || "y", stackgroup: style.stack ? "one" : undefined, hovertemplate: `%{y:.5~g}<extra>${plainly(name)}</extra>`,
  }));
  const target = chart.target ? last.run.target_accuracy : null;
  const shapes = target === null ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: target, y1: target, line: { color: colour("--warn"), width: 1.5, dash: "dash" } }];
  const annotations = target === null ? [] : [{ xref: "paper", x: 0, y: target, text: `target ${target}`, showarrow: false, yanchor: "bottom", xanchor: "left", font: { size: 11, color: colour("--warn") } }];
  const several = lines.length > 1;
  return Plotly.react(plot, traces, layout(colour, {
    showlegend: several, margin: { l: 8, r: 10, t: several ? 26 : 10, b: 8 }, shapes, annotations,
    yaxis: { rangemode: chart.zero ? "tozero" : "normal", ...(chart.panes ? { domain: [0.54, 1] } : {}) },
    ...(chart.panes ? { xaxis: { anchor: "y2" }, yaxis2: { ...axisOf(colour), nticks: 4, domain: [0, 0.46], rangemode: "tozero" } } : {}),
  }), CONFIG);
}

function drawTimeline(timeline, colour) {
  const plot = byId("plot-gantt");
  const rows = timeline.rows.map(plainly);
  if (!plot.classList.contains("js-plotly-plot")) plot.replaceChildren();
  const traces = timeline.phases.map((phase, index) => {
    const bars = timeline.bars.filter((bar) => bar[1] === index);
    const [tone, pattern] = PHASES[phase] || ["--muted", "."];
    return {
      type: "bar", orientation: "h", name: phase, y: bars.map((bar) => rows[bar[0]]), x: bars.map((bar) => bar[3] - bar[2]), base: bars.map((bar) => bar[2]),
      marker: { color: colour(tone), line: { width: 0 }, pattern: { shape: pattern, fgcolor: colour("--surface"), fillmode: "overlay", size: 6, solidity: 0.25 } },
      hovertemplate: `%{y}: ${phase}, %{customdata} s<extra></extra>`, customdata: bars.map((bar) => short(bar[3] - bar[2])),
    };
  });
  const end = Math.max(...timeline.bars.map((bar) => bar[3]));
  const shapes = timeline.begins.map((begin) => ({ type: "line", yref: "paper", y0: 0, y1: 1, x0: begin, x1: begin, line: { color: colour("--muted"), width: 1, dash: "dot" } }));
  return Plotly.react(plot, traces, layout(colour, {
    barmode: "overlay", bargap: 0.25, hovermode: "closest", showlegend: true, shapes, height: 84 + 24 * timeline.rows.length, margin: { l: 8, r: 10, t: plot.clientWidth < 600 ? 52 : 30, b: 8 },
    xaxis: { range: [timeline.begins[0], end], title: { text: `array seconds (${plainly(timeline.clock)})`, font: { size: 12, color: colour("--muted") } }, nticks: plot.clientWidth < 600 ? 5 : 12 },
    yaxis: { categoryorder: "array", categoryarray: [...rows].reverse(), range: [-0.6, timeline.rows.length - 0.4], nticks: timeline.rows.length + 1, showgrid: false },
  }), CONFIG);
}
