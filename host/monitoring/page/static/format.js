// Numbers as people read them. What is not known is a dash.
export const NONE = "–";

const plain = new Map();

/** A number with so many digits behind the point and groups of thousands. */
export function number(value, digits = 0) {
  if (value === null || value === undefined) return NONE;
  if (!plain.has(digits)) {
    plain.set(digits, new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  }
  return plain.get(digits).format(value);
}

/** A number with about four significant digits. */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  return number(value, size >= 1000 || Number.isInteger(value) ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

/** Seconds: parts of a second in ms, from two minutes on in minutes and hours. */
export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value > 0 && value < 0.1) return `${short(value * 1000)} ms`;
  if (value < 120) return `${short(value)} s`;
  const whole = Math.round(value);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours ? `${number(hours)} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

/** Joules, in kJ and MJ where that is shorter. */
export function joules(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 1e6) return `${short(value / 1e6)} MJ`;
  return value >= 1e4 ? `${short(value / 1e3)} kJ` : `${short(value)} J`;
}

/** The band of a figure, to stand behind it; empty if it is not known. */
export function ends(band, shown) {
  if (!band || shown(band.low) === shown(band.high)) return "";
  return ` (${shown(band.low)} to ${shown(band.high)})`;
}

/** Watts. */
export const watts = (value) => (value === null || value === undefined ? NONE : `${short(value)} W`);

/** One thing or several. */
export const count = (many, thing) => `${number(many)} ${thing}${many === 1 ? "" : "s"}`;

/** Names as a list; of many only the first. */
export function names(list, most = 12) {
  return list.length <= most ? list.join(", ") : `${list.slice(0, most).join(", ")} and ${number(list.length - most)} more`;
}
