// How a run of the past ended, and what was last thought of it. Never coloured as good: that was then.
import {byId, element, verdictIcon} from './dom.js';
import {actionOf, clock, integer, number} from './format.js';

const NAMED_ATTEMPTS = 5;
const OF_ITS_TIME = ['last_step_age', 'fresh_limit'];  // evidence of how fresh a verdict was when it was given

export class PastVerdict {
  constructor(verdictView) {
    this.view = verdictView;
  }

  // `state`: that of storyOf(), and {run, lastStep, lastWrite}
  update(state) {
    const key = JSON.stringify(state);
    if (key === this.view.headKey) return;
    this.view.headKey = key;
    byId('verdict').className = 'verdict tone-unknown';
    this.drawHead(state);
    this.drawFacts(state);
  }

  drawHead({run, ended, judged, said, lastStep, lastWrite}) {
    const action = actionOf(judged ?? undefined);
    const tone = judged && action !== 'CONTINUE' ? `tone-${action.toLowerCase()}` : 'tone-unknown';
    const codes = element('ul', {class: 'codes', 'aria-label': 'Reason codes'}, ...(judged?.reasonCodes ?? []).map((code) => element('li', {}, code)));
    const last = ended?.lastStep ?? lastStep?.step;
    const after = last === undefined ? '' : ` after step ${integer(last)}`;
    const how = ended ? `The run ended cleanly${after}${said.length > 0 ? `, and said: ${said.map((text) => `“${text}”`).join(', ')}` : ''}.`
      : `No clean end of it is known: nothing was heard any more${after}.`;
    this.view.head.replaceChildren(
      element('h2', {id: 'run-name', class: 'run-title'}, run === '' ? '(no name)' : run),
      element('p', {class: 'run-state'}, 'Of the past', lastWrite ? ` · last written ${clock(lastWrite)}` : ''),
      element('p', {class: 'action'}, element('span', {class: 'action-word'}, ended ? 'ENDED' : 'PAST')),
      element('p', {class: 'reason'}, how),
      judged ? element('p', {class: `past-judged ${tone}`}, verdictIcon(action), element('span', {class: 'past-action'}, `Last verdict: ${action}`)) : null,
      element('p', {class: 'past-reason'}, judged ? judged.reason ?? '' : 'No verdict of it is kept.'),
      codes);
  }

  drawFacts({ended, judged, lastStep, checkpoint, evaluation, attempts}) {
    const rows = [];
    const add = (name, text, wide = false) => rows.push([name, text, wide]);
    if (lastStep) add('Last step', `${integer(lastStep.step ?? 0)}, ${clock(lastStep.receiveTime)}`);
    if (ended) add('Ended', clock(ended.since ?? ended.evaluatedAt));
    if (judged) {
      add('Last verdict', `${actionOf(judged)}, given ${clock(judged.evaluatedAt)}`);
      this.view.addAdvice({...judged, lastGoodStep: ended?.lastGoodStep ?? judged.lastGoodStep}, add);
      this.view.addEvidence(judged, OF_ITS_TIME, add);
    }
    if (checkpoint) add('Newest checkpoint', `step ${integer(checkpoint.step ?? 0)}  ${checkpoint.text ?? ''}`, true);
    if (evaluation) add('Evaluation', `${(number(evaluation.value) ?? 0).toFixed(4)} nats/token${evaluation.step === undefined ? '' : ` at step ${integer(evaluation.step)}`}`);
    if (attempts.length > 0) {
      const more = attempts.length > NAMED_ATTEMPTS ? ` (the newest of ${attempts.length})` : '';
      add(attempts.length > 1 ? 'Attempts' : 'Attempt', `${attempts.slice(-NAMED_ATTEMPTS).join(', ')}${more}`, attempts.length > 1);
    }
    if (judged?.policyVersion) add('Policy', `${judged.policyVersion}, scope ${judged.scope ?? 'local'}`);
    this.view.syncFacts(rows);
  }
}
