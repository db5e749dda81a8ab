// Creates elements. Text always stays text: nothing here parses HTML, whatever an object's name or message contains.

const svg = "http://www.w3.org/2000/svg";

/** Creates an element: h("a", {href: "./", class: "x"}, "text", other). Properties that are null or false are omitted. */
export function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false && c !== ""));
  return element;
}

/** An icon of the document's symbols. It is decoration: the text beside it has the same meaning. */
export function icon(name) {
  const element = document.createElementNS(svg, "svg");
  element.setAttribute("class", "icon");
  element.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(svg, "use");
  use.setAttribute("href", `#i-${name}`);
  element.append(use);
  return element;
}

/** The display name of a health or of the status of a hop. */
export const words = {
  ok: "OK", warning: "Warning", broken: "Broken", unknown: "Unknown", waiting: "Waiting", skipped: "Skipped",
};

/** A state by shape and word. */
export function badge(state, word) {
  const known = words[state] ? state : "unknown";
  return h("span", { class: `state ${known}` }, icon(known), h("span", { class: "word" }, word || words[known]));
}

/** Text with `commands` formatted as code. */
export function prose(text) {
  return String(text || "").split("`").map((part, i) => (i % 2 ? h("code", null, part) : part)).filter((part) => part !== "");
}

/** Sets a text only if it differs, so that nothing is redrawn and no screen reader is notified. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const announcer = () => document.getElementById("announcer");

/** Makes screen readers announce a text after their current one. */
export function announce(text) {
  const log = announcer();
  while (log.childElementCount > 4) log.firstChild.remove();
  log.append(h("p", null, text));
}
