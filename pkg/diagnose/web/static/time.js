// Times by the server's clock, which is the source of all times on the page.

let offset = 0; // s by which the server's clock is ahead of this one

/** Stores the server's time, in seconds since 1970. */
export function serverTime(seconds) {
  if (Number.isFinite(seconds)) offset = seconds - Date.now() / 1000;
}

const steps = [[86400, "d"], [3600, "h"], [60, "min"]];

/** Formats a duration in seconds in its largest unit: "3 d". */
function span(seconds) {
  for (const [size, unit] of steps) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return "under 1 min";
}

/** Formats a relative time: "3 h ago", "in 2 d". Empty for 0, which means that the time is not known. */
export function relative(unix) {
  if (!unix) return "";
  const ahead = unix - (Date.now() / 1000 + offset);
  if (Math.abs(ahead) < 10) return "just now";
  return ahead >= 0 ? `in ${span(ahead)}` : `${span(-ahead)} ago`;
}

/** Formats the absolute time, for tooltips. */
export function absolute(unix) {
  return unix ? new Date(unix * 1000).toISOString().replace("T", " ").replace(/\.000Z$/, " UTC") : "";
}

/** Converts a time of Go's encoding/json to seconds since 1970; 0 for none. */
export function parse(text) {
  const at = Date.parse(text || "");
  return Number.isFinite(at) && at > 0 ? at / 1000 : 0;
}

/** A round-trip time. */
export function millis(ms) {
  if (!ms) return "";
  if (ms < 0.1) return "< 0.1 ms";
  return `${ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
}
