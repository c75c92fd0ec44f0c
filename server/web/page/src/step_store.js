// Steps of one run in the order of their sequence, each once, however often and from wherever they arrive.
import {number} from './format.js';

const KEPT = 20_000;

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
      if (this.bySequence.has(sequence)) continue;
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
    const result = {steps, current: {}, earlier: {}, nonfinite: [], hasEarlier: false};
    for (const which of ['current', 'earlier']) {
      for (const field of fields) result[which][field] = steps.map((at) => plottable(number(rows.get(at)[which]?.[field])));
    }
    for (const at of steps) {
      const {current, earlier} = rows.get(at);
      if (earlier) result.hasEarlier = true;
      if (current && isNonfinite(current)) result.nonfinite.push(at);
    }
    return result;
  }
}

// A gap in the curve: what is not finite is marked, never drawn as a value.
function plottable(value) {
  return value === null || !Number.isFinite(value) ? null : value;
}

export function isNonfinite(step) {
  if (Number(step.nonfiniteRows ?? 0) > 0 || Number(step.nonfiniteGradRows ?? 0) > 0) return true;
  return ['lossNats', 'gradNorm'].some((field) => step[field] !== undefined && !Number.isFinite(Number(step[field])));
}
