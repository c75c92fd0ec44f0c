// A run that only the history knows, as it was left. Nothing of it is live: what its verdict was and how it ended is told, and no age ticks.
import {getJson} from './api.js';
import {SIGNALS} from './curves.js';
import {byId, setText} from './dom.js';
import {numbered} from './incidents.js';
import {loadSteps} from './step_history.js';
import {StepStore} from './step_store.js';

const RETRY_MS = 3_000;
const EVENT_PAGES = 20;  // of a thousand each

export class PastRunView {
  constructor(run, app) {
    Object.assign(this, {run, app, isPast: true, hint: `Looking for “${run}” in the history.`, store: new StepStore(), incidents: [], loading: true});
    this.abort = new AbortController();
    this.load();
  }

  close() {
    this.abort.abort();
    clearTimeout(this.retry);
  }

  suspend() {}

  hurry() {}

  async load() {
    const {run} = this;
    const {signal} = this.abort;
    try {
      const [{verdicts = []}, {incidents = []}, events] = await Promise.all([
        getJson('/api/v1/verdicts', {run}, signal), getJson('/api/v1/incidents', {run, page_size: 200}, signal), readEvents(run, signal)]);
      this.incidents = numbered(incidents).map((incident) => ({...incident, past: true}));
      this.story = storyOf(verdicts, events);
      this.hint = '';
      this.draw();
      const receive = (answer) => {
        const added = !signal.aborted && this.store.add(answer.steps);
        if (added) this.draw();
        return added;
      };
      await loadSteps(run, this.store, receive, signal, {include_thinned: true});
      this.loading = false;
      this.draw();
    } catch (error) {
      if (signal.aborted) return;
      if (this.hint !== '') this.hint = error.status === 404 ? `There is no run named “${run}”, neither live nor in the history.` : 'The history cannot be read just now.';
      this.retry = setTimeout(() => this.load(), RETRY_MS);
    }
    this.app.tick();
  }

  draw() {
    if (this.abort.signal.aborted) return;
    const last = this.store.last();
    const {curves, readouts, incidentList} = this.app;
    curves.update(this.store.table(last?.attempt ?? '', SIGNALS.map(({field}) => field)), this.incidents, this.loading);
    readouts.update(last);
    incidentList.update(this.incidents);
    this.app.tick();
  }

  show() {
    if (this.hint !== '') return;
    byId('run').classList.remove('not-fresh');
    const attempts = [...new Set([...this.story.attempts, ...this.store.attempts()])];
    const state = {run: this.run, ...this.story, attempts, lastStep: this.store.last(), lastWrite: this.app.pastRuns.lastWriteOf(this.run)};
    document.title = `${this.story.ended ? 'ended' : 'past'} · ${this.run} · lossgauge`;
    this.app.pastVerdict.update(state);
    if (!this.announced) setText(byId('announcement'), `${this.run}: a run of the past${this.story.judged ? `, last verdict ${this.story.judged.action}` : ''}.`);
    this.announced = true;
  }
}

// All events, oldest first; null of a run with very many, whose newest lie beyond what is read for a page.
async function readEvents(run, signal) {
  const all = [];
  let token = '';
  for (let page = 0; page < EVENT_PAGES; page++) {
    const {events = [], nextPageToken = ''} = await getJson('/api/v1/events', {run, page_size: 1000, ...(token && {page_token: token})}, signal);
    all.push(...events);
    token = nextPageToken;
    if (token === '') return all;
  }
  return null;
}

// `ended`: the verdict that says so, of a clean end; `judged`: what was last thought of the run before. `verdicts`: newest first.
export function storyOf(verdicts, events) {
  const isEnd = (verdict) => (verdict.reasonCodes ?? []).includes('ended');
  const ended = verdicts[0] && isEnd(verdicts[0]) ? verdicts[0] : null;
  const newest = (kind) => events?.findLast((event) => event.kind === kind);
  const ends = (events ?? []).filter((event) => event.kind === 'end' && (event.attempt ?? '') === (ended?.attempt ?? ''));
  return {
    ended, judged: verdicts.find((verdict) => !isEnd(verdict)) ?? null,
    said: ended ? [...new Set(ends.map((event) => event.text).filter((text) => text))] : [],
    checkpoint: newest('checkpoint'), evaluation: newest('evaluation'),
    attempts: [...new Set([...(events ?? []), ...[...verdicts].reverse()].map((one) => one.attempt ?? '').filter((attempt) => attempt !== ''))],
  };
}
