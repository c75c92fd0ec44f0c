// One square a rank, so that a thousand fit: who is late, who is off, who is gone. A sign and a word for each state, never colour alone.
import {byId, element} from './dom.js';
import {integer, number, significant} from './format.js';

// Worst first: a rank has the first that fits.
const STATES = {
  lost: {sign: '✕', words: 'process gone'},
  off: {sign: '≠', words: 'named by an open incident'},
  frozen: {sign: '❙❙', words: 'heartbeat stopped'},
  missing: {sign: '?', words: 'no record of the last step'},
  late: {sign: '‹', words: 'behind the others'},
  ended: {sign: '–', words: 'ended'},
  well: {sign: '', words: 'with the others'},
};
const LATE_STEPS = 2;  // one is no news: ranks are seen one after the other
const OF_ITS_PROCESS = ['producer_lost', 'frozen', 'rank_missing', 'stall', 'no_first_step', 'slowdown'];  // conditions that have a state of their own, or none

export class RankGrid {
  constructor() {
    this.root = byId('rank-grid');
    this.shown = '';
  }

  // `rankSteps`: what single ranks had of the last step, if known.
  update(details, lastStep, rankSteps, incidents) {
    const producers = details?.producers ?? [];
    const furthest = Math.max(-1, ...producers.map((producer) => Number(producer.publishedStep ?? -1)));
    const missing = new Set((lastStep?.missingRanks ?? []).map(Number));
    const named = new Set(incidents.filter((one) => one.open && one.rank !== undefined && !OF_ITS_PROCESS.includes(one.condition)).map((one) => Number(one.rank)));
    const late = new Set(incidents.filter((one) => one.open && one.rank !== undefined && ['stall', 'slowdown'].includes(one.condition)).map((one) => Number(one.rank)));
    const losses = new Map((rankSteps ?? []).map((one) => [Number(one.rank ?? 0), number(one.lossNats)]));
    const middle = median([...losses.values()].filter((loss) => loss !== null && Number.isFinite(loss)));
    const cells = producers.map((producer) => {
      const rank = Number(producer.rank ?? 0);
      const behind = furthest - Number(producer.publishedStep ?? -1);
      const state = producer.state === 'lost' || producer.state === 'frozen' ? producer.state : named.has(rank) ? 'off' : missing.has(rank) ? 'missing'
        : producer.state === 'ended' ? 'ended' : late.has(rank) || behind >= LATE_STEPS ? 'late' : 'well';
      const loss = losses.get(rank) ?? null;
      const parts = [`rank ${rank}: ${STATES[state].words}`];
      if (behind > 0) parts.push(`${integer(behind)} ${behind === 1 ? 'step' : 'steps'} behind`);
      if (loss !== null) parts.push(`loss ${significant(loss)}${middle === null || !Number.isFinite(loss) ? '' : `, ${significant(loss - middle)} from the median`}`);
      return {rank, state, words: parts.join(', ')};
    }).sort((a, b) => a.rank - b.rank);
    const shown = JSON.stringify(cells);
    if (shown === this.shown) return;
    this.shown = shown;
    this.root.replaceChildren(...cells.map(({rank, state, words}) => element('li', {class: `cell cell-${state}`, title: words, 'data-rank': rank, 'data-state': state},
      element('span', {'aria-hidden': 'true'}, `${rank}${STATES[state].sign}`), element('span', {class: 'visually-hidden'}, words))));
    this.root.hidden = cells.length === 0;
  }
}

function median(values) {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
