// Server-sent events that come back by themselves. A browser's EventSource does so after most failures, with Last-Event-ID; it
// gives up when a server answers with an error, and does not see a way that is dead. Both are seen to here.

import { serverTime } from "./time.js";

const silence = 45_000; // ms; the server sends something every 15 s
const hiddenFor = 60_000; // a tab that nobody looks at for so long costs the server nothing

export class Stream {
  /**
   * url(): where to read from now. events: a function for each kind. state(name): "live", "connecting" or "lost".
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
      if (source.readyState === EventSource.CLOSED) this.again();
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

  again() {
    this.stop();
    this.state(this.attempt > 2 ? "lost" : "connecting");
    const most = Math.min(30_000, 1000 * 2 ** this.attempt++);
    this.retry = setTimeout(() => this.open(), most * (0.5 + Math.random() / 2));
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
