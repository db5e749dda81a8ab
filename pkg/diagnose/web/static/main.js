// Maps addresses to pages, and keeps the pages up to date.

import { ClusterView } from "./cluster.js";
import { announce, h, setText } from "./dom.js";
import { FleetView, formatQuery, parseQuery } from "./fleet.js";
import { Store } from "./store.js";
import { Stream } from "./stream.js";
import { serverTime } from "./time.js";

const store = new Store();
const main = document.getElementById("main");
const connection = document.getElementById("connection");
const refusal = document.getElementById("refusal");
const fleet = new FleetView(store, (query, push) => {
  const url = `./${formatQuery(query)}`;
  if (push) history.pushState(null, "", url);
  else history.replaceState(null, "", url);
  fleet.show(query);
  if (push) fleet.scroller.scrollTo?.({ top: 0 });
});
let stream = null;
let cluster = null;
let scrolled = 0;
let fleetURL = "./";

const objectName = /^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/;
const states = { live: "Live", connecting: "Connecting", lost: "No connection, retrying", refused: "Rejected, retrying" };

/** Shows the state of the connection to the server. The reason of a rejection stays visible while the page retries. */
function connected(state, reason) {
  if (state === "refused") setText(refusal, `The xds-server does not serve this page now: ${reason}. This page retries automatically.`);
  else if (state !== "connecting") refusal.replaceChildren();
  else if (refusal.textContent) return;
  if (state === "refused") cluster?.refused();
  if (connection.dataset.state === state) return;
  connection.dataset.state = state;
  setText(connection, states[state]);
}

/** Reads the whole fleet, retrying until it succeeds, and then follows changes. */
async function follow() {
  stream?.close();
  stream = null;
  for (let attempt = 0; !cluster; attempt++) {
    connected(attempt > 2 ? "lost" : "connecting");
    try {
      const response = await fetch("api/fleet", { credentials: "same-origin" });
      if (response.ok) {
        const all = await response.json();
        if (cluster) return;
        serverTime(all.now);
        store.replace(all);
        setText(document.getElementById("domain"), all.domain);
        fleet.loaded();
        performance.clearMarks("fleet-loaded");
        performance.mark("fleet-loaded");
        break;
      }
      setText(fleet.count, `The fleet cannot be read: ${(await response.text()).trim()}`);
    } catch {
      setText(fleet.count, "The xds-server does not answer.");
    }
    await new Promise((done) => { setTimeout(done, Math.min(15_000, 1000 * 2 ** attempt) * (0.5 + Math.random() / 2)); });
  }
  if (cluster) return;
  resume();
}

function resume() {
  refusal.replaceChildren();
  stream?.close();
  stream = new Stream((id) => `api/fleet/events?since=${encodeURIComponent(id || store.cursor)}`, {
    rows: (delta) => {
      store.cursor = stream.id;
      fleet.changed(store.apply(delta));
    },
    reset: () => follow(), // the server was restarted or replaced, or this page was disconnected for too long
  }, connected);
}

function openCluster(namespace, name) {
  refusal.replaceChildren();
  stream?.close();
  cluster = new ClusterView(namespace, name);
  const mine = cluster;
  const query = `namespace=${encodeURIComponent(namespace)}&name=${encodeURIComponent(name)}`;
  cluster.back.setAttribute("href", fleetURL);
  stream = null;
  document.title = `${name} – Fairlead`;
  main.replaceChildren(cluster.element);
  if (!objectName.test(namespace) || !objectName.test(name)) {
    cluster.objects({ found: false }); // the server rejects such a name
    cluster.hops.replaceChildren();
    return;
  }
  stream = new Stream(() => `api/cluster/events?${query}`, {
    cluster: (details) => mine.objects(details),
    hops: (report) => mine.checkedHops(report),
  }, connected);
}

/** Shows the page of the current address. */
function route(byUser) {
  const url = new URL(location.href);
  const page = url.pathname.split("/").pop();
  if (page === "cluster" && url.searchParams.get("name")) {
    if (fleet.element.isConnected) scrolled = scrollY;
    openCluster(url.searchParams.get("namespace") || "", url.searchParams.get("name"));
    scrollTo(0, 0);
    if (byUser) document.getElementById("cluster-title").focus();
    return;
  }
  const from = cluster;
  cluster = null;
  document.title = "Fleet – Fairlead";
  fleetURL = `./${url.search}`;
  if (!fleet.element.isConnected) main.replaceChildren(fleet.element);
  fleet.show(parseQuery(url.search));
  if (from || !stream) {
    if (store.loaded) resume();
    else follow();
  }
  if (from && byUser) {
    scrollTo(0, scrolled);
    const line = fleet.lines.get(`${from.namespace}/${from.name}`);
    (line?.link || document.getElementById("fleet-title")).focus({ preventScroll: true });
  }
}

addEventListener("popstate", () => route(true));
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-nav]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  if (fleet.element.isConnected) fleetURL = `./${location.search}`;
  const pages = link.closest(".pager");
  history.pushState(null, "", link.getAttribute("href"));
  route(true);
  if (pages) {
    scrollTo(0, 0);
    document.getElementById("fleet-title").focus({ preventScroll: true });
    announce(fleet.pager.querySelector("[aria-current]").textContent);
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.altKey || event.ctrlKey || event.metaKey || event.target.closest?.("input, select, textarea")) return;
  if (!fleet.element.isConnected) return;
  event.preventDefault();
  fleet.search.focus();
  fleet.search.select();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address does not change
  main.focus();
});
setInterval(() => (cluster || fleet).tick(), 30_000);
if (!("EventSource" in window)) main.append(h("p", null, "This browser does not support server-sent events."));
route(false);
