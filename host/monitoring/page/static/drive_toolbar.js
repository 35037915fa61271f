// Which drives are shown, in which order and how: the toolbar of the grid.
import { byId, setText } from "./dom.js";
import { count, number } from "./format.js";
import { showCards, showCells, showTable } from "./drive_cards.js";

const MOST_CARDS = 48;
const KEYS = {
  array: null,
  slow: (drive) => drive.records_per_device_second ?? Infinity,
  watts: (drive) => -(drive.watts ?? -1),
  batch: (drive) => -(drive.batch_size ?? -1),
};
const VIEWS = { cards: showCards, cells: showCells, table: showTable };

let last = null;

/** Show the drives of a state. */
export function showDrives(state) {
  last = state;
  offerStates(state);
  render();
}

/** Listen to the toolbar. */
export function startDrives() {
  const tools = byId("drive-tools");
  tools.addEventListener("submit", (event) => event.preventDefault());
  tools.addEventListener("input", render);
}

function offerStates({ states, drives }) {
  const select = byId("state");
  const wanted = [["", `all (${number(drives.length)})`], ...Object.entries(states).map(([name, many]) => [name, `${name} (${number(many)})`])];
  if (select.value && !(select.value in states)) wanted.push([select.value, `${select.value} (0)`]);
  if (JSON.stringify(wanted) === select.dataset.offered) return;
  select.dataset.offered = JSON.stringify(wanted);
  const chosen = select.value;
  select.replaceChildren(...wanted.map(([value, text]) => new Option(text, value, false, value === chosen)));
}

function render() {
  if (!last) return;
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = byId("state").value;
  let shown = last.drives.filter((drive) => {
    if (wanted && drive.state !== wanted) return false;
    const text = `${drive.name} ${drive.state} ${drive.profile} ${drive.clock} ${drive.kind}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const key = KEYS[byId("order").value];
  if (key) shown = [...shown].sort((one, other) => key(one) - key(other));
  const chosen = byId("view").value;
  const view = chosen === "auto" ? (last.drives.length > MOST_CARDS ? "cells" : "cards") : chosen;
  const note = VIEWS[view](byId("grid"), shown);
  const filtered = shown.length === last.drives.length ? "" : `${number(shown.length)} of ${count(last.drives.length, "drive")} match. `;
  setText(byId("grid-note"), filtered + note);
}
