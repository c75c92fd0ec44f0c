// "Compare runs": two runs side by side over time. Which steps saw the same targets only lossgauged knows: lossgaugectl compare, and the status page.
import dashboard from '@grafana/grafana-foundation-sdk/dashboard';
import {ACTION_COLOURS, BITS_PER_BYTE, NATS, NATS_PER_TOKEN, build, curve, number, page, row, runVariable, word, words} from './building_blocks.js';

// `shift` moves the second run's past under the first one's present; PromQL knows no offset of 0.
const ofA = (metric) => `max(lossgauge_run_${metric}{run="$run"})`;
const ofB = (metric) => `max(lossgauge_run_${metric}{run="$other"} offset $shift)`;
const rateA = (metric) => `sum(rate(lossgauge_run_${metric}_total{run="$run"}[$__rate_interval]))`;
const rateB = (metric) => `sum(rate(lossgauge_run_${metric}_total{run="$other"}[$__rate_interval] offset $shift))`;
const both = (a, b) => [[a, '$run'], [b, '$other']];
const ratios = (above, below) => both(`${rateA(above)} / (${rateA(below)} > 0)`, `${rateB(above)} / (${rateB(below)} > 0)`);
const verdict = (title, variable) => word({
  title, description: 'What lossgauged advises now.', width: 6, colours: ACTION_COLOURS, queries: [[`max by (action) (lossgauge_verdict{run="${variable}"}) == 1`, '{{action}}']]});

export function compareRuns() {
  const builder = page('Compare runs', 'compare-runs', 'Two runs over the same time, or one against another\'s past. For a comparison step by step, with a confidence band: lossgaugectl compare A B, or the status page.')
    .withVariable(runVariable())
    .withVariable(runVariable('other', 'Other run'))
    .withVariable(new dashboard.TextBoxVariableBuilder('shift').label('Other run, shifted by').defaultValue('1s'));

  builder
    .withRow(row('May they be compared?'))
    .withPanel(verdict('Verdict of $run', '$run'))
    .withPanel(verdict('Verdict of $other', '$other'))
    .withPanel(number({
      title: 'Vocabulary', unit: 'none', width: 6, description: 'Nats per token are comparable only over one vocabulary; bits per byte over any.',
      queries: [[`${ofA('vocab_size')} == bool ${ofB('vocab_size')}`, 'same']]}).mappings(words({0: ['differs: compare bits per byte', 'orange'], 1: ['the same size', 'green']})))
    .withPanel(number({
      title: 'Tokens a step', unit: 'none', width: 6,
      description: 'Whether both count equally many tokens a step, within 1 %. Necessary, not sufficient: that the targets were the same is seen by their fingerprints, which lossgaugectl compare looks at.',
      queries: [[`abs(${ofA('step_unmasked_tokens')} / ${ofB('step_unmasked_tokens')} - 1) < bool 0.01`, 'same']]})
      .mappings(words({0: ['not comparable: counts differ', 'red'], 1: ['counts agree', 'green']})))
    .withPanel(curve({
      title: 'Step', unit: 'locale', min: 0, description: 'Where each run stands.', queries: both(ofA('step'), ofB('step'))}))
    .withPanel(curve({
      title: 'Tokens of a step that count', unit: 'suffix: tokens', min: 0, description: 'Unequal: another batch size, another mask or other data.',
      queries: both(ofA('step_unmasked_tokens'), ofB('step_unmasked_tokens'))}))
    .withPanel(curve({
      title: 'Difference of the losses', unit: NATS_PER_TOKEN, description: '$run less $other, each a ratio of sums over the interval. It says nothing where counts differ or steps lie apart.',
      queries: [[`${rateA('nll_nats')} / (${rateA('finite_tokens')} > 0) - ${rateB('nll_nats')} / (${rateB('finite_tokens')} > 0)`, '$run less $other']]}));

  builder
    .withRow(row('Side by side'))
    .withPanel(curve({title: 'Loss', unit: NATS_PER_TOKEN, width: 12, description: 'Over the interval: sum of the negative log-likelihood by finite tokens.', queries: ratios('nll_nats', 'finite_tokens')}))
    .withPanel(curve({title: 'Perplexity', unit: 'none', log: true, width: 12, description: 'exp of the loss of the last step.', queries: both(ofA('perplexity'), ofB('perplexity'))}))
    .withPanel(curve({title: 'Bits per byte', unit: BITS_PER_BYTE, description: 'Of the last step. Comparable between tokenizers.', queries: both(ofA('bits_per_byte'), ofB('bits_per_byte'))}))
    .withPanel(curve({title: 'Gradient norm', unit: 'none', log: true, description: 'As the jobs handed it over.', queries: both(ofA('grad_norm'), ofB('grad_norm'))}))
    .withPanel(curve({title: 'max |z|', unit: 'none', description: 'Largest absolute logit of the last step.', queries: both(ofA('max_abs_logit'), ofB('max_abs_logit'))}))
    .withPanel(curve({title: 'log Z', unit: NATS, description: 'Mean of the last step.', queries: both(ofA('log_z_nats'), ofB('log_z_nats'))}))
    .withPanel(curve({title: 'Tokens per second', unit: 'short', min: 0, description: 'All positions.', queries: both(rateA('tokens'), rateB('tokens'))}))
    .withPanel(curve({title: 'Step time', unit: 's', min: 0, description: 'By the producers\' own clock.', queries: both(ofA('step_seconds'), ofB('step_seconds'))}));

  return build(builder);
}
