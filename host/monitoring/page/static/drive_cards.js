// The grid of drives: cards for a few, cells for hundreds, a table for who wants to compare.
import { make, makeTable, setText } from "./dom.js";
import { NONE, ends, joules, number, seconds, short, watts } from "./format.js";

const MOST_CARDS = 400;
const MOST_ROWS = 200;
const SLOW = 1.1;
const SIGNS = { training: "▶", ready: "●", booting: "◔", defined: "○", lost: "✕" };
const sign = (drive) => SIGNS[drive.state] || "?";
const slowed = (drive) => drive.slowdown !== null && drive.slowdown > SLOW;
const slowdown = (drive) => (drive.slowdown === null ? NONE : `×${number(drive.slowdown, 2)}`);
const classes = (drive) => [drive.state, slowed(drive) ? "slow" : "", drive.straggler ? "late" : ""].filter(Boolean).join(" ");
const condition = (drive) => [drive.state, slowed(drive) ? `slowed ${slowdown(drive)}` : "", drive.straggler ? "late" : ""].filter(Boolean).join(", ");
const clock = (drive) => drive.clock || "no clock yet";

/** What is known of a drive: label and text; those from the fourth on may have a band, and a line of their own. */
const BASE = [
  ["records / device s", (drive) => (drive.state === "lost" ? NONE : short(drive.records_per_device_second))],
  ["batch", (drive) => number(drive.batch_size)],
  ["slowdown", slowdown],
  ["power", (drive) => watts(drive.watts) + ends((drive.bands || {}).watts, short)],
  ["energy", (drive) => joules(drive.joules) + ends((drive.bands || {}).energy_joules, joules)],
  ["computed", (drive) => seconds(drive.compute_seconds) + ends((drive.bands || {}).device_seconds, seconds)],
];
/** Of drives that serve a host. */
const SERVICE = [
  ["host IOPS", (drive) => short(drive.host_io?.commands_per_second)],
  ["host p99", (drive) => seconds(drive.host_io?.p99_seconds)],
  ["host queue depth", (drive) => short(drive.host_io?.queue_depth)],
];
let FACTS = BASE;
const MORE = [["records", (drive) => number(drive.records)], ["rounds", (drive) => number(drive.rounds)], ["clock", clock], ["profile", (drive) => drive.profile || NONE]];

/** Tell of host I/O too from the first drive on that serves one. */
function chooseFacts(drives) {
  if (FACTS === BASE && drives.some((drive) => drive.host_io)) FACTS = [...BASE, ...SERVICE];
}

/** A card for each drive, changed in place. Returns a note for below. */
export function showCards(box, drives) {
  chooseFacts(drives);
  const list = reuse(box, `cards-${FACTS.length}`, () => make("ul", { class: "cards", role: "list" }));
  const shown = drives.slice(0, MOST_CARDS);
  keep(list, shown, makeCard, (card, drive) => {
    card.className = `drive ${classes(drive)}`;
    setText(card.querySelector(".state"), `${sign(drive)} ${condition(drive)}`);
    FACTS.forEach(([, text], index) => setText(card.querySelectorAll("dd")[index], text(drive)));
    setText(card.querySelector(".foot"), [drive.profile, clock(drive)].filter(Boolean).join(" · "));
  });
  return drives.length > shown.length ? `Only the first ${number(shown.length)} are shown as cards; narrow the search.` : "";
}

function makeCard(drive) {
  const facts = FACTS.map(([label]) => make("div", {}, make("dt", {}, label), make("dd", {})));
  return make("li", { class: "drive" }, make("div", { class: "top" }, make("h3", {}, drive.name), make("p", { class: "state" })),
    make("dl", {}, ...facts), make("p", { class: "foot" }));
}

let chosen = null;

/** A cell for each drive: one stop for the Tab key, arrows move inside, the drive in focus is told in full. */
export function showCells(box, drives) {
  chooseFacts(drives);
  const parts = reuse(box, "cells", () => {
    const list = make("ul", { class: "cells", role: "list", "aria-label": "Drives; arrow keys move" });
    list.addEventListener("keydown", (event) => move(list, event));
    list.addEventListener("focusin", (event) => choose(list, event.target));
    list.addEventListener("pointerover", (event) => tell(list, event.target.closest("button")));
    list.addEventListener("pointerleave", () => tell(list, null));
    return make("div", {}, list, make("dl", { class: "told" }));
  });
  const list = parts.firstChild;
  const fastest = Math.max(...drives.map((drive) => drive.records_per_device_second || 0), 1e-9);
  keep(list, drives, makeCell, (item, drive) => {
    const button = item.firstChild;
    button.className = classes(drive);
    setText(button.firstChild, drive.state === "lost" ? "✕" : slowed(drive) ? "▼" : drive.name.match(/\d+$/)?.[0] ?? drive.name.slice(0, 4));
    button.style.setProperty("--share", drive.state === "lost" ? 0 : (drive.records_per_device_second || 0) / fastest);
    const label = `${drive.name}: ${condition(drive)}, ${FACTS.map(([name, text]) => `${name} ${text(drive)}`).join(", ")}, clock ${clock(drive)}`;
    if (button.getAttribute("aria-label") !== label) button.setAttribute("aria-label", label);
    item.drive = drive;
  });
  const items = [...list.children];
  const current = items.find((item) => item.drive.name === chosen) || items[0];
  for (const item of list.querySelectorAll('[tabindex="0"]')) if (item.parentNode !== current) item.tabIndex = -1;
  if (current) current.firstChild.tabIndex = 0;
  tell(list, list.querySelector("button:hover"));
  return "Bar: records per device second against the fastest. ✕ lost, ▼ slowed. Point at a cell, or use the arrow keys.";
}

const makeCell = () => make("li", {}, make("button", { type: "button", tabindex: -1 }, make("span", {})));

function choose(list, button) {
  chosen = button.parentNode.drive?.name ?? null;
  for (const other of list.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
  button.tabIndex = 0;
  tell(list, null);
}

function move(list, event) {
  const items = [...list.children];
  const at = items.indexOf(event.target.parentNode);
  const top = items[0].offsetTop;
  const columns = Math.max(1, items.findIndex((item) => item.offsetTop > top));
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + columns, ArrowUp: at - columns, Home: 0, End: items.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  items[Math.max(0, Math.min(items.length - 1, to))].firstChild.focus();
}

/** Show the facts of a drive below the cells: the one pointed at, else the one chosen. */
function tell(list, button) {
  const box = list.nextSibling;
  const drive = button ? button.parentNode.drive : [...list.children].find((item) => item.drive.name === chosen)?.drive;
  box.hidden = !drive;
  if (!drive) return;
  const facts = [["drive", () => drive.name], ["state", () => `${sign(drive)} ${condition(drive)}`], ...FACTS, ...MORE];
  box.replaceChildren(...facts.map(([label, text]) => make("div", {}, make("dt", {}, label), make("dd", {}, text(drive)))));
}

/** A row for each drive. */
export function showTable(box, drives) {
  chooseFacts(drives);
  const frame = reuse(box, "table", () => make("div", { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "h-drives" }));
  const shown = drives.slice(0, MOST_ROWS);
  const facts = FACTS.map(([label, text], index) => [label, text, true, index > 3]);
  const more = MORE.map(([label, text], index) => [label, text, index < 2, true]);
  const columns = [["drive", (drive) => drive.name], ["state", (drive) => make("span", { class: `state ${classes(drive)}` }, `${sign(drive)} ${condition(drive)}`)], ...facts, ...more];
  frame.replaceChildren(makeTable("Drives", columns, shown));
  return drives.length > shown.length ? `Only the first ${number(shown.length)} are shown in the table; narrow the search.` : "";
}

/** The content of the box, made anew if it is of another view. */
function reuse(box, view, content) {
  if (box.dataset.view !== view) {
    box.dataset.view = view;
    box.replaceChildren(content());
  }
  return box.firstChild;
}

/** Let a list have an item for each drive, in order; items stay those of their drive, and are touched if it has changed. */
function keep(list, drives, create, update) {
  const known = new Map([...list.children].map((item) => [item.dataset.name, item]));
  const items = drives.map((drive) => {
    const item = known.get(drive.name) || create(drive);
    const seen = JSON.stringify(drive);
    if (item.seen !== seen) {
      item.seen = seen;
      item.dataset.name = drive.name;
      update(item, drive);
    }
    return item;
  });
  const same = items.length === list.children.length && items.every((item, index) => item === list.children[index]);
  if (same) return;
  const focused = document.activeElement;
  list.replaceChildren(...items);
  if (focused && list.contains(focused)) focused.focus();
}
