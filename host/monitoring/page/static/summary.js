// What is said of the run as a whole: head, tiles, rounds.
import { byId, make, makeTable, replaceContent, setText } from "./dom.js";
import { NONE, count, ends, joules, names, number, seconds, short } from "./format.js";

const MEANINGS = {
  counted: "counted from the instructions that the emulated drives execute",
  sampled: "counted for some steps on a virtual machine, the mean of their kind for the others",
  modelled: "looked up in a calibration table",
  wall: "of a stopwatch on the machine where the agent runs",
};

// Kinds of the user's code; any other kind of failure says itself what it is.
const CODE = ["model", "data set", "strategy", "tuner"];
let shownFailures = "[]";

/** Show everything that is not a drive, a curve or an event. */
export function showSummary(state) {
  const { run, totals, states } = state;
  const lost = states.lost || 0;
  setText(byId("array"), run.array);
  const phase = byId("phase");
  setText(phase, run.phase);
  phase.dataset.phase = run.phase;
  const pill = byId("lost-pill");
  pill.hidden = !lost;
  setText(pill, `✕ ${lost} lost`);
  const facts = [run.engine, run.model, run.mode, run.run_directory].filter(Boolean);
  setText(byId("facts"), facts.join(" · "));
  setText(byId("program"), `csd-emu ${run.program}`);
  document.title = `${lost ? `(${lost} lost) ` : ""}${run.array}: ${run.phase}, round ${totals.round} of ${run.rounds} – csd-emu`;
  showClocks(run.clock, totals.sampling);
  const taken = Object.entries(totals.last_step).map(([knob, value]) => `${knob}: ${value}`);
  setText(byId("last-step"), taken.length ? `Step ${number(totals.steps)} was taken with: ${taken.join("; ")}.` : "");
  showTiles(run, totals, state.rounds[0]);
  showRounds(state);
  showLost(state);
  showFailures(state.failures);
}

/** What failed of the user's code, the first with its traceback open. */
function showFailures(failures) {
  const box = byId("failures");
  const told = JSON.stringify(failures);
  if (told === shownFailures) return; // what a reader has opened or closed stays so
  shownFailures = told;
  box.hidden = !failures.length;
  const parts = failures.map((failure, index) => {
    const when = `in round ${number(failure.round)}${failure.step === null ? "" : `, step ${number(failure.step)}`}`;
    const kind = CODE.includes(failure.kind) ? `the ${failure.kind} failed` : failure.kind;
    const times = failure.count > 1 ? ` (${count(failure.count, "time")} in all)` : "";
    return make("details", index ? {} : { open: "" },
      make("summary", {}, `${kind} on ${failure.device} ${when}: ${failure.error}${times}`),
      failure.traceback ? make("pre", { tabindex: 0 }, failure.traceback) : null);
  });
  replaceContent(box, make("p", {}, "✕ This run has failed."), ...parts);
}

function showClocks(clock, sampling) {
  const told = clock.split("+").filter(Boolean).map((name) => `${name}: ${MEANINGS[name] || "unknown to this version"}`);
  const sampled = sampling ? ` ${sampling}.` : "";
  setText(byId("clocks"), clock ? `Device time is ${told.join("; ")}.${sampled} Wall time is only what emulating it costs.` : "");
}

function showTiles(run, totals, last) {
  const clock = run.clock || "no clock yet";
  const bands = totals.bands || {};
  const cost = totals.array_seconds > 0 ? totals.wall_seconds / totals.array_seconds : null;
  const perRecord = totals.records ? totals.joules / totals.records : null;
  const target = run.target_accuracy;
  const meter = totals.machine_joules === null ? "" : `; this machine: ${joules(totals.machine_joules)} by its meter`;
  const tiles = [
    tile("Round", `${number(totals.round)}`, `of ${number(run.rounds)}`,
      totals.steps ? count(totals.steps, "step") : `${count(totals.records, "record")} trained on`, totals.round / run.rounds),
    tile("Accuracy", totals.accuracy === null ? NONE : number(totals.accuracy, 4), "",
      target === null ? "no target" : `target ${short(target)}${totals.accuracy >= target ? " reached" : ""}`,
      target === null ? null : (totals.accuracy || 0) / target),
    tile("Loss", totals.test_loss === null ? NONE : number(totals.test_loss, 4), "", `in training ${totals.train_loss === null ? NONE : number(totals.train_loss, 4)}`),
    tile("Drive's throughput", short(totals.records_per_device_second), "records / device s", `mean of a drive, last round${ends(bands.records_per_device_second, short)} · ${clock}`),
    tile("Array's throughput", short(totals.records_per_array_second), "records / array s", `link and waiting included${ends(bands.records_per_array_second, short)} · ${clock}`),
    tile("Power", short(totals.watts), "W", `array, last round${ends(bands.watts, short)} · in all ${joules(totals.joules)}${ends(bands.energy_joules, joules)}, ${perRecord === null ? NONE : joules(perRecord) + ends(bands.joules_per_record, joules)} per record · modelled`),
    tile("Device time", ...split(seconds(totals.array_seconds)), `of the array${ends(bands.array_seconds, seconds)} · ${clock} · last round ${seconds(totals.last_array_seconds)}${ends(last?.bands?.array_seconds, seconds)}`),
    tile("Cost of emulation", ...split(seconds(totals.wall_seconds)), `wall time · ${cost === null ? NONE : `${short(cost)} wall s per device s`}${meter}`, null, "cost"),
  ];
  const list = byId("tiles");
  if (list.children.length !== tiles.length) {
    list.replaceChildren(...tiles);
    return;
  }
  tiles.forEach((fresh, index) => {
    if (!fresh.isEqualNode(list.children[index])) list.children[index].replaceWith(fresh);
  });
}

/** Number and unit of a quantity. */
function split(text) {
  const at = text.indexOf(" ");
  return at < 0 || text.includes("min") ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

function tile(label, value, unit, note, share = null, kind = "") {
  const bar = share === null ? null
    : make("progress", { max: 1, value: Math.min(1, share).toFixed(4), "aria-label": `${label}: ${value} ${unit}` });
  return make("div", { class: `tile ${kind}`.trim() }, make("dt", {}, label),
    make("dd", {}, make("b", {}, value), unit ? make("span", { class: "unit" }, ` ${unit}`) : null, bar, make("small", {}, note)));
}

function showRounds({ run, rounds }) {
  const clock = run.clock || "device time";
  setText(byId("round-count"), rounds.length ? `the last ${rounds.length} · array s: ${clock} · wall s: cost of emulation` : "none has ended yet");
  const columns = [
    ["round", (row) => number(row.round), true],
    ["accuracy", (row) => (row.accuracy === null ? NONE : number(row.accuracy, 4)), true],
    ["loss", (row) => (row.test_loss === null ? NONE : number(row.test_loss, 4)), true],
    ["array s", (row) => short(row.array_seconds) + ends((row.bands || {}).array_seconds, short), true],
    ["wall s", (row) => short(row.wall_seconds), true],
    ["drives", (row) => number(row.drives), true, true],
    ["records / array s", (row) => short(row.records_per_array_second) + ends((row.bands || {}).records_per_array_second, short), true],
    ["records / device s", (row) => short(row.records_per_device_second) + ends((row.bands || {}).records_per_device_second, short), true, true],
    ["batch", (row) => number(row.batch_size), true, true],
    ["W", (row) => short(row.watts) + ends((row.bands || {}).watts, short), true, true],
    ["J", (row) => short(row.joules) + ends((row.bands || {}).energy_joules, short), true, true],
  ];
  if (rounds.length) replaceContent(byId("rounds"), makeTable("The last rounds, newest first", columns, rounds));
}

function showLost({ drives, states }) {
  const lost = drives.filter((drive) => drive.state === "lost").map((drive) => drive.name);
  const box = byId("lost");
  box.hidden = !lost.length;
  setText(box, lost.length ? `✕ ${count(lost.length, "drive")} lost: ${names(lost)}` : "");
  const told = Object.entries(states).map(([name, many]) => `${number(many)} ${name}`);
  setText(byId("drive-count"), `${count(drives.length, "drive")}: ${told.join(", ")}`);
}
