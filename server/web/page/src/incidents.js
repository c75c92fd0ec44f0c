// Incidents of the run, newest first, with the numbers that stand on the curves.
import {byId, element, setText} from './dom.js';
import {SEVERITIES, clock, conditionText, evidenceText, integer, severityOf} from './format.js';
import {runbookOf} from './runbooks.js';

const SHOWN = 50;
const OPEN_TO_THE_END = 'open at the end';  // of a run of the past: nobody watches it any more

// Numbered by onset: those on the curves rise from left to right.
export function numbered(incidents) {
  const ordered = [...incidents].sort((a, b) => Number(a.onsetStep ?? 0) - Number(b.onsetStep ?? 0) || ((a.id ?? '') < (b.id ?? '') ? -1 : 1));
  return ordered.map((incident, index) => ({...incident, number: index + 1}));
}

// What the server's story of an incident depends on; its numbers go on changing while it is open.
const substance = ({condition, kind, severity, open, hiddenBy, acknowledged, acknowledgedBy, acknowledgedComment, onsetStep, resolvedTime, rank}) =>
  JSON.stringify([condition, kind, severity, open, hiddenBy, acknowledged, acknowledgedBy, acknowledgedComment, onsetStep, resolvedTime, rank]);

export class IncidentList {
  // `explain` gives a promise of the server's explanation of an incident.
  constructor(onChosen, explain) {
    this.root = byId('incidents');
    this.onChosen = onChosen;
    this.explain = explain;
    this.shown = '';
    this.entries = new Map();  // of those shown, by run and id: {incident, shown, item, details, story: {node, told}}
  }

  update(incidents) {
    const shown = JSON.stringify(incidents);
    if (shown === this.shown) return;
    this.shown = shown;
    const open = incidents.filter((incident) => incident.open && !incident.hiddenBy);
    setText(byId('incidents-note'), incidents.length === 0 ? '' : `${open.length} ${open.some((incident) => incident.past) ? OPEN_TO_THE_END : 'open'}, ${incidents.length} in all`);
    const focused = document.activeElement?.closest?.('#incidents details')?.dataset.id;
    const urgency = (incident) => (incident.open ? 0 : 10) + (incident.hiddenBy ? 5 : 0) + SEVERITIES.indexOf(severityOf(incident));
    const ordered = [...incidents].sort((a, b) => urgency(a) - urgency(b) || b.number - a.number).slice(0, SHOWN);
    const before = this.entries;
    this.entries = new Map();
    for (const incident of ordered) {
      const key = `${incident.run ?? ''}\n${incident.id}`;
      this.entries.set(key, this.renewed(before.get(key), incident, incidents));
    }
    const items = [...this.entries.values()].map((entry) => entry.item);
    if (items.length === 0) items.push(element('li', {class: 'plain'}, 'None.'));
    // What did not move stays where it is: focus, selection and the place read in it with it.
    if (items.length !== this.root.children.length || items.some((item, index) => item !== this.root.children[index])) this.root.replaceChildren(...items);
    for (const entry of this.entries.values()) {
      if (entry.details.dataset.id === focused && !entry.details.contains(document.activeElement)) {
        entry.details.querySelector('summary').focus({preventScroll: true});
      }
      if (entry.details.open) this.tell(entry);
    }
  }

  // The entry as it was where nothing of it changed; else a new one around the same story, open if it was.
  renewed(entry, incident, all) {
    const root = all.find((one) => one.id === incident.hiddenBy);
    const shown = JSON.stringify([incident, root?.number]);
    if (entry?.shown === shown) return entry;
    const next = {incident, shown, story: entry?.story ?? {node: element('div', {class: 'incident-story'}), told: ''}};
    this.build(next, root, entry?.details.open ?? false);
    return next;
  }

  // The story as the server tells it; what the list shows anyway is not told again. What was told stays until there is another.
  async tell({incident, story}) {
    const wanted = substance(incident);
    if (story.told === wanted) return;
    story.told = wanted;
    const say = (...nodes) => {
      if (story.told === wanted) story.node.replaceChildren(...nodes);
    };
    try {
      const {parts = []} = await this.explain(incident);
      const told = parts.filter((part) => part.title !== 'Evidence');
      say(...told.map((part) => element('section', {}, element('h4', {}, part.title), ...(part.lines ?? []).map((line) => element('p', {}, line)))));
    } catch (error) {
      if (error.name !== 'AbortError') say(element('p', {class: 'plain'}, 'No explanation could be had.'));
      if (story.told === wanted) story.told = '';  // asked again when it is opened again, or the list changes
    }
  }

  build(entry, root, expanded) {
    const {incident, story} = entry;
    const severity = severityOf(incident);
    const first = Number(incident.onsetStep ?? 0);
    const last = Number(incident.lastStep ?? first);
    const where = first === last ? `step ${integer(first)}` : `steps ${integer(first)} to ${integer(last)}`;
    const states = [
      !incident.open ? 'resolved' : incident.past ? OPEN_TO_THE_END : 'open',
      incident.hiddenBy ? `symptom of ${root ? `#${root.number}` : incident.hiddenBy}` : '',
      incident.acknowledged ? `acknowledged by ${incident.acknowledgedBy || 'someone'}` : incident.open && !incident.past ? 'not acknowledged' : '',
    ].filter((text) => text !== '');
    const summary = element('summary', {},
      element('span', {class: 'incident-number'}, String(incident.number)),
      element('span', {class: 'incident-title'}, conditionText(incident)),
      element('span', {class: 'incident-severity'}, severity.toLowerCase()),
      element('span', {class: 'incident-where'}, `${where} · ${states.join(' · ')}`));
    const facts = element('dl', {class: 'facts'});
    const add = (name, text) => facts.append(element('div', {}, element('dt', {}, name), element('dd', {}, text)));
    for (const one of incident.evidence ?? []) add((one.name ?? '').replaceAll('_', ' '), evidenceText(one));
    if (incident.rank !== undefined) add('rank', String(incident.rank));
    if (incident.peakStep !== undefined && Number(incident.peakStep) !== first) add('peak', `step ${integer(incident.peakStep)}`);
    if (incident.stepsToRecover !== undefined) add('recovered in', `${integer(incident.stepsToRecover)} steps`);
    add('began', clock(incident.onsetTime));
    if (incident.resolvedTime) add('resolved', clock(incident.resolvedTime));
    if (incident.acknowledged && incident.acknowledgedComment) add('comment', incident.acknowledgedComment);
    add('id', incident.id ?? '');
    if (incident.open && !incident.acknowledged && !incident.past) add('to acknowledge', `lossgaugectl ack ${incident.id ?? ''}`);
    const show = element('button', {type: 'button'}, 'Show on the curves');
    show.addEventListener('click', () => this.onChosen(first, last));
    const runbook = runbookOf(incident.condition ?? '');
    const link = element('a', {href: runbook.href}, `runbook ${runbook.name}`);
    const details = element('details', {'data-id': incident.id, open: expanded}, summary,
      element('p', {class: 'incident-summary'}, incident.summary ?? ''), facts, story.node, incident.condition ? element('p', {class: 'incident-runbook'}, 'What to do: ', link) : null, show);
    details.addEventListener('toggle', () => {
      if (details.open) this.tell(entry);
    });
    const tone = `severity-${severity.toLowerCase()}${incident.open ? '' : ' resolved'}${incident.hiddenBy ? ' symptom' : ''}`;
    entry.details = details;
    entry.item = element('li', {class: tone}, details);
  }
}
