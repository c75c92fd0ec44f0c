// The list of runs, worst verdict first. Arrow keys walk through it; each entry is a link that can be kept and sent.
import {byId, element, setText, verdictIcon} from './dom.js';
import {ACTIONS, actionOf, integer} from './format.js';

export const hashOf = (run) => `#/run/${encodeURIComponent(run)}`;

// The run a hash names, null for none or for one that is no valid encoding.
export function runOfHash(hash) {
  const match = /^#\/run\/(.*)$/s.exec(hash);
  if (!match) return null;
  try {
    return decodeURIComponent(match[1]);
  } catch {
    return null;
  }
}

// An ended run is at rest: it comes last, whatever its verdict was.
export function worstFirst(runs) {
  const rank = (run) => (run.ended ? ACTIONS.length : 0) + ACTIONS.indexOf(actionOf(run.verdict));
  return [...runs].sort((a, b) => rank(a) - rank(b) || ((a.run ?? '') < (b.run ?? '') ? -1 : 1));
}

export class RunList {
  constructor(onChosen) {
    this.list = byId('runs');
    this.entries = new Map();
    this.list.addEventListener('keydown', (event) => walkRuns(event, [...this.list.querySelectorAll('a')], onChosen));
  }

  // `believed`: false while nothing fresh comes in; then no entry shows a verdict as if it still held.
  update(runs, selected, believed) {
    const sorted = worstFirst(runs);
    const focused = document.activeElement?.closest?.('#runs li')?.dataset.run;
    for (const [name, entry] of this.entries) {
      if (!sorted.some((run) => (run.run ?? '') === name)) {
        entry.remove();
        this.entries.delete(name);
      }
    }
    sorted.forEach((run, index) => {
      const name = run.run ?? '';
      if (!this.entries.has(name)) this.entries.set(name, makeEntry(name));
      const entry = this.entries.get(name);
      fillEntry(entry, run, name === selected, believed);
      if (this.list.children[index] !== entry) this.list.insertBefore(entry, this.list.children[index] ?? null);
    });
    if (focused !== undefined && this.entries.has(focused)) this.linkOf(this.entries.get(focused)).focus({preventScroll: true});
    byId('runs-empty').hidden = sorted.length > 0;
  }

  linkOf(entry) {
    return entry.querySelector('a');
  }
}

// Arrow keys, Home and End over what stands in a list: links to runs, and a field to find them by, in which Home and End are its own.
export function walkRuns(event, stops, onChosen) {
  const at = stops.indexOf(document.activeElement);
  const inField = document.activeElement instanceof HTMLInputElement;
  const target = {ArrowDown: at + 1, ArrowUp: at - 1, ...(!inField && {Home: 0, End: stops.length - 1})}[event.key];
  if (at < 0 || target === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const stop = stops[Math.min(Math.max(target, 0), stops.length - 1)];
  stop.focus();
  if (stop.closest('li')) onChosen(stop.closest('li').dataset.run);
}

function makeEntry(name) {
  const link = element('a', {href: hashOf(name), title: name},
    element('span', {class: 'run-icon'}),
    element('span', {class: 'run-name'}, name === '' ? '(no name)' : name),
    element('span', {class: 'run-verdict'}),
    element('span', {class: 'run-step'}));
  return element('li', {'data-run': name}, link);
}

function fillEntry(entry, run, selected, believed) {
  const action = believed ? actionOf(run.verdict) : 'UNKNOWN';
  const link = entry.querySelector('a');
  const shown = `${action} ${run.ended}`;
  if (entry.dataset.shown !== shown) {
    entry.dataset.shown = shown;
    entry.className = `tone-${action.toLowerCase()}${run.ended ? ' ended' : ''}`;
    entry.querySelector('.run-icon').replaceChildren(verdictIcon(action));
  }
  if (selected) link.setAttribute('aria-current', 'page');
  else link.removeAttribute('aria-current');
  setText(entry.querySelector('.run-verdict'), run.ended ? 'ended' : action);
  setText(entry.querySelector('.run-step'), run.lastStep ? `step ${integer(run.lastStep.step ?? 0)}` : 'no step');
}
