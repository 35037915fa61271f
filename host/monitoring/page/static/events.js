// Events, newest first; those that matter are also said to who listens.
import { byId, make, setText } from "./dom.js";
import { count, names, seconds } from "./format.js";

const SAID = { lost: "lost", back: "back", failed: "failed", injected: "disturbed", refused: "refused" };
const SIGNS = { lost: "✕", failed: "!", refused: "!", straggler: "!", rejoined: "↺", injected: "↯", retuned: "⇅", resumed: "↻", joined: "+", left: "−", note: "·" };
const PAUSE_MILLISECONDS = 4000;

let seen = null;
let phase = null;
let away = new Set();
let pending = [];
let timer = null;

/** Show the events of a state. */
export function showEvents({ events, run, drives }) {
  say(events, run.phase, new Set(drives.filter((drive) => drive.state === "lost").map((drive) => drive.name)));
  setText(byId("event-count"), events.length ? "newest first · device time of the array, then wall time" : "none yet");
  const list = byId("events");
  const newest = events.length ? events[0].number : 0;
  if (list.dataset.newest === `${newest}/${run.clock}`) return;
  list.dataset.newest = `${newest}/${run.clock}`;
  list.replaceChildren(...group(events).map((several) => makeEvent(several, run.clock)));
}

/** Events in a row of one kind that say no more are one line. */
function group(events) {
  const groups = [];
  for (const event of events) {
    const before = groups.at(-1);
    if (before && !event.detail && !before[0].detail && before[0].what === event.what) before.push(event);
    else groups.push([event]);
  }
  return groups;
}

function makeEvent(several, clock) {
  const [event] = several;
  const who = several.length > 1 ? names(several.map((each) => each.device).reverse(), 6) : event.device;
  const when = `${seconds(event.array_seconds)} ${clock || ""} · ${seconds(event.wall_seconds)} wall`;
  return make("li", { class: event.what },
    make("span", { class: "what" }, make("span", { "aria-hidden": "true" }, SIGNS[event.what] || "·"), ` ${event.what}`),
    make("span", { class: "who" }, who), make("span", { class: "when" }, when),
    event.detail ? make("span", { class: "detail" }, event.detail) : null);
}

/** Say what is new and matters, several things at once rather than one after the other. */
function say(events, now, lost) {
  const newest = events.length ? events[0].number : 0;
  if (seen !== null) {
    pending.push(...events.filter((event) => event.number > seen && event.what in SAID && event.what !== "lost"));
    // By their state, for a drive may also be lost when no round is going on.
    pending.push(...[...lost].filter((name) => !away.has(name)).map((device) => ({ what: "lost", device })));
    pending.push(...[...away].filter((name) => !lost.has(name)).map((device) => ({ what: "back", device })));
    if (phase !== now && now === "finished") pending.push({ what: "finished" });
  }
  [seen, phase, away] = [newest, now, lost];
  if (pending.length && timer === null) timer = setTimeout(speak, 50);
}

function speak() {
  const told = Object.entries(SAID).map(([what, word]) => {
    const devices = [...new Set(pending.filter((event) => event.what === what).map((event) => event.device))];
    return devices.length > 3 ? `${count(devices.length, "drive")} ${word}` : devices.map((device) => `${device} ${word}`).join(", ");
  });
  if (pending.some((event) => event.what === "finished")) told.push("training is finished");
  setText(byId("announce"), told.filter(Boolean).join("; "));
  pending = [];
  timer = setTimeout(() => {
    timer = null;
    if (pending.length) speak();
  }, PAUSE_MILLISECONDS);
}
