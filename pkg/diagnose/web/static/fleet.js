// The table of all Clusters.

import { announce, badge, h, icon, setText, words } from "./dom.js";
import { healths } from "./store.js";
import { absolute, millis, relative } from "./time.js";

const perPage = 100;
const calm = 3000; // ms without input in the table before its order follows changes

const columns = [
  { key: "health", title: "State" },
  { key: "name", title: "Cluster" },
  { key: "namespace", title: "Namespace" },
  { key: "mode", title: "Mode" },
  { key: "connected", title: "Edges", numeric: true, hint: "connected edges of admitted edges" },
  { key: "tunnels", title: "Tunnels", numeric: true, hint: "of all edges to all gateways" },
  { key: "networks", title: "Networks", numeric: true, hint: "healthy networks of all networks" },
  { key: "rtt", title: "Round trip", numeric: true, hint: "median of its tunnels" },
  { key: "expires", title: "Certificate", numeric: true, hint: "the certificate that expires first" },
  { key: "changed", title: "Changed", numeric: true, hint: "status of a condition" },
  { key: "note", title: "Note", unsorted: true },
];

/** Returns the query of a URL's parameters. */
export function parseQuery(search) {
  const p = new URLSearchParams(search);
  return {
    q: p.get("q") || "",
    namespace: p.get("namespace") || "",
    mode: p.get("mode") || "",
    health: (p.get("health") || "").split(",").filter((x) => healths.includes(x)),
    warnings: p.get("warnings") === "1",
    sort: columns.some((c) => c.key === p.get("sort") && !c.unsorted) ? p.get("sort") : "health",
    descending: p.get("order") === "desc",
    page: Math.max(1, Number.parseInt(p.get("page"), 10) || 1),
  };
}

/** Returns the parameters of a query, without defaults. */
export function formatQuery(query) {
  const p = new URLSearchParams();
  if (query.q) p.set("q", query.q);
  if (query.namespace) p.set("namespace", query.namespace);
  if (query.mode) p.set("mode", query.mode);
  if (query.health.length) p.set("health", query.health.join(","));
  if (query.warnings) p.set("warnings", "1");
  if (query.sort !== "health") p.set("sort", query.sort);
  if (query.descending) p.set("order", "desc");
  if (query.page > 1) p.set("page", String(query.page));
  const text = p.toString();
  return text ? `?${text}` : "";
}

export class FleetView {
  /** go(query, push): navigates to another query, with or without a new entry in the history. */
  constructor(store, go) {
    this.store = store;
    this.go = go;
    this.query = parseQuery("");
    this.lines = new Map(); // table rows by id
    this.spare = []; // unused table rows
    this.shown = [];
    this.changes = new Map();
    this.build();
  }

  build() {
    this.chips = new Map(["all", ...healths].map((health) => [health, this.chip(health)]));
    this.search = h("input", {
      type: "search", id: "q", placeholder: "Name, hostname, message", autocomplete: "off", spellcheck: "false", "aria-keyshortcuts": "/",
      oninput: () => this.type(() => ({ q: this.search.value.trim() })),
    });
    this.space = h("input", {
      type: "search", id: "namespace", list: "namespaces", placeholder: "All", autocomplete: "off", spellcheck: "false",
      oninput: () => this.type(() => ({ namespace: this.space.value.trim() })),
    });
    this.spaces = h("datalist", { id: "namespaces" });
    this.mode = h("select", { id: "mode", onchange: () => this.filter({ mode: this.mode.value }) }, h("option", { value: "" }, "All"));
    this.only = h("input", { type: "checkbox", id: "warnings", onchange: () => this.filter({ warnings: this.only.checked }) });
    this.clear = h("button", { type: "button", class: "plain", hidden: true, onclick: () => { this.go(parseQuery(""), true); this.search.focus(); } }, "Clear filters");
    this.count = h("p", { class: "count", id: "count", role: "status" }, "Reading the fleet…");
    this.used = 0; // time of the last input in the table
    this.body = h("tbody", { onpointermove: () => { this.used = Date.now(); }, onkeydown: (event) => this.move(event), onfocusin: (event) => this.rove(event.target) });
    this.heads = new Map();
    const head = h("tr", null, columns.map((column) => this.head(column)));
    this.table = h("table", { class: "fleet", "aria-describedby": "count", "aria-busy": "true" },
      h("caption", { class: "unseen" }, "Clusters. Up and down arrow keys move between them, Enter opens one."),
      h("colgroup", null, columns.map((column) => h("col", { class: `c-${column.key}` }))),
      h("thead", null, head), this.body);
    this.scroller = h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Table of Clusters" }, this.table);
    this.pager = h("nav", { class: "pager", "aria-label": "Pages of the table", hidden: true });
    this.empty = h("p", { class: "empty", hidden: true });
    this.element = h("section", { class: "fleet-view", "aria-labelledby": "fleet-title" },
      h("div", { class: "heading" }, h("h1", { id: "fleet-title", tabindex: "-1" }, "Fleet"), this.count),
      h("div", { class: "chips", role: "group", "aria-label": "Filter by state" }, [...this.chips.values()].map((c) => c.button)),
      h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
        h("label", { class: "wide", for: "q" }, h("span", null, "Search"), this.search),
        h("label", { for: "namespace" }, h("span", null, "Namespace"), this.space, this.spaces),
        h("label", { for: "mode" }, h("span", null, "Mode"), this.mode),
        h("label", { class: "check", for: "warnings" }, this.only, h("span", null, "Only with warnings")),
        this.clear),
      this.scroller, this.empty, this.pager);
  }

  chip(health) {
    const number = h("span", { class: "number" }, "0");
    const press = () => {
      if (health === "all") return this.filter({ health: [] });
      const chosen = this.query.health.includes(health) ? this.query.health.filter((x) => x !== health) : [...this.query.health, health];
      return this.filter({ health: chosen });
    };
    const label = health === "all" ? h("span", { class: "word" }, "All") : badge(health);
    return { number, button: h("button", { type: "button", class: "chip", "aria-pressed": "false", "data-health": health, onclick: press }, label, " ", number) };
  }

  head(column) {
    const kind = `c-${column.key}${column.numeric ? " numeric" : ""}`;
    if (column.unsorted) return h("th", { scope: "col", class: kind }, column.title);
    const th = h("th", { scope: "col", class: kind, "aria-sort": "none" },
      h("button", { type: "button", title: column.hint, onclick: () => this.sort(column.key) }, column.title, h("span", { class: "arrow" }, icon("up"), icon("down"))));
    this.heads.set(column.key, th);
    return th;
  }

  sort(key) {
    const descending = this.query.sort === key && !this.query.descending;
    this.go({ ...this.query, sort: key, descending, page: 1 }, true);
  }

  filter(change) {
    this.go({ ...this.query, ...change, page: 1 }, true);
  }

  /** Filters while the user types, without an entry in the history for each key. */
  type(change) {
    this.go({ ...this.query, ...change(), page: 1 }, false);
  }

  /** Shows the result of a query. */
  show(query) {
    this.query = query;
    if (this.search.value.trim() !== query.q) this.search.value = query.q;
    if (this.space.value.trim() !== query.namespace) this.space.value = query.namespace;
    this.only.checked = query.warnings;
    this.clear.hidden = !(query.q || query.namespace || query.mode || query.warnings || query.health.length);
    for (const [key, th] of this.heads) th.setAttribute("aria-sort", key === query.sort ? (query.descending ? "descending" : "ascending") : "none");
    for (const [health, chip] of this.chips) chip.button.setAttribute("aria-pressed", String(health === "all" ? query.health.length === 0 : query.health.includes(health)));
    if (this.store.loaded) this.arrange();
  }

  /** Shows the fleet as it was just read. */
  loaded() {
    this.table.setAttribute("aria-busy", "false");
    const modes = [...this.store.modes()].sort();
    this.mode.replaceChildren(h("option", { value: "" }, "All"), ...modes.map((mode) => h("option", { value: mode }, mode)));
    const spaces = [...this.store.namespaces()].sort().slice(0, 300);
    this.spaces.replaceChildren(...spaces.map((space) => h("option", { value: space })));
    this.arrange();
  }

  /** Filters and sorts rows, and draws one page of them. */
  arrange() {
    if (this.query.mode && ![...this.mode.options].some((o) => o.value === this.query.mode)) this.mode.append(h("option", { value: this.query.mode }, this.query.mode));
    this.mode.value = this.query.mode;
    const { rows, counts } = this.store.find(this.query);
    let all = 0;
    for (const health of healths) {
      all += counts[health];
      setText(this.chips.get(health).number, counts[health].toLocaleString("en"));
    }
    setText(this.chips.get("all").number, all.toLocaleString("en"));
    const pages = Math.max(1, Math.ceil(rows.length / perPage));
    const page = Math.min(this.query.page, pages);
    const from = (page - 1) * perPage;
    this.shown = rows.slice(from, from + perPage);
    setText(this.count, rows.length === this.store.rows.size ? `${rows.length.toLocaleString("en")} Clusters` : `${rows.length.toLocaleString("en")} of ${this.store.rows.size.toLocaleString("en")} Clusters`);
    this.draw();
    this.drawPager(page, pages, from, rows.length);
    this.stale = false;
  }

  draw() {
    const lines = new Map();
    const wants = new Set(this.shown.map((row) => row.id));
    for (const [id, line] of this.lines) if (!wants.has(id) && line.link !== document.activeElement) this.spare.push(line);
    for (const row of this.shown) { // reusing a table row takes a fraction of the time of a new one
      const line = this.lines.get(row.id) || this.spare.shift() || this.line();
      this.fill(line, row);
      lines.set(row.id, line);
    }
    const wanted = [...lines.values()].map((line) => line.tr);
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    const place = [...this.lines.values()].findIndex((line) => line.link === focused);
    if (wanted.length !== this.body.children.length || wanted.some((tr, i) => this.body.children[i] !== tr)) this.body.replaceChildren(...wanted);
    this.lines = lines;
    if (focused) { // if its row is gone, the row in its place gets the focus
      const links = [...lines.values()].map((line) => line.link);
      (links.includes(focused) ? focused : links[Math.min(place, links.length - 1)] || this.search).focus({ preventScroll: true });
    }
    this.rove(focused);
    this.scroller.hidden = this.shown.length === 0;
    this.empty.hidden = this.shown.length > 0;
    if (!this.shown.length) setText(this.empty, this.store.rows.size ? "No Cluster matches. Clear a filter to see more." : "No Cluster has a tunnel yet. Label one fairlead.dev/tunnel=enabled, and it appears here.");
  }

  /** A table row without content. */
  line() {
    const line = { cells: {} };
    line.link = h("a", { "data-nav": true, tabindex: "-1" });
    line.host = h("span", { class: "host" });
    line.note = h("span", { class: "note" });
    line.tr = h("tr", null, columns.map(({ key, numeric }) => {
      const cell = h(key === "name" ? "th" : "td", { class: [`c-${key}`, numeric && "numeric"].filter(Boolean).join(" "), scope: key === "name" ? "row" : null });
      if (key === "name") cell.append(line.link, line.host);
      if (key === "note") cell.append(line.note);
      line.cells[key] = cell;
      return cell;
    }));
    return line;
  }

  fill(line, row) {
    if (line.row === row) {
      this.fillTimes(line);
      return;
    }
    if (line.row?.health !== row.health || line.row?.flags !== row.flags) {
      line.cells.health.replaceChildren(badge(row.health), row.flags ? h("span", { class: "flags" }, row.flags) : "");
    }
    if (line.row?.id !== row.id) line.cells.health.classList.remove("flash");
    line.row = row;
    setText(line.link, row.name);
    line.link.setAttribute("href", `cluster?namespace=${encodeURIComponent(row.namespace)}&name=${encodeURIComponent(row.name)}`);
    setText(line.host, row.hostname);
    line.host.title = row.hostname;
    setText(line.cells.namespace, row.namespace);
    setText(line.cells.mode, row.mode);
    setText(line.cells.connected, `${row.connected} / ${row.letIn}`);
    setText(line.cells.tunnels, row.tunnels ? `${row.tunnels} on ${row.gateways}` : "0");
    setText(line.cells.networks, row.networks ? `${row.networksOK} / ${row.networks}` : "–");
    setText(line.cells.rtt, millis(row.rtt) || "–");
    setText(line.note, row.note + (row.warnings > 1 ? ` (+${row.warnings - 1} more)` : ""));
    line.note.title = row.note;
    this.fillTimes(line);
  }

  fillTimes(line) {
    const { row, cells } = line;
    setText(cells.expires, relative(row.expires) || "–");
    cells.expires.title = row.expires ? `${row.expiresOf}: ${absolute(row.expires)}` : "";
    setText(cells.changed, relative(row.changed) || "–");
    cells.changed.title = absolute(row.changed);
  }

  drawPager(page, pages, from, total) {
    this.pager.hidden = pages < 2;
    const to = (n) => `./${formatQuery({ ...this.query, page: n })}`;
    const step = (n, text, allowed) => (allowed ? h("a", { href: to(n), "data-nav": true }, text) : h("span", { class: "off" }, text));
    this.pager.replaceChildren(
      step(1, "First", page > 1), step(page - 1, "Previous", page > 1),
      h("span", { "aria-current": "page" }, `${(from + 1).toLocaleString("en")}–${Math.min(from + perPage, total).toLocaleString("en")} of ${total.toLocaleString("en")}`),
      step(page + 1, "Next", page < pages), step(pages, "Last", page < pages));
  }

  /** Applies received changes. Visible rows are updated in place; the order follows when the table is not in use. */
  changed(pairs) {
    for (const [before, after] of pairs) {
      if (after && before && this.lines.has(after.id)) {
        const line = this.lines.get(after.id);
        this.fill(line, after);
        if (before.health !== after.health) flash(line.cells.health);
      }
      if (before?.health !== after?.health) this.changes.set((after || before).id, after);
    }
    this.stale = true;
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.settle(), 400);
    this.saying ||= setTimeout(() => this.say(), 1500);
  }

  settle() {
    if (!this.stale || !this.element.isConnected) return;
    const rest = this.used + calm - Date.now();
    if (rest > 0) { // the table is in use: no row may move away from the pointer
      this.settling = setTimeout(() => this.settle(), rest);
      return;
    }
    this.arrange();
  }

  /** Announces all changes in one sentence. */
  say() {
    this.saying = 0;
    const changes = [...this.changes];
    this.changes.clear();
    if (!changes.length || !this.element.isConnected) return;
    const [[id, row]] = changes;
    if (changes.length === 1) announce(row ? `${id} is now ${words[row.health]}${row.note ? `: ${row.note}` : ""}` : `${id} is gone`);
    else announce(`${changes.length} Clusters changed: ${healths.map((health) => [changes.filter(([, r]) => r?.health === health).length, words[health]]).filter(([n]) => n).map(([n, word]) => `${n} ${word}`).join(", ")}`);
  }

  /** Updates relative times. */
  tick() {
    for (const line of this.lines.values()) this.fillTimes(line);
  }

  /** Only one link of the table is in the tab order: the one that had the focus last. */
  rove(target) {
    const links = [...this.lines.values()].map((line) => line.link);
    const current = links.includes(target) ? target : links.find((link) => link.tabIndex === 0) || links[0];
    for (const link of links) if (link !== current) link.tabIndex = -1;
    if (current) current.tabIndex = 0;
  }

  move(event) {
    this.used = Date.now();
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const links = this.shown.map((row) => this.lines.get(row.id).link);
    const at = links.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, j: at + 1, k: at - 1, Home: 0, End: links.length - 1, PageDown: Math.min(at + 10, links.length - 1), PageUp: Math.max(at - 10, 0) }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    if (to < 0) this.search.focus();
    else links[to]?.focus();
  }
}

function flash(element) {
  element.classList.remove("flash");
  void element.offsetWidth; // restarts the animation
  element.classList.add("flash");
}
