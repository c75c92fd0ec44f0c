// The verdict of the run: what to do, why, until when, and on what evidence. Never coloured as good without fresh data.
import {byId, element, setText, verdictIcon} from './dom.js';
import {actionOf, clock, durationSeconds, evidenceText, integer, number, span} from './format.js';
import {termMs} from './freshness.js';

const LONG_TEXT = 40;  // characters: beyond them a fact gets more than one column

export class VerdictView {
  constructor() {
    this.root = byId('verdict');
    this.head = element('div', {class: 'verdict-head'});
    this.facts = element('dl', {class: 'facts'});
    this.root.append(this.head, this.facts);
    this.announced = '';
    this.headKey = '';
  }

  clear() {
    this.announced = '';
  }

  // `state`: {run, verdict, arrival, freshness, details}
  update({run, verdict, arrival, freshness, details}) {
    const action = freshness.fresh ? actionOf(verdict) : 'UNKNOWN';
    const ageSeconds = arrival ? arrival.age() / 1000 : null;
    this.root.className = `verdict tone-${action.toLowerCase()}`;
    this.drawHead(run, verdict, freshness, action, details);
    this.drawFacts(verdict, freshness, ageSeconds, details);
    this.showStale(verdict, freshness, ageSeconds);
    this.announce(run, verdict, freshness, action);
  }

  drawHead(run, verdict, freshness, action, details) {
    const key = JSON.stringify([run, action, verdict?.reason, verdict?.reasonCodes, verdict?.mode, freshness.fresh, details?.phase, details?.ended]);
    if (key === this.headKey) return;  // so that a selection of the text survives the ticking of the age
    this.headKey = key;
    const before = freshness.fresh || !verdict ? '' : `last known: ${actionOf(verdict)}`;
    const codes = element('ul', {class: 'codes', 'aria-label': 'Reason codes'});
    for (const code of verdict?.reasonCodes ?? []) codes.append(element('li', {}, code));
    const state = details?.ended ? 'ended' : details?.phase ? `phase: ${details.phase}` : '';
    this.head.replaceChildren(
      element('h2', {id: 'run-name', class: 'run-title'}, run === '' ? '(no name)' : run),
      element('p', {class: 'run-state'}, state.replaceAll('_', ' '), verdict?.mode === 'shadow' ? ' · shadow: judged and shown, alerts stay calm' : ''),
      element('p', {class: 'action'}, verdictIcon(action), element('span', {class: 'action-word'}, action),
        before ? element('span', {class: 'action-before'}, before) : null),
      element('p', {class: 'reason'}, verdict ? verdict.reason ?? '' : 'Waiting for the first verdict.'),
      codes);
  }

  drawFacts(verdict, freshness, ageSeconds, details) {
    const rows = [];
    const add = (name, text, wide = false) => rows.push([name, text, wide]);
    if (verdict) {
      const stepAge = durationSeconds(verdict.lastStepAge);
      const last = number(verdict.lastStep);
      if (last !== null) add('Last step', `${integer(last)}${stepAge === null ? '' : `, ${span(stepAge + ageSeconds)} old`}`);
      const left = termMs(verdict) / 1000 - ageSeconds;
      add('Verdict', `${span(ageSeconds)} old, ${left > 0 ? `valid ${span(left)} more` : `expired ${span(-left)} ago`}`);
      add('Valid until', clock(verdict.validUntil));
      this.addAdvice(verdict, add);
      if (verdict.escalates) add('Escalates', verdict.escalates, true);
      if (verdict.since) add('Since', clock(verdict.since));
      this.addEvidence(verdict, ['last_step_age'], add);  // stands above, and goes on
    }
    if (details?.lastCheckpointPath || details?.lastCheckpointStep !== undefined) {
      add('Newest checkpoint', `step ${integer(details.lastCheckpointStep ?? 0)}  ${details.lastCheckpointPath ?? ''}`, true);
    }
    if (details?.evaluationLossNats !== undefined) {
      add('Evaluation', `${Number(details.evaluationLossNats).toFixed(4)} nats/token at step ${integer(details.evaluationStep ?? 0)}`);
    }
    if (details?.attempt) add('Attempt', `${details.attempt}${(details.attempts?.length ?? 0) > 1 ? ` (${details.attempts.length} so far)` : ''}`);
    const compared = details?.attempts?.at(-1)?.comparison;
    if (compared?.text) add('Resumed', compared.text, true);
    if (verdict?.policyVersion) add('Policy', `${verdict.policyVersion}, scope ${verdict.scope ?? 'local'}`);
    this.syncFacts(rows);
  }

  addAdvice(verdict, add) {
    if (verdict.resumePoint) add('Resume from', `step ${integer(verdict.resumePoint.step ?? 0)}  ${verdict.resumePoint.path ?? ''}`, true);
    if (verdict.skip) add('Skip steps', `${integer(verdict.skip.first ?? 0)} to ${integer(verdict.skip.last ?? 0)}`);
    if (verdict.lastGoodStep !== undefined) add('Last good step', integer(verdict.lastGoodStep));
    if (verdict.rankAtFault !== undefined) add('Rank at fault', String(verdict.rankAtFault));
  }

  addEvidence(verdict, leftOut, add) {
    for (const one of verdict.evidence ?? []) {
      if (leftOut.includes(one.name)) continue;
      const text = withoutReason(evidenceText(one), verdict.reason ?? '');
      add((one.name ?? '').replaceAll('_', ' '), text, text.length > LONG_TEXT);
    }
  }

  // Rewrites only what differs: the ages tick every second.
  syncFacts(rows) {
    while (this.facts.children.length > rows.length) this.facts.lastChild.remove();
    rows.forEach(([name, text, wide], index) => {
      let row = this.facts.children[index];
      if (!row) {
        row = element('div', {}, element('dt'), element('dd'));
        this.facts.append(row);
      }
      row.className = wide ? text.length > 2 * LONG_TEXT ? 'full' : 'wide' : '';
      setText(row.firstChild, name);
      setText(row.lastChild, text);
    });
  }

  showStale(verdict, freshness, ageSeconds) {
    const banner = byId('stale');
    banner.hidden = freshness.fresh;
    if (freshness.fresh) return;
    // The age is in whole tens, so that the alert is not read out anew each second.
    const age = ageSeconds === null ? '' : `; last heard ${span(Math.floor(ageSeconds / 10) * 10 || 1).replace('.0', '')} ago`;
    setText(banner, verdict ? `Data stale: ${freshness.why}${age}. What stands below is the last known state.` : `No data: ${freshness.why}.`);
  }

  announce(run, verdict, freshness, action) {
    if (!verdict) return;
    const now = `${run}\n${action}`;
    if (now === this.announced) return;
    const first = this.announced === '';
    this.announced = now;
    if (first && action === 'CONTINUE') return;
    setText(byId('announcement'), `${run}: verdict ${action}. ${freshness.fresh ? verdict.reason ?? '' : freshness.why}`);
  }
}

// An incident whose summary the reason begins with is named only: "ID divergence: Loss left ..." becomes "ID divergence".
function withoutReason(text, reason) {
  const colon = text.indexOf(': ');
  return colon > 0 && reason.startsWith(text.slice(colon + 2)) ? text.slice(0, colon) : text;
}
