// The page of one Cluster: the hops on the path to it, and the content of its objects.

import { announce, badge, h, icon, prose, setText, words } from "./dom.js";
import { absolute, millis, parse, relative } from "./time.js";

const edgeStates = { connected: "ok", away: "warning", expired: "warning", revoked: "skipped", unknown: "unknown" };

export class ClusterView {
  constructor(namespace, name) {
    this.namespace = namespace;
    this.name = name;
    this.build();
  }

  build() {
    this.back = h("a", { class: "back", href: "./", "data-nav": true }, icon("back"), "Fleet");
    this.state = h("div", { class: "verdict", role: "status" }, h("p", null, "Reading its objects…"));
    this.hops = h("ol", { class: "hops", "aria-busy": "true" }, h("li", { class: "hop waiting" }, h("p", null, "Checking each hop. This takes a few seconds.")));
    this.checked = h("p", { class: "fine" });
    this.facts = h("dl", { class: "facts" });
    this.notes = h("ul", { class: "notes" });
    this.edges = h("tbody");
    this.routes = h("tbody");
    this.networks = h("tbody");
    this.egress = h("tbody");
    this.conditions = h("tbody");
    const columns = (...titles) => h("thead", null, h("tr", null, titles.map((t) => h("th", { scope: "col" }, t))));
    this.notesSection = section("Warnings", "notes", this.notes);
    this.networksSection = section("Networks", "networks", scroller("Networks", h("table", { class: "small" }, h("caption", { class: "unseen" }, "Networks"), columns("State", "Network", "CIDRs", "Edges", "Tunnels", "Message"), this.networks)));
    this.egressSection = section("Apiservers", "egress", scroller("Apiservers", h("table", { class: "small" }, h("caption", { class: "unseen" }, "Envoys beside the apiservers, which reach the networks"), columns("State", "Host", "Node", "Certificate", "Last seen", "Version"), this.egress)));
    this.routesSection = section("Gateways", "routes", scroller("Gateways", h("table", { class: "small" }, h("caption", { class: "unseen" }, "Gateways that clients and edges use"), columns("From", "Zone", "To"), this.routes)));
    this.networksSection.hidden = this.egressSection.hidden = this.routesSection.hidden = true;
    this.element = h("section", { class: "cluster-view", "aria-labelledby": "cluster-title" },
      this.back,
      h("div", { class: "heading" }, h("h1", { id: "cluster-title", tabindex: "-1" }, this.name), h("p", { class: "count" }, `in namespace ${this.namespace}`)),
      this.state,
      h("div", { class: "columns" },
        h("div", null,
          section("Hops", "hops", this.hops, this.checked)),
        h("div", null,
          section("Facts", "facts", this.facts), this.notesSection)),
      this.networksSection, this.egressSection,
      section("Edges", "edges", scroller("Edges", h("table", { class: "small" }, h("caption", { class: "unseen" }, "Edges"), columns("State", "Network", "Host", "Node", "Tunnels", "Round trip", "Apiserver", "Certificate", "Last seen", "Version"), this.edges))),
      this.routesSection,
      section("Conditions", "conditions", scroller("Conditions", h("table", { class: "small" }, h("caption", { class: "unseen" }, "Conditions"), columns("Condition", "Status", "Reason", "Since", "Message"), this.conditions))));
  }

  /** Shows the content of the objects. */
  objects(details) {
    const row = details.row;
    if (details.domain) setText(document.getElementById("domain"), details.domain);
    if (!row) {
      this.state.replaceChildren(badge("unknown", details.found ? "No tunnel" : "Not found"), h("p", null, details.found ? "This Cluster has not opted in: label it fairlead.dev/tunnel=enabled." : "There is no Cluster and no Tunnel of this name."));
    } else {
      const first = row.warnings?.[0];
      this.verdict(row.health, first ? first.text : "Clients reach its apiserver.");
    }
    this.drawFacts(row || {}, details);
    const warnings = row?.warnings || [];
    this.notesSection.hidden = warnings.length < 2; // the first is shown above, beside the state
    this.notes.replaceChildren(...warnings.map((w) => h("li", null, badge(w.weight), h("span", null, prose(w.text), w.since ? [" ", time(parse(w.since), "fine")] : ""))));
    this.drawNetworks(row?.networks || [], row?.egress);
    this.drawRoutes([row, ...(row?.networks || []), row?.egress].filter(Boolean));
    this.drawEdges([row || {}, ...(row?.networks || [])].flatMap((of) => (of.edges || []).map((e) => ({ ...e, network: of.network }))));
    this.drawConditions(row?.conditions || []);
  }

  verdict(health, text) {
    const before = this.health;
    this.health = health;
    this.state.className = `verdict ${health}`;
    this.state.replaceChildren(badge(health), h("p", null, prose(text)));
    if (before && before !== health) announce(`${this.name} is now ${words[health]}: ${text}`);
  }

  drawFacts(row, details) {
    const tunnels = (row.gateways || []).map((g) => `${g.name}: ${g.tunnels}${g.workersWithout ? `, ${g.workersWithout} workers without` : ""}${g.rttMillis ? `, ${millis(g.rttMillis)}` : ""}`);
    const facts = [
      ["Mode", row.mode], ["Hostname", code(row.hostname)],
      ["Extra names", (row.names || []).filter((n) => n !== row.hostname).map(code)],
      ["Kubeconfig server", code(row.server)], ["Proxy", code(row.proxyURL)], ["Apiserver", code(details.endpoint)],
      ["Edges", row.edgesLetIn === undefined ? "" : `${row.edgesConnected} of ${row.edgesLetIn} connected`],
      ["Tunnels", tunnels.map((t) => h("div", null, t))],
      ["Round trip", millis(row.rttMillis)],
      ["Certificates expire", (row.expiries || []).map((e) => h("div", null, time(parse(e.notAfter)), h("span", { class: "fine" }, ` ${e.of}`)))],
      ["Last change", row.lastChange ? time(parse(row.lastChange)) : ""],
      ["Created", row.created ? time(parse(row.created)) : ""],
      ["Flags", [row.paused && "paused", row.deleting && "being deleted"].filter(Boolean).join(", ")],
    ];
    this.facts.replaceChildren(...facts.filter(([, value]) => value && (!Array.isArray(value) || value.length)).flatMap(([term, value]) => [h("dt", null, term), h("dd", null, value)]));
  }

  drawNetworks(networks, egress) {
    this.networksSection.hidden = this.egressSection.hidden = !networks.length;
    const none = (columns, text) => h("tr", null, h("td", { colspan: columns, class: "fine" }, text));
    this.networks.replaceChildren(...networks.map((n) => h("tr", null,
      h("td", null, badge(n.health)),
      h("th", { scope: "row" }, n.network),
      h("td", { class: "mono" }, (n.cidrs || []).map((cidr) => h("div", null, cidr))),
      h("td", { class: "numeric" }, `${n.edgesConnected} / ${n.edgesLetIn}`),
      h("td", null, (n.gateways || []).map((g) => h("div", null, `${g.name}: ${g.tunnels}`)), n.gateways?.length ? "" : "none"),
      h("td", { class: "message" }, (n.warnings || []).map((w) => h("div", null, prose(w.text)))))));
    const nodes = egress?.edges || [];
    this.egress.replaceChildren(...(nodes.length ? nodes.map((e) => h("tr", null,
      h("td", null, badge(edgeStates[e.state] || "unknown", e.state)),
      h("td", null, e.host || "–"),
      h("th", { scope: "row", class: "mono" }, e.node),
      h("td", null, time(parse(e.notAfter))),
      h("td", null, e.lastSeen ? time(parse(e.lastSeen)) : "–"),
      h("td", null, e.version || "–"))) : [none("6", prose(egress?.warnings?.[0]?.text || "No apiserver has enrolled."))]));
  }

  drawEdges(edges) {
    this.edges.replaceChildren(...(edges.length ? edges.map((e) => h("tr", null,
      h("td", null, badge(edgeStates[e.state] || "unknown", e.state)),
      h("td", null, e.network || "–"),
      h("td", null, e.host || "–"),
      h("th", { scope: "row", class: "mono" }, e.node),
      h("td", null, (e.gateways || []).map((g) => h("div", null, `${g.name}: ${g.tunnels}`)), e.gateways?.length ? "" : "none"),
      h("td", { class: "numeric" }, (e.gateways || []).map((g) => h("div", null, millis(g.rttMillis) || "–")), e.gateways?.length ? "" : "–"),
      h("td", null, e.apiServer ? (e.apiServer.healthy ? "healthy" : "unhealthy") : "–", e.apiServer?.message ? h("div", { class: "fine" }, e.apiServer.message) : "", e.lastError ? h("div", { class: "fine" }, e.lastError) : ""),
      h("td", null, time(parse(e.notAfter))),
      h("td", null, e.lastSeen ? time(parse(e.lastSeen)) : "–"),
      h("td", null, e.version || "–"))) : [h("tr", null, h("td", { colspan: "10", class: "fine" }, "No edge has enrolled."))]));
  }

  /** Shows where gateways lead clients, and which gateways edges use, the preferred ones first. */
  drawRoutes(rows) {
    const of = (w) => {
      const about = [w.zone && `zone ${w.zone}`, millis(w.rttMillis)].filter(Boolean).join(", ");
      return about ? `${w.to} (${about})` : w.to;
    };
    const line = (name, zone, to) => h("tr", null, h("th", { scope: "row", class: "mono" }, name), h("td", null, zone || "–"), h("td", null, to));
    const lines = rows.flatMap((row) => [
      ...(row.routes || []).map((r) => line(row.network ? `${r.gateway}, ${row.network}` : r.gateway, r.zone, r.to ? r.to.map((w) => h("div", null, of(w))) : "its own tunnels")),
      ...(row.edges || []).filter((e) => e.ways).map((e) => line(e.node, "", e.ways.map((w) => h("div", null, of(w))))),
    ]);
    this.routesSection.hidden = !lines.length;
    this.routes.replaceChildren(...lines);
  }

  drawConditions(conditions) {
    this.conditions.replaceChildren(...(conditions.length ? conditions.map((c) => h("tr", null,
      h("th", { scope: "row" }, c.type),
      h("td", null, badge({ True: "ok", False: "broken" }[c.status] || "unknown", c.status)),
      h("td", null, c.reason),
      h("td", null, c.lastTransitionTime ? time(parse(c.lastTransitionTime)) : "–"),
      h("td", { class: "message" }, c.message || ""))) : [h("tr", null, h("td", { colspan: "5", class: "fine" }, "None yet."))]));
  }

  /** The server has no slot for this page now: received content stays, and the placeholders of missing content change. */
  refused() {
    if (this.health) return;
    this.state.replaceChildren(badge("waiting"), h("p", null, "The objects of this Cluster are not read yet."));
    this.hops.replaceChildren();
  }

  /** Shows the results of a check of the hops. */
  checkedHops(report) {
    this.hops.setAttribute("aria-busy", "false");
    this.hops.replaceChildren(...report.hops.map((hop) => {
      const first = hop.id === report.first;
      return h("li", { class: `hop ${hop.status}${first ? " first" : ""}`, "data-id": hop.id },
        h("div", { class: "line" }, h("span", { class: "title" }, hop.title), badge(hop.status, hop.status === "unknown" ? "Not tested from here" : null), first ? h("span", { class: "decides" }, report.status === "broken" ? "First broken hop" : "Decides") : ""),
        hop.detail ? h("p", { class: "detail" }, prose(hop.detail)) : "",
        hop.cause ? h("p", { class: "cause" }, h("b", null, "Likely cause: "), prose(hop.cause)) : "",
        hop.cure ? h("p", { class: "cure" }, h("b", null, hop.status === "unknown" ? "From where: " : "Cure: "), prose(hop.cure)) : "");
    }));
    const unknown = report.hops.filter((hop) => hop.status === "unknown").length;
    this.checked.replaceChildren("Checked from an xds-server ", time(parse(report.at)), `, in ${report.seconds.toFixed(1)} s.`,
      ...(unknown ? [` To test the rest, run `, h("code", null, `fairlead check -n ${this.namespace} ${this.name}`), "."] : []));
    if (this.first !== undefined && this.first !== report.first) announce(report.first ? `First unhealthy hop: ${report.hops.find((hop) => hop.id === report.first)?.title}` : "All hops are healthy");
    this.first = report.first || "";
  }

  tick() {
    for (const element of this.element.querySelectorAll("time[data-unix]")) setText(element, relative(Number(element.dataset.unix)));
  }
}

function section(title, id, ...content) {
  return h("section", { class: `part part-${id}`, "aria-labelledby": `part-${id}` }, h("h2", { id: `part-${id}` }, title), ...content);
}

function scroller(label, table) {
  return h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": `${label}, as a table` }, table);
}

function time(unix, kind) {
  return unix ? h("time", { datetime: new Date(unix * 1000).toISOString(), title: absolute(unix), "data-unix": String(unix), class: kind }, relative(unix)) : "–";
}

function code(text) {
  return text ? h("code", null, text) : "";
}
