// How the page gets its data: JSON by fetch, live messages by server-sent events, polling where those do not come through.

const POLL_MS = 3_000;
const RETRY_MS = [500, 1_000, 2_000, 5_000, 10_000];
const TIMEOUT_MS = 10_000;

export async function getJson(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(parameters).toString();
  const signals = [AbortSignal.timeout(TIMEOUT_MS)];
  if (signal) signals.push(signal);
  const response = await fetch(query ? `${path}?${query}` : path, {
    headers: {Accept: 'application/json'}, cache: 'no-store', signal: AbortSignal.any(signals),
  });
  if (!response.ok) {
    const error = new Error(`${path} answered ${response.status}`);
    error.status = response.status;
    throw error;
  }
  return response.json();
}

// One live source: an event stream that reconnects by itself with growing pauses, and, for as long as it is down, `poll` every few seconds.
// A hidden page gives its streams back: a browser has six connections to a server, and tabs that nobody looks at would hold them all.
// `url` is asked for anew at each connection, so that it can carry a resume token. `onState` gets 'live', 'polling', 'down' or 'suspended'.
// `silenceMs`: a stream that promises to speak that often is given up when it does not; 0 = it may be silent for as long as it likes.
export class LiveSource {
  constructor({url, events, onMessage, poll, onState, silenceMs = 0}) {
    Object.assign(this, {url, events, onMessage, poll, onState, silenceMs});
    this.closed = false;
    this.failures = 0;
    this.state = '';
    this.watchdog = undefined;
    this.abort = new AbortController();
    this.connect();
  }

  close() {
    this.closed = true;
    this.abort.abort();
    this.stream?.close();
    clearTimeout(this.retry);
    clearTimeout(this.polling);
    clearTimeout(this.watchdog);
  }

  suspend() {
    if (this.closed) return;
    this.stream?.close();
    this.stream = undefined;
    for (const timer of [this.retry, this.polling, this.watchdog]) clearTimeout(timer);
    this.polling = undefined;
    this.enter('suspended');
  }

  // The page was shown again, or the network came back: no need to sit out the pause.
  hurry() {
    if (this.closed || this.state === 'live') return;
    this.failures = 0;
    clearTimeout(this.retry);
    this.stream?.close();
    this.connect();
  }

  // The address has changed.
  renew() {
    if (this.closed || this.state === 'suspended') return;
    clearTimeout(this.retry);
    this.stream?.close();
    this.connect();
  }

  connect() {
    if (this.closed) return;
    if (this.state === 'suspended') this.state = '';
    const stream = new EventSource(this.url());
    this.stream = stream;
    const receive = (event) => {
      if (this.closed || stream !== this.stream) return;
      this.alive();
      let message;
      try {
        message = JSON.parse(event.data);
      } catch {
        return;  // not JSON: nothing to show, and no reason to drop the stream
      }
      this.onMessage(message);
    };
    for (const name of ['message', ...this.events]) stream.addEventListener(name, receive);
    stream.onopen = () => this.alive();
    stream.onerror = () => {
      if (stream === this.stream) this.fail();
    };
    this.watch();
  }

  alive() {
    this.failures = 0;
    clearTimeout(this.polling);
    this.polling = undefined;
    this.enter('live');
    this.watch();
  }

  // A half-open connection gives no error: silence for too long is one.
  watch() {
    clearTimeout(this.watchdog);
    if (this.silenceMs > 0) this.watchdog = setTimeout(() => this.fail(), this.silenceMs);
  }

  fail() {
    if (this.closed || this.state === 'suspended') return;
    this.stream.close();
    clearTimeout(this.watchdog);
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)]);
    if (this.polling === undefined) this.pollOnce();
  }

  async pollOnce() {
    this.polling = 0;  // in flight
    let reached = true;
    try {
      await this.poll(this.abort.signal);
    } catch {
      reached = false;
    }
    if (this.closed || this.polling === undefined) return;  // live again or suspended meanwhile
    this.enter(reached ? 'polling' : 'down');
    this.polling = setTimeout(() => this.pollOnce(), POLL_MS);
  }

  enter(state) {
    if (state === this.state) return;
    this.state = state;
    this.onState(state);
  }
}
