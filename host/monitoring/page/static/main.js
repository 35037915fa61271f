// Asks the host for the run's state, and shows it: first what is text, then the curves.
import { startCharts, showCharts } from "./charts.js";
import { byId, setText } from "./dom.js";
import { showDrives, startDrives } from "./drive_toolbar.js";
import { showEvents } from "./events.js";
import { showSummary } from "./summary.js";

const EVERY_MILLISECONDS = 1000;
const SLOWEST_MILLISECONDS = 8000;

const PATIENCE_MS = 10000;
let tag = "";
let failures = 0;
let lastSeen = null;
let timer = null;

async function ask() {
  timer = null;
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS); // a host that is paused answers nothing
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await fetch("/api/state", { cache: "no-store", headers, signal });
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      const state = await answer.json();
      tag = answer.headers.get("ETag") || "";
      show(state);
    }
    failures = 0;
    lastSeen = new Date();
  } catch (error) {
    failures += 1;
    if (!(error instanceof TypeError)) console.warn(error);
  }
  showConnection();
  schedule(Math.min(SLOWEST_MILLISECONDS, EVERY_MILLISECONDS * 2 ** failures));
}

function show(state) {
  showSummary(state);
  showDrives(state);
  showEvents(state);
  if (!performance.getEntriesByName("shown").length) performance.mark("shown");
  showCharts(state);
}

function showConnection() {
  const banner = byId("banner");
  banner.hidden = failures < 2;
  document.body.classList.toggle("stale", failures >= 2);
  if (failures >= 2) {
    const since = lastSeen ? `since ${lastSeen.toLocaleTimeString()}; what is below is as it was then` : "";
    setText(banner, `The host does not answer ${since}. The run may have ended; its report is in the run directory.`);
  }
}

/** Ask again later; not while nobody looks. */
function schedule(milliseconds) {
  if (timer === null && !document.hidden) timer = setTimeout(ask, milliseconds);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && timer === null) schedule(0);
});
startDrives();
startCharts();
ask();
