// Incidents of the run, newest first, with the numbers that stand on the curves.
import {byId, element, setText} from './dom.js';
import {SEVERITIES, clock, conditionText, evidenceText, integer, severityOf} from './format.js';

const SHOWN = 50;

// Numbered by onset: those on the curves rise from left to right.
export function numbered(incidents) {
  const ordered = [...incidents].sort((a, b) => Number(a.onsetStep ?? 0) - Number(b.onsetStep ?? 0) || ((a.id ?? '') < (b.id ?? '') ? -1 : 1));
  return ordered.map((incident, index) => ({...incident, number: index + 1}));
}

export class IncidentList {
  // `explain` gives a promise of the server's explanation of an incident.
  constructor(onChosen, explain) {
    this.root = byId('incidents');
    this.onChosen = onChosen;
    this.explain = explain;
    this.shown = '';
  }

  update(incidents) {
    const shown = JSON.stringify(incidents);
    if (shown === this.shown) return;
    this.shown = shown;
    const open = incidents.filter((incident) => incident.open && !incident.hiddenBy).length;
    setText(byId('incidents-note'), incidents.length === 0 ? '' : `${open} open, ${incidents.length} in all`);
    const expanded = new Set([...this.root.querySelectorAll('details[open]')].map((one) => one.dataset.id));
    const focused = document.activeElement?.closest?.('#incidents details')?.dataset.id;
    const urgency = (incident) => (incident.open ? 0 : 10) + (incident.hiddenBy ? 5 : 0) + SEVERITIES.indexOf(severityOf(incident));
    const ordered = [...incidents].sort((a, b) => urgency(a) - urgency(b) || b.number - a.number).slice(0, SHOWN);
    this.root.replaceChildren(...ordered.map((incident) => this.entry(incident, incidents, expanded.has(incident.id))));
    if (ordered.length === 0) this.root.append(element('li', {class: 'plain'}, 'None.'));
    for (const details of this.root.querySelectorAll('details')) {
      if (details.dataset.id === focused) details.querySelector('summary').focus({preventScroll: true});
    }
  }

  // The story as the server tells it; what the list shows anyway is not told again.
  async tell(incident, story) {
    try {
      const {parts = []} = await this.explain(incident);
      const told = parts.filter((part) => part.title !== 'Evidence');
      story.replaceChildren(...told.map((part) => element('section', {}, element('h4', {}, part.title),
        ...(part.lines ?? []).map((line) => element('p', {}, line)))));
    } catch (error) {
      if (error.name !== 'AbortError') story.replaceChildren(element('p', {class: 'plain'}, 'No explanation could be had.'));
    }
  }

  entry(incident, all, expanded) {
    const severity = severityOf(incident);
    const first = Number(incident.onsetStep ?? 0);
    const last = Number(incident.lastStep ?? first);
    const where = first === last ? `step ${integer(first)}` : `steps ${integer(first)} to ${integer(last)}`;
    const root = all.find((one) => one.id === incident.hiddenBy);
    const states = [
      incident.open ? 'open' : 'resolved',
      incident.hiddenBy ? `symptom of ${root ? `#${root.number}` : incident.hiddenBy}` : '',
      incident.acknowledged ? `acknowledged by ${incident.acknowledgedBy || 'someone'}` : incident.open ? 'not acknowledged' : '',
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
    const show = element('button', {type: 'button'}, 'Show on the curves');
    show.addEventListener('click', () => this.onChosen(first, last));
    const story = element('div', {class: 'incident-story'});
    const details = element('details', {'data-id': incident.id, open: expanded}, summary,
      element('p', {class: 'incident-summary'}, incident.summary ?? ''), facts, story, show);
    details.addEventListener('toggle', () => {
      if (details.open) this.tell(incident, story);
    });
    const tone = `severity-${severity.toLowerCase()}${incident.open ? '' : ' resolved'}${incident.hiddenBy ? ' symptom' : ''}`;
    return element('li', {class: tone}, details);
  }
}
