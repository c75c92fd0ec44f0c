// One row a rank: is it alive, where does it stand, what was lost of it. Ranks in trouble first; the healthy rest is cut when there are many.
import {byId, element, setText} from './dom.js';
import {MISSING, integer, span, timeMs} from './format.js';

const SHOWN = 64;
const TROUBLE = ['lost', 'frozen', 'missing'];

export class RankTable {
  constructor() {
    this.root = byId('ranks');
    this.shown = '';
  }

  // `missing`: ranks that the last step lacked. Ages are told in the server's time, `serverNowMs`.
  update(details, lastStep, serverNowMs) {
    const producers = details?.producers ?? [];
    const missing = new Set((lastStep?.missingRanks ?? []).map(Number));
    const rows = producers.map((producer) => row(producer, missing, serverNowMs));
    const troubled = (one) => (TROUBLE.includes(one.state) || one.behind ? 0 : 1);
    rows.sort((a, b) => troubled(a) - troubled(b) || a.rank - b.rank);
    const shown = JSON.stringify(rows);
    if (shown === this.shown) return;
    this.shown = shown;
    const world = details?.layout?.worldSize;
    const axes = layoutText(details?.layout);
    setText(byId('ranks-note'), producers.length === 0 ? '' : `${producers.length}${world ? ` of ${world}` : ''} seen here${axes}`);
    if (rows.length === 0) {
      this.root.replaceChildren(element('p', {class: 'plain'}, 'No rank seen yet.'));
      return;
    }
    const head = ['Rank', 'State', 'Step', 'Last call', 'Lost', 'Heard'].map((text) => element('th', {scope: 'col'}, text));
    const body = rows.slice(0, SHOWN).map((one) => element('tr', {class: `rank-${one.state}${one.behind ? ' behind' : ''}`},
      element('th', {scope: 'row'}, String(one.rank)),
      element('td', {class: 'rank-state'}, one.behind ? `${one.state}, behind` : one.state),
      element('td', {}, one.step), element('td', {}, one.call), element('td', {}, one.lost), element('td', {}, one.heard)));
    this.root.replaceChildren(element('table', {},
      element('caption', {class: 'visually-hidden'}, 'Ranks of the newest attempt'),
      element('thead', {}, element('tr', {}, ...head)), element('tbody', {}, ...body)));
    if (rows.length > SHOWN) this.root.append(element('p', {class: 'plain'}, `and ${rows.length - SHOWN} more`));
  }
}

function row(producer, missing, serverNowMs) {
  const heard = timeMs(producer.lastRecordTime);
  const published = Number(producer.publishedStep ?? -1);  // -1 = none yet
  const entered = Number(producer.enteredStep ?? -1);
  const shown = published < 0 ? MISSING : integer(published);
  return {
    rank: Number(producer.rank ?? 0),
    state: producer.state || 'unknown',
    behind: missing.has(Number(producer.rank ?? 0)),
    // Entered but not published: where a hang shows.
    step: entered > published ? `${shown} (in ${integer(entered)})` : shown,
    call: producer.lastCall || MISSING,
    lost: integer(producer.recordsLost ?? 0),
    heard: heard === null || serverNowMs === null ? MISSING : `${span((serverNowMs - heard) / 1000)} ago`,
  };
}

function layoutText(layout) {
  if (!layout) return '';
  const axes = [['dp', layout.dataParallel], ['tp', layout.tensorParallel], ['pp', layout.pipelineParallel],
    ['cp', layout.contextParallel], ['ep', layout.expertParallel]];
  const used = axes.filter(([, size]) => Number(size ?? 1) > 1).map(([name, size]) => `${name} ${size}`);
  return used.length === 0 ? '' : ` · ${used.join(', ')}`;
}
