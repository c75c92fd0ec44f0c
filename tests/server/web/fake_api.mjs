// A stand-in for lossgauged's HTTP side: serves the page as it was built and answers /api/v1/ from data that a test may change at will.
//
//     node fake_api.mjs DIST_DIR [PORT]      to look at the page by hand: a story plays by itself
//
// In tests: const fake = await startFake(distDir); fake.addRun(...); fake.addStep(...); await fake.close().
import {createServer} from 'node:http';
import {readFileSync} from 'node:fs';
import {extname, join, normalize} from 'node:path';
import {fileURLToPath} from 'node:url';

const TYPES = {'.html': 'text/html; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml', '.txt': 'text/plain; charset=utf-8', '.md': 'text/plain; charset=utf-8'};
// As in server/web/page_assets.h.
const POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

export async function startFake(distDir, {port = 0} = {}) {
  const fake = new FakeApi(distDir);
  await new Promise((done) => fake.server.listen(port, '127.0.0.1', done));
  fake.port = fake.server.address().port;
  fake.url = `http://127.0.0.1:${fake.port}`;
  return fake;
}

class FakeApi {
  constructor(distDir) {
    this.distDir = distDir;
    this.runs = new Map();
    this.past = new Map();  // runs that only the history knows: name -> {lastWriteTime, steps, incidents, verdicts, events}; newest first
    this.historyReads = true;  // false: what is read from the history is refused, as when it is busy
    this.streams = new Set();
    this.streaming = true;  // false: event streams are refused, as by a proxy that does not let them through
    this.answering = true;  // false: every request under /api/ ends without an answer
    this.heldSteps = null;  // a list: what is asked of /api/v1/steps waits in it until somebody calls it
    this.requests = [];
    this.comparison = {};  // what CompareRuns answers
    this.server = createServer((request, response) => this.answer(request, response));
  }

  // `overrides`: fields of lossgauge.v1.Run in protobuf JSON.
  addRun(name, {action = 'CONTINUE', reason = 'All is well.', termSeconds = 60, verdict = {}, ...overrides} = {}) {
    const run = {run: name, attempt: 'a1', attempts: [{attempt: 'a1', state: 'running'}], phase: 'train', mode: 'advise', instance: 'fake',
      producers: [], totals: {}, layout: {worldSize: 1}, ...overrides};
    this.runs.set(name, {run, steps: [], incidents: [], termSeconds, verdict: {action, reason, reasonCodes: [], ...verdict}});
    return run;
  }

  // `verdicts`: newest first; `events`: oldest first.
  addPast(name, lastWriteTime, fields = {}) {
    this.past.set(name, {lastWriteTime, steps: [], incidents: [], verdicts: [], events: [], ...fields});
  }

  // As lossgauged does some time after a run has ended.
  forget(name, verdicts = [], events = []) {
    const {steps, incidents} = this.runs.get(name);
    this.runs.delete(name);
    this.addPast(name, new Date().toISOString(), {steps, incidents, verdicts, events});
  }

  addStep(name, step, fields = {}) {
    const entry = this.runs.get(name);
    const full = {sequence: String(entry.steps.length + 1), attempt: entry.run.attempt, step: String(step), receiveTime: new Date().toISOString(),
      ranks: 1, complete: true, unmaskedTokens: '4096', ...fields};
    entry.steps.push(full);
    this.send(name, 'steps', {steps: [full]});
    return full;
  }

  setVerdict(name, verdict) {
    const entry = this.runs.get(name);
    entry.verdict = {...entry.verdict, ...verdict};
    this.send(name, 'verdict', this.verdictOf(entry));
  }

  setIncidents(name, incidents) {
    this.runs.get(name).incidents = incidents;
  }

  verdictOf(entry) {
    const last = entry.steps.at(-1);
    const now = Date.now();
    return {run: entry.run.run, instance: 'fake', scope: 'local', mode: entry.run.mode, policyVersion: 'default-1', attempt: entry.run.attempt,
      evaluatedAt: new Date(now).toISOString(), validUntil: new Date(now + 1000 * entry.termSeconds).toISOString(),
      ...(last ? {lastStep: last.step, lastStepAge: `${((now - Date.parse(last.receiveTime)) / 1000).toFixed(3)}s`} : {}), ...entry.verdict};
  }

  runOf(entry) {
    return {...entry.run, lastStep: entry.steps.at(-1), verdict: this.verdictOf(entry), openIncidents: entry.incidents.filter((one) => one.open)};
  }

  send(name, kind, message) {
    for (const stream of this.streams) {
      if (stream.run === name && stream.kind === kind) stream.response.write(`event: ${kind}\ndata: ${JSON.stringify(message)}\n\n`);
    }
  }

  dropStreams() {
    for (const stream of this.streams) stream.response.destroy();
    this.streams.clear();
  }

  answer(request, response) {
    const url = new URL(request.url, 'http://fake');
    this.requests.push(request.url);
    if (url.pathname === '/plain') {
      response.writeHead(200, {'Content-Type': 'text/html; charset=utf-8', 'Content-Security-Policy': POLICY});
      return response.end('<!doctype html><html lang="en"><title>plain</title><link rel="stylesheet" href="/page/style.css"><h1>plain table</h1></html>');
    }
    if (!url.pathname.startsWith('/api/')) return this.serveFile(url.pathname, response);
    if (!this.answering) return response.destroy();
    const json = (value, status = 200) => {
      response.writeHead(status, {'Content-Type': 'application/json', 'Cache-Control': 'no-store'});
      response.end(JSON.stringify(value));
    };
    const name = url.searchParams.get('run');
    const withPast = url.searchParams.get('include_past') === 'true';
    const ofHistory = withPast || ['steps', 'incidents', 'verdicts', 'events', 'explain', 'compare'].includes(url.pathname.slice('/api/v1/'.length));
    if (ofHistory && !this.historyReads) return json({error: {code: 8, status: 'RESOURCE_EXHAUSTED', message: 'busy'}}, 429);
    if (url.pathname === '/api/v1/runs') {
      const pastRuns = [...this.past].filter(([run]) => !this.runs.has(run)).map(([run, {lastWriteTime}]) => ({run, lastWriteTime}));
      return json({runs: [...this.runs.values()].map((entry) => this.runOf(entry)), instance: 'fake', ...(withPast && {pastRuns})});
    }
    if (url.pathname === '/api/v1/compare') return json(this.comparison);
    const entry = this.runs.get(name) ?? (ofHistory ? this.past.get(name) : undefined);
    if (!entry) return json({error: {code: 5, status: 'NOT_FOUND', message: `no run named "${name}"`}}, 404);
    switch (url.pathname) {
      case '/api/v1/run': return json(this.runOf(entry));
      case '/api/v1/verdict': return json(this.verdictOf(entry));
      case '/api/v1/verdicts': return json({verdicts: entry.verdicts ?? [], nextPageToken: ''});
      case '/api/v1/events': {  // two at a time
        const from = Number(url.searchParams.get('page_token') || 0);
        const events = (entry.events ?? []).slice(from, from + 2);
        return json({events, nextPageToken: from + 2 < (entry.events ?? []).length ? String(from + 2) : ''});
      }
      case '/api/v1/incidents': return json({incidents: entry.incidents});
      case '/api/v1/explain': {
        const id = url.searchParams.get('incident');
        return json({run: name, incident: id, headline: 'h', parts: [{title: 'What was seen', lines: [`The story of ${id}.`]},
          {title: 'Evidence', lines: ['told already']}, {title: 'What would change that', lines: ['30 (loss.close_steps) clean steps <b>end</b> it.']}]});
      }
      case '/api/v1/steps': {
        const last = Number(url.searchParams.get('last_step') ?? Infinity);
        const thinnedToo = url.searchParams.get('include_thinned') === 'true';
        const steps = entry.steps.filter((step) => Number(step.step) <= last && (thinnedToo || !step.thinned)).slice(-Number(url.searchParams.get('tail') ?? 1000));
        const reply = () => json({steps: steps.map((step) => this.shown(step, url))});
        return this.heldSteps === null ? reply() : void this.heldSteps.push(reply);
      }
      case '/api/v1/verdict/watch': return this.openStream(name, 'verdict', response, () => [this.verdictOf(entry)]);
      case '/api/v1/steps/watch': return this.openStream(name, 'steps', response, () => {
        const after = url.searchParams.get('after_sequence');
        const missed = after === null ? [] : entry.steps.filter((step) => Number(step.sequence) > Number(after));
        return missed.length > 0 ? [{steps: missed.map((step) => this.shown(step, url))}] : [];
      });
      default: return json({error: {code: 12, status: 'UNIMPLEMENTED', message: `no method ${url.pathname}`}}, 404);
    }
  }

  // Ranks only for those who ask for them, as the real one.
  shown(step, url) {
    if (url.searchParams.get('include_ranks') === 'true') return step;
    const {rankSteps, ...rest} = step;
    return rest;
  }

  openStream(run, kind, response, first) {
    if (!this.streaming) {
      response.writeHead(503);
      return response.end();
    }
    response.writeHead(200, {'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store'});
    response.write(': open\n\n');
    const stream = {run, kind, response};
    this.streams.add(stream);
    response.on('close', () => this.streams.delete(stream));
    for (const message of first()) response.write(`event: ${kind}\ndata: ${JSON.stringify(message)}\n\n`);
  }

  serveFile(path, response) {
    const file = path === '/' ? 'index.html' : normalize(path).slice(1);
    try {
      const bytes = readFileSync(join(this.distDir, file));
      response.writeHead(200, {'Content-Type': TYPES[extname(file)] ?? 'application/octet-stream', 'Content-Security-Policy': POLICY,
        'X-Content-Type-Options': 'nosniff'});
      response.end(bytes);
    } catch {
      response.writeHead(404);
      response.end();
    }
  }

  close() {
    this.dropStreams();
    this.server.closeAllConnections();
    return new Promise((done) => this.server.close(done));
  }
}

// Values of a step that hang together as a real one's do: a falling loss, a logit blow-up with the loss spike it causes.
export function plausibleStep(step, {spikeAt = Infinity, divergeAt = Infinity, noise = 0.03} = {}) {
  const wobble = noise * (Math.sin(step * 12.9898) + Math.sin(step * 4.1414));
  const since = step - spikeAt;
  const spike = since >= 0 ? 2.4 * Math.exp(-since / 9) : 0;
  const drift = step >= divergeAt ? 0.022 * (step - divergeAt) : 0;
  const loss = 2.1 + 3.9 * Math.exp(-step / 120) + wobble + spike + drift;
  return {lossNats: loss, perplexity: Math.exp(loss), bitsPerByte: loss / 2.9, maxAbsLogit: 14 + step / 60 + 5 * wobble + 26 * spike + 9 * drift,
    logZMeanNats: 9.4 + wobble * 2 + 11 * spike + 3 * drift, logZMaxNats: 14 + 15 * spike, gradNorm: 0.9 + 0.9 * Math.abs(wobble) + 6 * spike + 3 * drift,
    accuracy: Math.exp(-loss / 2), learningRate: 3e-4 * Math.min(1, step / 50), stepSeconds: 0.21 + 0.02 * wobble};
}

// A small fleet for looking at the page by hand, and for the screenshots.
export function tellStory(fake) {
  const time = (secondsAgo) => new Date(Date.now() - 1000 * secondsAgo).toISOString();
  const producer = (rank, state, step, fields = {}) => ({rank, state, lastRecordTime: time(state === 'live' ? 0.4 : 41), enqueuedStep: String(step),
    publishedStep: String(step), enteredStep: String(step + (state === 'live' ? 1 : 0)), lastCall: 'loss', recordsLost: '0', ring: `r${rank}`, ...fields});
  fake.addRun('pretrain-410m', {
    action: 'RESTART', reason: 'divergence since step 520: loss is 3.1 nats above its level and has not come back in 150 steps',
    attempt: '7431-0', lastCheckpointPath: '/ckpt/pretrain-410m/step_00500', lastCheckpointStep: '500', evaluationLossNats: 2.4417, evaluationStep: '500',
    layout: {worldSize: 4, dataParallel: 4}, producers: [producer(0, 'live', 679), producer(1, 'live', 679), producer(2, 'live', 679), producer(3, 'frozen', 671, {recordsLost: '12'})],
    verdict: {reasonCodes: ['divergence', 'frozen'], lastGoodStep: '519', resumePoint: {step: '500', path: '/ckpt/pretrain-410m/step_00500'},
      skip: {first: '501', last: '523'}, evidence: [{name: 'loss', value: 5.31, unit: 'nats/token'}, {name: 'level before', value: 2.17, unit: 'nats/token'},
        {name: 'steps_open', value: 150, unit: 'steps'}, {name: 'gradient_norm', value: 10.4, text: '11 times its median'}]},
  });
  for (let step = 0; step < 680; step++) {
    const fields = plausibleStep(step, {spikeAt: 300, divergeAt: 520});
    fake.addStep('pretrain-410m', step, step === 611 || step === 612 ? {...fields, lossNats: 'NaN', perplexity: 'NaN', nonfiniteRows: '3'} : fields);
  }
  fake.setIncidents('pretrain-410m', [
    {id: '5c1f-1', run: 'pretrain-410m', condition: 'loss_spike', kind: 'logit_blowup', severity: 'WARNING', open: false, onsetStep: '300', peakStep: '300', lastStep: '327',
      onsetTime: time(900), resolvedTime: time(820), summary: 'Loss rose by 2.4 nats in one step while max |z| rose from 19 to 81; log Z came back: the z-loss absorbed it.',
      evidence: [{name: 'rise', value: 2.41, unit: 'nats/token'}, {name: 'max_abs_logit', value: 81.3}, {name: 'worst row', text: 'rank 2, position 1893, token 50256'}],
      stepsToRecover: '27', acknowledged: true, acknowledgedBy: 'ada', acknowledgedComment: 'crawl page of 40,000 dashes', rank: 2},
    {id: '5c1f-2', run: 'pretrain-410m', condition: 'divergence', severity: 'CRITICAL', open: true, onsetStep: '520', peakStep: '679', lastStep: '679', onsetTime: time(120),
      summary: 'Loss has risen for 150 steps and has not come back.', evidence: [{name: 'rise', value: 3.14, unit: 'nats/token'}]},
    {id: '5c1f-3', run: 'pretrain-410m', condition: 'grad_explosion', severity: 'WARNING', open: true, onsetStep: '541', lastStep: '679', onsetTime: time(110), hiddenBy: '5c1f-2',
      summary: 'The gradient norm is 11 times its median.', evidence: [{name: 'grad_norm', value: 10.4}]},
    {id: '5c1f-4', run: 'pretrain-410m', condition: 'nonfinite', severity: 'CRITICAL', open: false, onsetStep: '611', peakStep: '611', lastStep: '612', onsetTime: time(60),
      resolvedTime: time(55), summary: '3 rows of rank 1 were not finite in steps 611 and 612.', evidence: [{name: 'rows', value: 6, unit: 'rows'}], rank: 1},
  ]);
  fake.addRun('sft-8b/β "quoted" 🚀', {action: 'WATCH', reason: 'loss spike at step 148 is young: 6 steps', verdict: {reasonCodes: ['loss_spike/data'], escalates: 'in 24 steps, if the loss has not come back'},
    attempts: [{attempt: 'a0', state: 'lost'}, {attempt: 'a1', state: 'running'}], producers: [producer(0, 'live', 154)]});
  for (let step = 0; step < 130; step++) fake.addStep('sft-8b/β "quoted" 🚀', step, {...plausibleStep(step), attempt: 'a0'});
  for (let step = 100; step < 154; step++) fake.addStep('sft-8b/β "quoted" 🚀', step, plausibleStep(step, {spikeAt: 148}));
  fake.addRun('eval-probe', {action: 'CONTINUE', reason: 'fresh: step 89 is 0.2 s old, nothing open', verdict: {reasonCodes: ['fresh']}, producers: [producer(0, 'live', 90)]});
  for (let step = 0; step < 90; step++) fake.addStep('eval-probe', step, plausibleStep(step));
  fake.addRun('warm', {action: 'UNKNOWN', reason: 'warming: 12 of 128 steps of baseline', verdict: {reasonCodes: ['warming']}});
  fake.addRun('night-7', {action: 'UNKNOWN', reason: 'the run ended cleanly', ended: true, phase: 'ended', verdict: {reasonCodes: ['ended']}});
  return setInterval(() => {
    const steps = fake.runs.get('eval-probe').steps.length;
    fake.addStep('eval-probe', steps, plausibleStep(steps));
  }, 250);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const fake = await startFake(process.argv[2], {port: Number(process.argv[3] ?? 8099)});
  tellStory(fake);
  setInterval(() => fake.runs.forEach((entry, name) => fake.setVerdict(name, {})), 5_000);
  console.log(fake.url);
}
