// Steps of one run in the order of their sequence, each once, however often and from wherever they arrive.
import {number} from './format.js';

export const KEPT = 20_000;

export class StepStore {
  constructor() {
    this.bySequence = new Map();
    this.lastSequence = 0;
    this.unsorted = false;
  }

  // True if something was new.
  add(steps) {
    let added = false;
    for (const step of steps ?? []) {
      const sequence = Number(step.sequence ?? 0);
      const known = this.bySequence.get(sequence);
      // The same step again with its ranks says more.
      if (known !== undefined && !(step.rankSteps?.length > 0 && !(known.rankSteps?.length > 0))) continue;
      this.bySequence.set(sequence, step);
      if (sequence < this.lastSequence) this.unsorted = true;
      this.lastSequence = Math.max(this.lastSequence, sequence);
      added = true;
    }
    if (this.unsorted) {
      this.bySequence = new Map([...this.bySequence].sort((a, b) => a[0] - b[0]));
      this.unsorted = false;
    }
    for (const oldest of this.bySequence.keys()) {
      if (this.bySequence.size <= KEPT) break;
      this.bySequence.delete(oldest);
    }
    return added;
  }

  last() {
    return this.bySequence.get(this.lastSequence);
  }

  // In the order in which they came.
  attempts() {
    return [...new Set([...this.bySequence.values()].map((step) => step.attempt ?? '').filter((attempt) => attempt !== ''))];
  }

  get size() {
    return this.bySequence.size;
  }

  // The least step; steps of several attempts do not come in the order of their sequence.
  firstStep() {
    let least = Infinity;
    for (const step of this.bySequence.values()) least = Math.min(least, Number(step.step ?? 0));
    return least === Infinity ? 0 : least;
  }

  // Columns for plotting over rising steps: `current` is the newest attempt, `earlier` what attempts before it had at the same step. A resumed
  // job goes back in steps: both stay visible, and the curves never run backwards.
  table(attempt, fields) {
    const rows = new Map();
    for (const step of this.bySequence.values()) {
      const at = Number(step.step ?? 0);
      if (!rows.has(at)) rows.set(at, {});
      rows.get(at)[(step.attempt ?? '') === attempt ? 'current' : 'earlier'] = step;
    }
    const steps = [...rows.keys()].sort((a, b) => a - b);
    const result = {steps, current: {}, earlier: {}, band: {}, nonfinite: [], hasEarlier: false};
    for (const which of ['current', 'earlier']) {
      for (const field of fields) result[which][field] = steps.map((at) => plottable(number(rows.get(at)[which]?.[field])));
    }
    for (const field of RANK_FIELDS) {
      const spans = steps.map((at) => spanOverRanks(rows.get(at).current, field));
      if (spans.some((span) => span !== null)) result.band[field] = {low: spans.map((span) => span?.[0] ?? null), high: spans.map((span) => span?.[1] ?? null)};
    }
    for (const at of steps) {
      const {current, earlier} = rows.get(at);
      if (earlier) result.hasEarlier = true;
      if (current && isNonfinite(current)) result.nonfinite.push(at);
    }
    return result;
  }
}

// What single ranks have of a step.
const RANK_FIELDS = ['lossNats', 'gradNorm', 'maxAbsLogit'];

// [least, most] over the ranks of a step; null with fewer than two.
function spanOverRanks(step, field) {
  const values = (step?.rankSteps ?? []).map((rank) => plottable(number(rank[field]))).filter((value) => value !== null);
  return values.length < 2 ? null : [Math.min(...values), Math.max(...values)];
}

// A gap in the curve: what is not finite is marked, never drawn as a value.
function plottable(value) {
  return value === null || !Number.isFinite(value) ? null : value;
}

export function isNonfinite(step) {
  if (Number(step.nonfiniteRows ?? 0) > 0 || Number(step.nonfiniteGradRows ?? 0) > 0) return true;
  return ['lossNats', 'gradNorm'].some((field) => step[field] !== undefined && !Number.isFinite(Number(step[field])));
}
