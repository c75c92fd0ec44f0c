// Two runs over the same steps. Whether they may be compared is the server's word (CompareRuns); the curves show both, and their difference only at steps
// whose targets were the same.
import uPlot from '/page/uplot/uplot.js';
import {getJson} from './api.js';
import {colourOf, onLogScale, stepAxes} from './curves.js';
import {byId, element, setText} from './dom.js';
import {MISSING, integer, number, significant} from './format.js';
import {hashOf} from './run_list.js';

const REFRESH_MS = 5_000;
const STEPS = 4_000;  // of each run, the newest
const HEIGHT = 210;
const CURVES = [
  {title: 'Loss (nats/token)', value: (step) => step.lossNats},
  {title: 'Difference of the losses, b less a (nats/token)', difference: true},
  {title: 'Gradient norm', value: (step) => step.gradNorm, log: true},
  {title: 'max |z|', value: (step) => step.maxAbsLogit},
];

export const hashOfPair = (a, b) => `#/compare/${encodeURIComponent(a)}/${encodeURIComponent(b)}`;

// [a, b], or null if the hash names no two runs.
export function pairOfHash(hash) {
  const match = /^#\/compare\/([^/]*)\/([^/]*)$/s.exec(hash);
  if (!match) return null;
  try {
    return [decodeURIComponent(match[1]), decodeURIComponent(match[2])];
  } catch {
    return null;
  }
}

export class ComparisonView {
  // `isLive` tells of a run whether anything of it can still change.
  constructor(a, b, isLive) {
    Object.assign(this, {a, b, isLive, plots: []});
    this.abort = new AbortController();
    this.root = byId('comparison');
    this.build();
    this.resizing = new ResizeObserver(() => this.plots.forEach(({plot, figure}) => plot.setSize(sizeOf(figure))));
    this.resizing.observe(this.curves);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw(), {signal: this.abort.signal});
    this.refresh();
  }

  close() {
    this.abort.abort();
    clearTimeout(this.timer);
    this.resizing.disconnect();
    this.clearPlots();
    this.root.replaceChildren();
    this.root.hidden = true;
  }

  build() {
    const link = (run) => element('a', {href: hashOf(run), class: 'compared-run'}, run === '' ? '(no name)' : run);
    this.verdict = element('p', {class: 'comparison-verdict', role: 'status'}, 'Comparing');
    this.reason = element('p', {class: 'reason'});
    this.figures = element('tbody');
    this.counts = element('p', {class: 'note'});
    this.curves = element('div', {class: 'comparison-curves'});
    const head = ['Mean', 'a', 'b', 'b less a', '95 % band'].map((text) => element('th', {scope: 'col'}, text));
    this.root.replaceChildren(
      element('header', {class: 'verdict-head comparison-head'},
        element('h2', {id: 'comparison-title', class: 'run-title'}, element('span', {class: 'swatch swatch-a'}), 'a: ', link(this.a), ' against ',
          element('span', {class: 'swatch swatch-b'}), 'b: ', link(this.b)),
        this.verdict, this.reason),
      element('div', {class: 'panel comparison-figures', tabindex: '0', role: 'group', 'aria-label': 'Figures'}, element('table', {},
        element('caption', {class: 'visually-hidden'}, 'Means over the steps that were compared'), element('thead', {}, element('tr', {}, ...head)), this.figures),
      this.counts),
      element('section', {class: 'panel', 'aria-label': 'Curves of both runs'}, this.curves));
    this.root.hidden = false;
  }

  async refresh() {
    if (this.table === undefined || this.isLive(this.a) || this.isLive(this.b)) await this.load();
    if (!this.abort.signal.aborted) this.timer = setTimeout(() => this.refresh(), REFRESH_MS);
  }

  async load() {
    const {signal} = this.abort;
    try {
      const steps = (run, upTo = {}) => getJson('/api/v1/steps', {run, tail: STEPS, include_thinned: true, ...upTo}, signal).then((answer) => answer.steps ?? []);
      const [comparison, a, b] = await Promise.all([getJson('/api/v1/compare', {a: this.a, b: this.b}, signal), steps(this.a), steps(this.b)]);
      // Of a run that has gone far beyond the other's end, the steps that both have.
      const meeting = (run, own, others) => (own.length > 0 && others.length > 0 && number(own[0].step) > number(others.at(-1).step)
        ? steps(run, {last_step: others.at(-1).step}) : own);
      const [nearA, nearB] = await Promise.all([meeting(this.a, a, b), meeting(this.b, b, a)]);
      this.show(comparison);
      this.table = join(nearA, nearB);
      this.draw();
    } catch (error) {
      if (signal.aborted) return;
      this.root.classList.add('not-fresh');
      setText(this.verdict, error.status === 404 ? 'One of these runs is not known' : 'lossgauged cannot be reached');
    }
  }

  show(comparison) {
    this.root.classList.remove('not-fresh');
    setText(this.verdict, comparison.comparable ? 'Comparable' : 'Not comparable');
    this.verdict.className = `comparison-verdict tone-${comparison.comparable ? 'continue' : 'watch'}`;
    setText(this.reason, comparison.comparable ? `by ${(comparison.matchedBy ?? '').replaceAll('_', ' ')}` : comparison.reason ?? '');
    const row = (name, difference) => element('tr', {}, element('th', {scope: 'row'}, name), ...['a', 'b', 'difference'].map((field) =>
      element('td', {}, significant(number(difference?.[field])))), element('td', {}, difference?.low === undefined ? MISSING
      : `${significant(number(difference.low))} to ${significant(number(difference.high))}`));
    this.figures.replaceChildren(row('Loss (nats/token)', comparison.loss), row('Perplexity', comparison.perplexity));
    const parts = [`${integer(comparison.compared ?? 0)} steps compared`, `${integer(comparison.differing ?? 0)} with other targets`];
    if (comparison.firstDifferingStep !== undefined) parts.push(`first at step ${integer(comparison.firstDifferingStep)}: ${comparison.firstDifference}`);
    if (comparison.correlated) parts.push('neighbouring steps depend on each other: the band may be too narrow');
    setText(this.counts, parts.join(' · '));
  }

  clearPlots() {
    this.plots.forEach(({plot}) => plot.destroy());
    this.plots = [];
    this.curves.replaceChildren();
  }

  draw() {
    if (!this.table || this.abort.signal.aborted) return;
    const span = this.plots[0] && {min: this.plots[0].plot.scales.x.min, max: this.plots[0].plot.scales.x.max};
    const whole = this.shown === undefined || (span && span.min === this.shown[0] && span.max === this.shown[1]);
    this.clearPlots();
    const {steps} = this.table;
    if (steps.length === 0) return;
    for (const curve of CURVES) {
      const columns = curve.difference ? [this.table.difference] : ['a', 'b'].map((which) => this.table[which].map((step) => finite(step && curve.value(step), curve.log)));
      if (!columns.some((column) => column.some((value) => value !== null))) continue;
      const figure = element('figure', {class: 'curve', 'data-curve': curve.title}, element('figcaption', {}, element('span', {class: 'curve-title'}, curve.title)));
      this.curves.append(figure);
      const colours = curve.difference ? ['--curve-3'] : ['--curve-1', '--compared'];
      const plot = new uPlot({
        ...sizeOf(figure), padding: [8, 16, 0, 0], legend: {show: false}, cursor: {sync: {key: 'comparison'}, y: false, drag: {x: true, y: false}},
        scales: {x: {time: false}, y: {distr: curve.log ? 3 : 1}}, axes: stepAxes(curve.log),
        series: [{}, ...colours.map((colour, i) => ({stroke: colourOf(colour), width: 1.5, dash: i === 1 ? [5, 3] : undefined, points: {show: false}, spanGaps: false}))],
      }, [steps, ...columns], figure);
      plot.root.setAttribute('role', 'img');
      plot.root.setAttribute('aria-label', describe(curve, columns, this.a, this.b));
      this.plots.push({plot, figure});
    }
    this.shown = [steps[0], steps[steps.length - 1]];
    if (!whole && span) this.plots.forEach(({plot}) => plot.setScale('x', span));
  }
}

// Both runs over all steps that one of them has; of a step trained twice the newest counts.
function join(a, b) {
  const byStep = (steps) => new Map(steps.map((step) => [Number(step.step ?? 0), step]));
  const [first, second] = [byStep(a), byStep(b)];
  const steps = [...new Set([...first.keys(), ...second.keys()])].sort((x, y) => x - y);
  const table = {steps, a: steps.map((at) => first.get(at)), b: steps.map((at) => second.get(at))};
  table.difference = steps.map((_, i) => (sameTargets(table.a[i], table.b[i]) ? difference(table.a[i].lossNats, table.b[i].lossNats) : null));
  return table;
}

function sameTargets(a, b) {
  if (!a || !b) return false;
  const fingerprints = [a.targetFingerprint, b.targetFingerprint].map((one) => one ?? '0');
  return fingerprints.includes('0') ? (a.unmaskedTokens ?? '0') === (b.unmaskedTokens ?? '0') : fingerprints[0] === fingerprints[1];
}

function difference(a, b) {
  const [first, second] = [finite(a), finite(b)];
  return first === null || second === null ? null : second - first;
}

function finite(value, log = false) {
  const n = number(value);
  if (n === null || !Number.isFinite(n)) return null;
  return log ? onLogScale(n) : n;
}

const lastOf = (column) => significant([...column].reverse().find((value) => value !== null) ?? null);

function describe(curve, columns, a, b) {
  return curve.difference ? `${curve.title}: last ${lastOf(columns[0])}` : `${curve.title} over steps: ${a} last ${lastOf(columns[0])}, ${b} last ${lastOf(columns[1])}`;
}

function sizeOf(figure) {
  return {width: Math.max(200, Math.floor(figure.clientWidth)), height: HEIGHT};
}
