// Server-sent events that reconnect. A browser's EventSource does so after most failures, with Last-Event-ID. But it
// gives up after an error response, does not report its status, and does not detect a dead connection. This does.

import { serverTime } from "./time.js";

const silence = 45_000; // ms; the server sends something every 15 s
const hiddenFor = 60_000; // a tab that is hidden for this long closes its stream
const patience = 10_000; // ms for the request that finds out why there is no stream

export class Stream {
  /**
   * url(): the address to read now. events: a function for each kind.
   * state(name, reason): "live", "connecting", "lost", or "refused" with the reason.
   */
  constructor(url, events, state) {
    Object.assign(this, { url, events, state, attempt: 0, closed: false, id: "" });
    this.visibility = () => {
      clearTimeout(this.hiding);
      if (document.hidden) this.hiding = setTimeout(() => this.stop(), hiddenFor);
      else if (!this.source && !this.closed) this.open();
    };
    document.addEventListener("visibilitychange", this.visibility);
    this.open();
  }

  open() {
    this.stop();
    const source = new EventSource(this.url(this.id));
    this.source = source;
    this.watch();
    source.onopen = () => this.alive();
    source.onerror = () => {
      if (this.source !== source) return;
      this.state("connecting");
      if (source.readyState === EventSource.CLOSED) this.ask(source);
    };
    for (const [kind, handle] of Object.entries({ beat: (data) => serverTime(data.now), ...this.events })) {
      source.addEventListener(kind, (event) => {
        if (this.source !== source) return;
        if (event.lastEventId) this.id = event.lastEventId;
        this.alive();
        handle(JSON.parse(event.data));
      });
    }
  }

  alive() {
    this.attempt = 0;
    this.state("live");
    this.watch();
  }

  watch() {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.again(), silence);
  }

  /** Finds out why a stream was not opened, and retries when the server permits it. */
  async ask(source) {
    let reason = "";
    let seconds = 0;
    try {
      const response = await fetch(this.url(this.id), { credentials: "same-origin", signal: AbortSignal.timeout(patience) });
      if (response.ok) await response.body.cancel(); // there is a free slot now
      else {
        reason = (await response.text()).trim() || response.statusText || `HTTP status ${response.status}`;
        seconds = Number(response.headers.get("Retry-After")) || 0;
      }
    } catch {
      // There is no answer.
    }
    if (this.source === source) this.again(reason, seconds);
  }

  again(reason = "", seconds = 0) {
    this.stop();
    if (reason) this.state("refused", reason);
    else this.state(this.attempt > 2 ? "lost" : "connecting");
    const most = Math.min(30_000, 1000 * 2 ** this.attempt++);
    const wait = Math.max(most * (0.5 + Math.random() / 2), Math.min(seconds, 300) * 1000 * (1 + Math.random() / 2));
    this.retry = setTimeout(() => this.open(), wait);
  }

  stop() {
    clearTimeout(this.watchdog);
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }

  close() {
    this.closed = true;
    clearTimeout(this.hiding);
    document.removeEventListener("visibilitychange", this.visibility);
    this.stop();
  }
}
