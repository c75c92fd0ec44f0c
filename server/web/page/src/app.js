// The status page: keeps the list of runs and the chosen run up to date and never shows old data as if it were new.
import {LiveSource, getJson} from './api.js';
import {Curves, SIGNALS} from './curves.js';
import {ComparisonView, hashOfPair, pairOfHash} from './comparison.js';
import {byId, element, setText} from './dom.js';
import {actionOf, span, timeMs} from './format.js';
import {Arrival, judgeFreshness} from './freshness.js';
import {IncidentList, numbered} from './incidents.js';
import {PastRuns} from './past_list.js';
import {PastRunView} from './past_run.js';
import {PastVerdict} from './past_verdict.js';
import {RankGrid} from './rank_grid.js';
import {RankTable} from './ranks.js';
import {Readouts} from './readouts.js';
import {RunList, hashOf, runOfHash, worstFirst} from './run_list.js';
import {loadSteps} from './step_history.js';
import {StepStore} from './step_store.js';
import {VerdictView} from './verdict_view.js';

const RUNS_MS = 3_000;
const DETAILS_MS = 3_000;
const TICK_MS = 1_000;
const DRAW_MS = 200;  // at most five drawings a second, however fast the steps come
const HISTORY_STEPS = 2000;
const BAND_RANKS = 16;  // more would make each step's message larger than the rest of it
const BAND_STEPS = 1000;
const POLLED_STEPS = 500;  // once the history is there
const RUNS_STALE_MS = 15_000;
const VERDICT_SILENCE_MS = 45_000;  // the server speaks at least every 30 s

class App {
  constructor() {
    this.runs = [];
    this.runsArrival = null;
    this.reached = null;  // whether the last request for the runs was answered; null = none finished yet
    this.view = null;  // of the chosen run
    this.comparison = null;  // of two, instead
    this.curves = new Curves();
    this.verdictView = new VerdictView();
    this.pastVerdict = new PastVerdict(this.verdictView);
    this.readouts = new Readouts();
    this.rankTable = new RankTable();
    this.rankGrid = new RankGrid();
    this.incidentList = new IncidentList((first, last) => {
      this.curves.showSpan(first, last);
      byId('curves-title').scrollIntoView({block: 'nearest'});
    }, (incident) => getJson('/api/v1/explain', {run: incident.run ?? this.view?.run ?? '', incident: incident.id}, this.view?.abort.signal));
    this.runList = new RunList((run) => this.show(run));
    this.pastRuns = new PastRuns((run) => this.show(run), () => this.tick());
    addEventListener('hashchange', () => this.follow(location.hash));
    byId('compare-choice').addEventListener('change', (event) => {
      if (this.view && event.target.value !== '') location.hash = hashOfPair(this.view.run, event.target.value.slice(1));
    });
    addEventListener('online', () => this.hurry());
    // Not by its address: that of the page names the run.
    document.querySelector('.skip').addEventListener('click', (event) => {
      event.preventDefault();
      byId('main').focus();
    });
    document.addEventListener('visibilitychange', () => (document.hidden ? this.suspend() : this.hurry()));
    setInterval(() => this.tick(), TICK_MS);
    this.follow(location.hash);
    this.refreshRuns();
  }

  follow(hash) {
    const pair = pairOfHash(hash);
    this.comparison?.close();
    this.comparison = null;
    if (pair) this.choose(null);
    if (pair) this.comparison = new ComparisonView(...pair, (run) => this.isLive(run));
    else this.choose(runOfHash(hash));
    this.tick();
  }

  suspend() {
    this.view?.suspend();
  }

  hurry() {
    if (document.hidden) return;
    this.view?.hurry();
    this.tick();
  }

  async refreshRuns() {
    try {
      const answer = await getJson('/api/v1/runs');
      const before = this.runs;
      this.runs = answer.runs ?? [];
      if (before.some((run) => !this.isLive(run.run ?? ''))) this.pastRuns.refresh();
      const {isPast, run} = this.view ?? {};
      if (isPast && this.isLive(run)) this.enter(() => new RunView(run, this));
      this.runsArrival = new Arrival();
      this.reached = true;
      setText(byId('instance'), answer.instance ? `instance ${answer.instance}` : '');
    } catch {
      this.reached = false;
    }
    setTimeout(() => this.refreshRuns(), RUNS_MS);
    if (!this.view && !this.comparison && this.runs.length > 0 && runOfHash(location.hash) === null) this.show(worstFirst(this.runs)[0].run ?? '');
    else this.tick();
  }

  show(run) {
    history.replaceState(null, '', hashOf(run));
    this.follow(hashOf(run));
  }

  isLive(name) {
    return this.runs.some((run) => (run.run ?? '') === name);
  }

  // Which runs there are to compare the shown one with. "=" before each name: a run may have the empty one.
  offerComparisons() {
    const others = (runs) => (this.view === null ? [] : runs.filter((run) => run !== this.view.run));
    const live = others(this.runs.map((run) => run.run ?? '')).sort();
    const past = others(this.pastRuns.names());
    byId('compare-with').hidden = live.length + past.length === 0;
    const offered = JSON.stringify([live, past]);
    if (this.offered === offered || document.activeElement === byId('compare-choice')) return;
    this.offered = offered;
    const options = (runs) => runs.map((run) => element('option', {value: `=${run}`}, run || '(no name)'));
    byId('compare-choice').replaceChildren(element('option', {value: ''}, 'another run'), ...options(live),
      ...(past.length > 0 ? [element('optgroup', {label: 'Earlier'}, ...options(past))] : []));
  }

  choose(run) {
    if (this.view?.run === run || (run === null && this.view === null)) return;
    this.enter(run === null ? () => null : () => (!this.isLive(run) && this.pastRuns.has(run) ? new PastRunView(run, this) : new RunView(run, this)));
  }

  enter(makeView) {
    this.view?.close();
    this.view = null;
    this.curves.clear();
    this.verdictView.clear();
    this.view = makeView();
    byId('run').classList.toggle('past-run', this.view?.isPast ?? false);
    this.tick();
  }

  // lossgauged does not know the run any more, or never did: the history may.
  seekInHistory(view) {
    if (this.view !== view) return;
    this.pastRuns.refresh();
    this.enter(() => new PastRunView(view.run, this));
  }

  // Everything that depends on the time of day.
  tick() {
    const believed = this.reached === true && this.runsArrival !== null && this.runsArrival.age() < RUNS_STALE_MS;
    this.runList.update(this.runs, this.view?.run, believed);
    this.pastRuns.update(this.runsArrival === null ? null : this.runs.map((run) => run.run ?? ''), this.view?.run);
    this.showConnection(believed);
    byId('run').hidden = this.view === null || this.view.hint !== '';
    const hint = byId('no-run');
    hint.hidden = this.comparison !== null || !byId('run').hidden;
    if (!hint.hidden) {
      setText(hint, this.reached === false ? 'lossgauged cannot be reached.' : this.view ? this.view.hint : this.runs.length > 0 ? 'Choose a run.'
        : this.pastRuns.names().length > 0 ? 'No run is live. Choose an earlier one.' : 'No run yet.');
    }
    this.offerComparisons();
    document.title = this.comparison ? `${this.comparison.a} against ${this.comparison.b} · lossgauge` : 'lossgauge';
    this.view?.show(believed);
  }

  showConnection(believed) {
    const polling = this.view?.verdicts?.state === 'polling';
    const silence = Math.floor((this.runsArrival?.age() ?? 0) / 10_000) * 10;  // in tens: a screen reader should not hear each second
    const [state, text] = this.reached === null ? ['waiting', 'Connecting']
      : !believed ? ['down', silence > 0 ? `Disconnected for ${span(silence)}` : 'Disconnected']
        : !polling ? ['live', 'Live'] : ['polling', 'Polling: no live stream'];
    const node = byId('connection');
    node.className = `connection connection-${state}`;
    setText(node, text);
  }
}

class RunView {
  constructor(run, app) {
    Object.assign(this, {run, app, verdict: null, verdictArrival: null, details: null, detailsArrival: null, incidents: [], hint: '', hasBand: false,
      loading: true});
    this.store = new StepStore();
    this.abort = new AbortController();
    const query = (parameters) => new URLSearchParams({run, ...parameters}).toString();
    this.verdicts = new LiveSource({
      url: () => `/api/v1/verdict/watch?${query({})}`,
      events: ['verdict'],
      silenceMs: VERDICT_SILENCE_MS,
      onMessage: (verdict) => this.receiveVerdict(verdict),
      poll: async (signal) => this.receiveVerdict(await getJson('/api/v1/verdict', {run}, signal)),
      onState: () => app.tick(),
    });
    this.steps = new LiveSource({
      url: () => `/api/v1/steps/watch?${query({...(this.store.lastSequence > 0 ? {after_sequence: this.store.lastSequence} : {}), ...this.ranksToo()})}`,
      events: ['step', 'steps'],
      onMessage: (message) => this.receiveSteps(message),
      poll: async (signal) => this.receiveSteps(await getJson('/api/v1/steps',
        {run, tail: this.store.lastSequence > 0 ? POLLED_STEPS : HISTORY_STEPS, ...this.ranksToo()}, signal)),
      onState: () => {},
    });
    if (document.hidden) this.suspend();
    this.loadHistory();
    this.refreshDetails();
  }

  suspend() {
    this.verdicts.suspend();
    this.steps.suspend();
  }

  hurry() {
    this.verdicts.hurry();
    this.steps.hurry();
  }

  close() {
    this.abort.abort();
    this.verdicts.close();
    this.steps.close();
    clearTimeout(this.refreshing);
    clearTimeout(this.drawing);
  }

  get closed() {
    return this.abort.signal.aborted;
  }

  async loadHistory() {
    this.loading = true;
    try {
      await loadSteps(this.run, this.store, (answer) => this.receiveSteps(answer), this.abort.signal);
      this.loading = false;
      this.redraw();
    } catch {
      if (!this.closed) setTimeout(() => this.closed || this.loadHistory(), DETAILS_MS);
    }
  }

  ranksToo() {
    return this.hasBand ? {include_ranks: true} : {};
  }

  // A band over the ranks, where there are few enough.
  async loadBand(details) {
    const ranks = (details.producers ?? []).length;
    if (this.hasBand || ranks < 2 || ranks > BAND_RANKS) return;
    this.hasBand = true;
    this.steps.renew();
    try {
      this.receiveSteps(await getJson('/api/v1/steps', {run: this.run, tail: BAND_STEPS, include_ranks: true}, this.abort.signal));
    } catch {
      this.hasBand = false;  // with the next details
    }
  }

  async refreshDetails() {
    try {
      const [details, answer] = await Promise.all([
        getJson('/api/v1/run', {run: this.run}, this.abort.signal),
        getJson('/api/v1/incidents', {run: this.run, page_size: 200}, this.abort.signal),
      ]);
      this.details = details;
      this.detailsArrival = new Arrival();
      this.incidents = numbered(answer.incidents ?? []);
      if (details.verdict) this.receiveVerdict(details.verdict);
      this.loadBand(details);
      this.redraw();
    } catch (error) {
      if (error.status === 404) this.app.seekInHistory(this);
    }
    if (this.closed) return;
    this.app.tick();
    this.refreshing = setTimeout(() => this.refreshDetails(), DETAILS_MS);
  }

  receiveVerdict(verdict) {
    if (this.closed) return;
    const changed = actionOf(verdict) !== actionOf(this.verdict ?? undefined);
    const before = timeMs(this.verdict?.evaluatedAt);
    const evaluated = timeMs(verdict.evaluatedAt);
    if (before !== null && evaluated !== null && evaluated < before) return;  // overtaken on the way
    // The same verdict again is no fresher for having been sent twice.
    if (this.verdictArrival === null || evaluated === null || evaluated !== before) this.verdictArrival = new Arrival();
    this.verdict = verdict;
    if (changed && this.refreshing !== undefined) {  // its incidents are worth seeing at once
      clearTimeout(this.refreshing);
      this.refreshing = undefined;  // a refresh in flight
      this.refreshDetails();
    }
    this.app.tick();
  }

  receiveSteps(message) {
    if (this.closed) return false;
    const added = this.store.add(message.steps);
    if (added) this.redraw();
    return added;
  }

  redraw() {
    if (this.drawing !== undefined) return;
    this.drawing = setTimeout(() => {
      this.drawing = undefined;
      if (!this.closed) this.draw();
    }, DRAW_MS);
  }

  draw() {
    const last = this.store.last() ?? this.details?.lastStep;
    const attempt = last?.attempt ?? this.details?.attempt ?? '';
    this.app.curves.update(this.store.table(attempt, SIGNALS.map(({field}) => field)), this.incidents, this.loading);
    this.app.readouts.update(last);
    this.app.incidentList.update(this.incidents);
  }

  show(believed) {
    const {state} = this.verdicts;
    const connected = state === 'live' || state === 'polling' || (believed && state !== 'down');
    const freshness = judgeFreshness(this.verdict, this.verdictArrival, connected);
    byId('run').classList.toggle('not-fresh', !freshness.fresh);
    document.title = `${freshness.fresh ? actionOf(this.verdict) : 'UNKNOWN'} · ${this.run} · lossgauge`;
    this.app.verdictView.update({run: this.run, verdict: this.verdict, arrival: this.verdictArrival, freshness, details: this.details});
    const evaluated = timeMs(this.verdict?.evaluatedAt);
    const serverNow = evaluated === null ? null : evaluated + this.verdictArrival.age();
    const last = this.store.last() ?? this.details?.lastStep;
    this.app.rankTable.update(this.details, last, serverNow);
    this.app.rankGrid.update(this.details, last, last?.rankSteps, this.incidents);
  }
}

new App();
