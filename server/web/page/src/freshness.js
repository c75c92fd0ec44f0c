// Whether what is on the screen may still be believed. No clock of the server is compared with one of the browser: a verdict says how long it
// holds, and the time since it arrived is measured here. The wall clock counts too, because the other stops while a laptop sleeps.
import {timeMs} from './format.js';

const DEFAULT_TERM_MS = 60_000;  // of a verdict that names no end

export class Arrival {
  constructor(now = Date.now(), ticks = performance.now()) {
    this.wall = now;
    this.ticks = ticks;
  }

  // Milliseconds since then, by whichever clock saw more pass.
  age(now = Date.now(), ticks = performance.now()) {
    return Math.max(now - this.wall, ticks - this.ticks, 0);
  }
}

export function termMs(verdict) {
  const from = timeMs(verdict.evaluatedAt);
  const until = timeMs(verdict.validUntil);
  return from === null || until === null ? DEFAULT_TERM_MS : Math.max(0, until - from);
}

// {fresh, why}: `why` is a sentence for a person where it is not fresh.
export function judgeFreshness(verdict, arrival, connected) {
  if (!verdict) return {fresh: false, why: 'no verdict has arrived yet'};
  if (!connected) return {fresh: false, why: 'lossgauged cannot be reached'};
  if (arrival.age() > termMs(verdict)) return {fresh: false, why: 'its last verdict has expired'};
  return {fresh: true, why: ''};
}
