// Runs that only the history knows, newest first, below the live ones: folded away, searched by name, and no more of them at a time than can be read.
import {getJson} from './api.js';
import {byId, element, setText} from './dom.js';
import {clock, integer} from './format.js';
import {hashOf, walkRuns} from './run_list.js';

const REFRESH_MS = 30_000;  // reads the history, and changes slowly
const SHOWN = 50;
const MOST_LISTED = 1_000;  // the server names no more

export class PastRuns {
  constructor(onChosen, onUpdate) {
    Object.assign(this, {onUpdate, all: [], live: [], shown: '', opened: false});
    this.section = byId('past');
    this.list = byId('past-runs');
    this.filter = byId('past-filter');
    this.filter.addEventListener('input', () => this.draw());
    this.section.addEventListener('keydown', (event) => walkRuns(event, [this.filter, ...this.list.querySelectorAll('a')], onChosen));
    this.refresh();
  }

  async refresh() {
    clearTimeout(this.timer);
    const asked = this.asked = {};
    try {
      const {pastRuns = []} = await getJson('/api/v1/runs', {include_past: true});
      if (asked === this.asked) this.all = pastRuns;
    } catch {
      // What was listed stays: the history may be busy, and the runs have not gone.
    }
    if (asked !== this.asked) return;  // another was begun meanwhile
    this.timer = setTimeout(() => this.refresh(), REFRESH_MS);
    this.onUpdate();
  }

  // Those of them that have not come to life again.
  names() {
    return this.all.map((run) => run.run ?? '').filter((name) => !this.live.includes(name));
  }

  has(name) {
    return this.names().includes(name);
  }

  lastWriteOf(name) {
    return this.all.find((run) => (run.run ?? '') === name)?.lastWriteTime;
  }

  // `live`: names; null = not known yet.
  update(live, selected) {
    this.live = live ?? [];
    this.selected = selected;
    const names = this.names();
    this.section.hidden = names.length === 0;
    setText(byId('past-count'), names.length < MOST_LISTED ? integer(names.length) : `the newest ${integer(names.length)}`);
    // With nothing live it is what there is to see; who closes it then has closed it.
    if (live?.length === 0 && names.length > 0 && !this.opened) this.section.open = this.opened = true;
    this.draw();
  }

  draw() {
    const wanted = this.filter.value.trim().toLowerCase();
    const found = this.all.filter(({run = ''}) => !this.live.includes(run) && run.toLowerCase().includes(wanted));
    const listed = found.slice(0, SHOWN);
    setText(byId('past-note'), found.length === 0 ? 'None of that name.' : found.length > SHOWN ? `The newest ${SHOWN} of ${integer(found.length)}. Find others by name.` : '');
    const shown = JSON.stringify(listed);
    if (shown !== this.shown) {
      this.shown = shown;
      const focused = document.activeElement?.closest?.('#past-runs li')?.dataset.run;
      this.list.replaceChildren(...listed.map(({run = '', lastWriteTime}) => element('li', {'data-run': run}, element('a', {href: hashOf(run), title: run},
        element('span', {class: 'run-name'}, run || '(no name)'), element('span', {class: 'run-written'}, clock(lastWriteTime))))));
      if (focused !== undefined) [...this.list.children].find((entry) => entry.dataset.run === focused)?.firstChild.focus({preventScroll: true});
    }
    for (const entry of this.list.children) {
      if (entry.dataset.run === this.selected) entry.firstChild.setAttribute('aria-current', 'page');
      else entry.firstChild.removeAttribute('aria-current');
    }
  }
}
