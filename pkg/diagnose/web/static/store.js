// The fleet in memory: its rows, the filter and the order. Nothing here uses the document.

const rank = { broken: 0, unknown: 1, warning: 2, waiting: 3, ok: 4 };
export const healths = Object.keys(rank);
const names = new Intl.Collator("en", { numeric: true });

export const orders = {
  health: (a, b) => rank[a.health] - rank[b.health] || a.order - b.order,
  name: (a, b) => a.nameOrder - b.nameOrder,
  namespace: (a, b) => a.order - b.order,
  mode: (a, b) => compare(a.mode, b.mode) || a.order - b.order,
  connected: (a, b) => a.connected - b.connected || a.letIn - b.letIn || a.order - b.order,
  tunnels: (a, b) => a.tunnels - b.tunnels || a.order - b.order,
  networks: (a, b) => a.networks - b.networks || a.networksOK - b.networksOK || a.order - b.order,
  rtt: (a, b) => last(a.rtt) - last(b.rtt) || a.order - b.order,
  expires: (a, b) => last(a.expires) - last(b.expires) || a.order - b.order,
  changed: (a, b) => b.changed - a.changed || a.order - b.order, // the newest first
};

const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const last = (v) => v || Number.MAX_SAFE_INTEGER; // unknown values sort last

export class Store {
  constructor() {
    this.rows = new Map();
    this.columns = [];
    this.cursor = "";
    this.domain = "";
    this.sorted = true; // rows are numbered by their names
    this.order = null; // all rows in the last order, and its key; null: rows have changed since
  }

  get loaded() {
    return this.cursor !== "";
  }

  /** Replaces the whole fleet. */
  replace(document) {
    this.columns = document.columns;
    this.domain = document.domain;
    this.cursor = document.cursor;
    this.rows = new Map();
    for (const values of document.rows) this.put(values);
    this.sorted = false;
  }

  put(values) {
    this.order = null;
    const row = {};
    this.columns.forEach((column, i) => { row[column] = values[i]; });
    row.id = `${row.namespace}/${row.name}`;
    row.text = `${row.id} ${row.hostname} ${row.mode} ${row.note} ${row.flags}`.toLowerCase();
    const before = this.rows.get(row.id);
    if (before) {
      row.order = before.order;
      row.nameOrder = before.nameOrder;
    } else this.sorted = false;
    this.rows.set(row.id, row);
    return [before, row];
  }

  /** Applies changes; returns pairs of a row before and after, where undefined stands for none. */
  apply(delta) {
    const pairs = (delta.rows || []).map((values) => this.put(values));
    for (const [namespace, name] of delta.gone || []) {
      const id = `${namespace}/${name}`;
      if (this.rows.has(id)) pairs.push([this.rows.get(id), undefined]);
      this.rows.delete(id);
      this.order = null;
    }
    return pairs;
  }

  /** Numbers rows by their names once, so that other orders need no natural comparison of names. */
  number() {
    if (this.sorted) return;
    const all = [...this.rows.values()];
    all.sort((a, b) => names.compare(a.name, b.name) || names.compare(a.namespace, b.namespace));
    all.forEach((row, i) => { row.nameOrder = i; });
    const spaces = [...new Set(all.map((row) => row.namespace))].sort(names.compare);
    const place = new Map(spaces.map((space, i) => [space, i]));
    all.sort((a, b) => place.get(a.namespace) - place.get(b.namespace) || a.nameOrder - b.nameOrder);
    all.forEach((row, i) => { row.order = i; });
    this.sorted = true;
  }

  /** Returns all rows in an order. The result is cached, so that typing requires no sorting. */
  ordered(by) {
    if (this.order?.by !== by) {
      this.number();
      this.order = { by, rows: [...this.rows.values()].sort(orders[by] || orders.health) };
    }
    return this.order.rows;
  }

  /** Returns the rows of a query in its order, and the number of rows of each health, regardless of its health filter. */
  find(query) {
    const terms = query.q.toLowerCase().split(/\s+/).filter(Boolean);
    const space = query.namespace;
    const exact = space !== "" && this.namespaces().has(space);
    const counts = Object.fromEntries(healths.map((health) => [health, 0]));
    const rows = [];
    for (const row of this.ordered(query.sort)) {
      if (query.warnings && !row.warnings) continue;
      if (query.mode && row.mode !== query.mode) continue;
      if (space && (exact ? row.namespace !== space : !row.namespace.includes(space))) continue;
      if (!terms.every((term) => row.text.includes(term))) continue;
      counts[row.health]++;
      if (query.health.length === 0 || query.health.includes(row.health)) rows.push(row);
    }
    if (query.descending) rows.reverse();
    return { rows, counts };
  }

  namespaces() {
    return new Set([...this.rows.values()].map((row) => row.namespace));
  }

  modes() {
    return new Set([...this.rows.values()].map((row) => row.mode).filter(Boolean));
  }
}
