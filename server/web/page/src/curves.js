// The curves of a run over its steps, with its incidents on them. One plot a signal, one cursor over all of them.
import uPlot from '/page/uplot/uplot.js';
import {byId, element, setText} from './dom.js';
import {significant, severityOf} from './format.js';

export const SIGNALS = [
  {field: 'lossNats', title: 'Loss', unit: 'nats/token', tall: true},
  {field: 'perplexity', title: 'Perplexity', unit: '', log: true},
  {field: 'maxAbsLogit', title: 'max |z|', unit: '', colour: '--curve-2'},
  {field: 'logZMeanNats', title: 'log Z, mean', unit: 'nats', colour: '--curve-2'},
  {field: 'gradNorm', title: 'Gradient norm', unit: '', log: true, colour: '--curve-3'},
  {field: 'logitGradNorm', title: 'Logit gradient norm', unit: '', log: true, colour: '--curve-3'},
  {field: 'hiddenGradNorm', title: 'Hidden gradient norm', unit: '', log: true, colour: '--curve-3'},
  {field: 'headGradNorm', title: 'Head gradient norm', unit: '', log: true, colour: '--curve-3'},
];
const RANGES = [[200, 'last 200'], [1000, 'last 1000'], [0, 'all']];
const SCALES = [['auto', 'auto'], ['linear', 'linear'], ['log', 'log']];  // auto: as the signal has it
const SYNC_KEY = 'steps';
const MARK_HEIGHT = 15;
const LOG_LIMIT = 1e15;
const LOG_LABELS = 6;

export const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Curves {
  constructor() {
    this.plots = [];
    this.table = null;
    this.incidents = [];
    this.range = 0;
    this.scale = 'auto';
    this.zoom = null;  // [first, last] picked with the mouse or from an incident
    this.container = byId('curves');
    this.buildRanges();
    this.buildScales();
    this.container.addEventListener('keydown', (event) => this.walk(event));
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(this.container);
    // Canvas colours do not follow style sheets: draw anew when the theme changes.
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.rebuild());
  }

  clear() {
    this.table = null;
    this.incidents = [];
    this.zoom = null;
    this.destroy();
  }

  destroy() {
    for (const {plot, figure} of this.plots) {
      plot.destroy();
      figure.remove();
    }
    this.plots = [];
  }

  // `loading`: earlier steps are on their way.
  update(table, incidents, loading) {
    const shape = (one) => one && `${one.hasEarlier} ${Object.keys(one.band)} ${SIGNALS.map(({field}) => hasValues(one, field)).join()}`;
    const changed = shape(table) !== shape(this.table);
    this.table = table;
    this.incidents = incidents;
    this.loading = loading;
    if (changed) this.rebuild();
    for (const {plot, signal} of this.plots) {
      plot.setData(this.dataOf(signal), false);
      plot.root.setAttribute('aria-label', this.describe(signal));
    }
    this.applyRange();
    this.note();
  }

  // What the picture says, for those who do not see it.
  describe({field, title, unit}) {
    const values = this.table.current[field].filter((value) => value !== null);
    if (values.length === 0) return `${title} over steps`;
    const [low, high] = values.reduce(([min, max], value) => [Math.min(min, value), Math.max(max, value)], [Infinity, -Infinity]);
    return `${title} over steps: last ${significant(values[values.length - 1])}, from ${significant(low)} to ${significant(high)} ${unit}`.trim();
  }

  showSpan(first, last) {
    const margin = Math.max(20, Math.round((last - first) / 2));
    this.show(this.range, [first - margin, last + margin]);
  }

  // `range`: how many of the newest steps, 0 = all; `zoom` overrules it.
  show(range, zoom = null) {
    this.range = range;
    this.zoom = zoom;
    this.applyRange();
    this.markRange();
    if (this.table) this.note();
  }

  note() {
    const count = this.table.steps.length;
    const parts = [count === 0 ? this.loading ? 'loading' : 'no steps yet' : `steps ${this.table.steps[0]} to ${this.table.steps[count - 1]}`];
    if (count > 0 && this.loading) parts.push('loading earlier ones');
    if (count > 0 && this.zoom) parts.push(`shown: ${Math.round(this.zoom[0])} to ${Math.round(this.zoom[1])}`);
    if (this.table.hasEarlier) parts.push('grey: earlier attempts');
    if (Object.keys(this.table.band).length > 0) parts.push('band: over the ranks');
    setText(byId('curves-note'), parts.join(' · '));
  }

  buildRanges() {
    for (const [count, text] of RANGES) {
      const button = element('button', {type: 'button', 'data-count': count, 'aria-pressed': String(count === this.range)}, text);
      button.addEventListener('click', () => this.show(count));
      byId('ranges').append(button);
    }
  }

  buildScales() {
    for (const [scale, text] of SCALES) {
      const button = element('button', {type: 'button', 'data-scale': scale, 'aria-pressed': String(scale === this.scale)}, text);
      button.addEventListener('click', () => {
        this.scale = scale;
        for (const one of byId('scales').children) one.setAttribute('aria-pressed', String(one.dataset.scale === scale));
        this.rebuild();
      });
      byId('scales').append(button);
    }
  }

  isLog({log}) {
    return this.scale === 'auto' ? log === true : this.scale === 'log';
  }

  // What the mouse can do, by keys.
  walk(event) {
    const steps = this.table?.steps ?? [];
    if (steps.length < 2 || this.plots.length === 0 || event.ctrlKey || event.metaKey || event.altKey || event.target !== this.container) return;
    const [first, last] = this.zoom ?? this.shownSpan();
    const width = last - first;
    const zoomed = {'+': [first + width / 4, last - width / 4], '=': [first + width / 4, last - width / 4], '-': [first - width / 2, last + width / 2],
      ArrowLeft: [first - width / 4, last - width / 4], ArrowRight: [first + width / 4, last + width / 4], 0: null}[event.key];
    if (zoomed === undefined) return;
    event.preventDefault();
    if (zoomed === null || zoomed[1] - zoomed[0] >= steps[steps.length - 1] - steps[0]) return this.show(0);
    if (zoomed[1] - zoomed[0] < 2) return;
    // Never past the ends: a view without steps says nothing.
    const shift = Math.max(0, steps[0] - zoomed[0]) - Math.max(0, zoomed[1] - steps[steps.length - 1]);
    this.show(this.range, zoomed.map((at) => at + shift));
  }

  shownSpan() {
    const {min, max} = this.plots[0].plot.scales.x;
    return [min, max];
  }

  markRange() {
    for (const button of byId('ranges').children) {
      button.setAttribute('aria-pressed', String(this.zoom === null && Number(button.dataset.count) === this.range));
    }
  }

  applyRange() {
    const steps = this.table?.steps ?? [];
    if (steps.length === 0) return;
    const last = steps[steps.length - 1];
    let [min, max] = this.zoom ?? [this.range > 0 ? Math.max(steps[0], last - this.range) : steps[0], last];
    if (max <= min) [min, max] = [min - 1, max + 1];
    for (const {plot} of this.plots) plot.setScale('x', {min, max});
  }

  dataOf(signal) {
    const {steps, current, earlier, band, hasEarlier} = this.table;
    const {field} = signal;
    const log = this.isLog(signal);
    const shown = (values) => (log ? values.map(onLogScale) : values);
    const columns = [steps];
    if (band[field]) columns.push(shown(band[field].high), shown(band[field].low));
    if (hasEarlier) columns.push(shown(earlier[field]));
    columns.push(shown(current[field]));
    return columns;
  }

  rebuild() {
    this.destroy();
    if (!this.table) return;
    for (const signal of SIGNALS) {
      if (!hasValues(this.table, signal.field)) continue;
      const figure = element('figure', {class: signal.tall ? 'curve curve-tall' : 'curve', 'data-field': signal.field});
      const value = element('output', {class: 'curve-value'});
      const unit = signal.unit ? ` (${signal.unit})` : '';
      figure.append(element('figcaption', {}, element('span', {class: 'curve-title'}, `${signal.title}${unit}`), value));
      this.container.append(figure);
      const plot = new uPlot(this.options(signal, figure, value), this.dataOf(signal), figure);
      plot.root.setAttribute('role', 'img');
      this.plots.push({plot, figure, signal});
    }
    this.applyRange();
  }

  resize() {
    for (const {plot, figure, signal} of this.plots) plot.setSize(sizeOf(figure, signal));
  }

  options(signal, figure, value) {
    const line = {stroke: colourOf(signal.colour ?? '--curve-1'), width: 1.5, points: {show: false}, spanGaps: false};
    const series = [{label: 'step'}];  // what comes first lies under what follows
    const bands = [];
    if (this.table.band[signal.field]) {
      series.push({...line, label: 'most of a rank', width: 0}, {...line, label: 'least of a rank', width: 0});
      bands.push({series: [1, 2], fill: colourOf('--band')});
    }
    const log = this.isLog(signal);
    if (this.table.hasEarlier) series.push({...line, label: 'earlier attempts', stroke: colourOf('--curve-earlier')});
    series.push({...line, label: signal.title});
    return {
      ...sizeOf(figure, signal),
      padding: [MARK_HEIGHT + 3, 16, 0, 0],
      legend: {show: false},
      cursor: {sync: {key: SYNC_KEY}, y: false, points: {size: 6}, drag: {x: true, y: false, setScale: false},
        bind: {dblclick: () => () => this.show(this.range)}},
      select: {show: true},
      scales: {x: {time: false, auto: false}, y: {distr: log ? 3 : 1, range: log ? undefined : padded}},
      axes: stepAxes(log),
      series,
      bands,
      hooks: {
        drawClear: [(plot) => this.drawIncidents(plot)],
        draw: [(plot) => this.drawNonfinite(plot)],
        setCursor: [(plot) => setText(value, this.cursorText(plot, signal))],
        setData: [(plot) => setText(value, this.cursorText(plot, signal))],
        setSelect: [(plot) => this.zoomTo(plot)],
      },
    };
  }

  zoomTo(plot) {
    if (plot.select.width < 4) return;
    const zoom = [plot.posToVal(plot.select.left, 'x'), plot.posToVal(plot.select.left + plot.select.width, 'x')];
    for (const one of this.plots) one.plot.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
    this.show(this.range, zoom);
  }

  cursorText(plot, {field}) {
    const column = this.table?.current[field] ?? [];
    const at = plot.cursor.idx;
    if (at !== null && at !== undefined && at < column.length) {
      const value = column[at] ?? this.table.earlier[field][at];
      return `step ${this.table.steps[at]}: ${significant(value)}`;
    }
    for (let i = column.length - 1; i >= 0; i--) {
      if (column[i] !== null) return significant(column[i]);
    }
    return '';
  }

  // Behind the line: a band from onset to the last step, its number on top. The number is the one of the list beside the curves.
  drawIncidents(plot) {
    const {ctx} = plot;
    const {left, top, width, height} = plot.bbox;
    const scale = devicePixelRatio;
    let free = left;  // where the next label may begin: of incidents that began together each stays readable
    ctx.save();
    for (const incident of this.incidents) {
      const severity = severityOf(incident).toLowerCase();
      const colour = colourOf(`--severity-${severity}`);
      const from = plot.valToPos(Number(incident.onsetStep ?? 0), 'x', true);
      const to = plot.valToPos(Number(incident.lastStep ?? incident.onsetStep ?? 0), 'x', true);
      const x0 = Math.max(left, from);
      const x1 = Math.min(left + width, Math.max(to, from + scale));
      if (x1 < left || x0 > left + width) continue;
      ctx.globalAlpha = incident.hiddenBy ? 0.06 : 0.16;
      ctx.fillStyle = colour;
      ctx.fillRect(x0, top, Math.max(scale, x1 - x0), height);
      ctx.globalAlpha = incident.hiddenBy ? 0.35 : 0.9;
      ctx.fillRect(x0, top, scale, height);
      if (incident.hiddenBy || from < left) continue;
      ctx.globalAlpha = 1;
      free = this.drawLabel(ctx, String(incident.number), Math.max(x0, free), top, scale, colour) + scale;
    }
    ctx.restore();
  }

  // Returns where the label ends.
  drawLabel(ctx, text, x, top, scale, colour) {
    ctx.font = `600 ${10.5 * scale}px ${colourOf('--mono')}`;
    const width = ctx.measureText(text).width + 7 * scale;
    const height = MARK_HEIGHT * scale;
    ctx.fillStyle = colour;
    ctx.fillRect(x, top - height, width, height);
    ctx.fillStyle = colourOf('--on-severity');
    ctx.textAlign = 'left';
    ctx.textBaseline = 'middle';
    ctx.fillText(text, x + 3.5 * scale, top - height / 2 + 0.5 * scale);
    return x + width;
  }

  // In front: a cross at the bottom for each step with a non-finite value, where the line has a gap.
  drawNonfinite(plot) {
    const {ctx} = plot;
    const {left, top, width, height} = plot.bbox;
    const scale = devicePixelRatio;
    const size = 3.5 * scale;
    const y = top + height - size - 2 * scale;
    ctx.save();
    ctx.strokeStyle = colourOf('--severity-critical');
    ctx.lineWidth = 1.5 * scale;
    ctx.beginPath();
    for (const step of this.table?.nonfinite ?? []) {
      const x = plot.valToPos(step, 'x', true);
      if (x < left || x > left + width) continue;
      ctx.moveTo(x - size, y - size);
      ctx.lineTo(x + size, y + size);
      ctx.moveTo(x + size, y - size);
      ctx.lineTo(x - size, y + size);
    }
    ctx.stroke();
    ctx.restore();
  }
}

// A logarithmic axis has no place for zero (a gradient that died), and uPlot's knows 32 powers of ten only: beyond, it looks for its end for ever.
// The perplexity of a wrecked loss goes there.
export function onLogScale(value) {
  return value > 0 ? Math.min(Math.max(value, 1 / LOG_LIMIT), LOG_LIMIT) : null;
}

// Steps below, values at the left.
export function stepAxes(log) {
  const grid = {stroke: colourOf('--grid'), width: 1};
  const axis = {stroke: colourOf('--ink-2'), grid, ticks: {...grid, size: 4}, font: '11px ' + colourOf('--mono')};
  return [
    {...axis, size: 26, space: 70, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : ''))},
    {...axis, size: 58, space: 26, grid: log ? {...grid, filter: decades} : grid, values: (_, ticks) => (log ? thinned(ticks) : ticks).map((tick) => (tick === null ? '' : tickText(tick)))},
  ];
}

function hasValues(table, field) {
  return table.current[field].some((value) => value !== null) || table.earlier[field].some((value) => value !== null);
}

function sizeOf(figure, signal) {
  return {width: Math.max(200, Math.floor(figure.clientWidth)), height: signal.tall ? 250 : 170};
}

// Some air above and below, and no scale of zero height where a curve is flat.
function padded(_, min, max) {
  if (min === null) return [0, 1];
  const air = (max - min) * 0.06 || Math.abs(max) * 0.01 || 1;
  return [min - air, max + air];
}

// Of a logarithmic scale only the powers of ten get a line.
function decades(_, ticks) {
  return ticks.map((tick) => (Number.isInteger(Math.log10(tick)) ? tick : null));
}

// Of a scale over many powers of ten only so many get a number that none stands in another's place.
function thinned(ticks) {
  const powers = ticks.filter((tick) => tick !== null && Number.isInteger(Math.log10(tick))).length;
  const every = Math.ceil(powers / LOG_LABELS);
  return every <= 1 ? ticks : ticks.map((tick) => (tick !== null && Math.log10(tick) % every === 0 ? tick : null));
}

function tickText(tick) {
  const size = Math.abs(tick);
  if (tick === 0) return '0';
  if (size >= 1e5 || size < 1e-3) return tick.toExponential(0).replace('e+', 'e').replaceAll('-', '−');
  return String(Number(tick.toPrecision(6))).replace('-', '−');
}
