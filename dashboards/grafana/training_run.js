// "Training run": what an on-call engineer reads at night. The verdict and its reason first, then the curves that explain it.
import {ACTION_COLOURS, BITS_PER_BYTE, NATS, NATS_PER_TOKEN, annotation, build, curve, number, page, row, runVariable, word} from './building_blocks.js';

// One value a run, whoever exports it: a run over several nodes is exported by each node's sidecar.
const run = (metric) => `max(lossgauge_run_${metric}{run="$run"})`;
const rate = (metric) => `sum(rate(lossgauge_run_${metric}_total{run="$run"}[$__rate_interval]))`;
const ratio = (above, below) => `${rate(above)} / (${rate(below)} > 0)`;

export function trainingRun() {
  const builder = page('Training run', 'training-run', 'Loss and health of one training run, as lossgauge measured them where the logits existed.')
    .withVariable(runVariable())
    .annotation(annotation('incident', 'max by (condition) (lossgauge_incidents_open{run="$run", severity!="info"}) > 0', '{{condition}}', 'orange'))
    .annotation(annotation('verdict', 'max by (action) (lossgauge_verdict{run="$run", action=~"RESTART|HALT"}) > 0', '{{action}}', 'red'));

  builder
    .withRow(row('Verdict'))
    .withPanel(word({
      title: 'Verdict', description: 'What lossgauged advises now. In words and with evidence: lossgaugectl verdict RUN.',
      queries: [['max by (action) (lossgauge_verdict{run="$run"}) == 1', '{{action}}']], colours: ACTION_COLOURS}))
    .withPanel(word({
      title: 'Reason', description: 'Reason codes of the present verdict.', width: 8,
      queries: [['max by (reason) (lossgauge_verdict_reason{run="$run"})', '{{reason}}']]}))
    .withPanel(number({title: 'Step', description: 'Last joined step.', unit: 'locale', queries: [[run('step'), 'step']]}))
    .withPanel(number({title: 'Loss', description: 'Loss of the last step.', unit: NATS_PER_TOKEN, queries: [[run('loss_nats'), 'loss']]}).decimals(3))
    .withPanel(number({
      title: 'Last step', description: 'When the last step was received.', unit: 'dateTimeFromNow',
      queries: [[`1000 * ${run('last_step_timestamp_seconds')}`, 'last step']]}));

  builder
    .withRow(row('Loss'))
    .withPanel(curve({
      title: 'Loss', unit: NATS_PER_TOKEN, width: 16, height: 10, runbook: 'LossgaugeLossSpike',
      description: 'One-hot, without smoothing or z-loss: sum of the negative log-likelihood by the sum of finite tokens over all ranks. "max" holds the worst step of the last 60 s, so no spike hides between two scrapes.',
      queries: [[run('loss_nats'), 'last step'], [run('loss_nats_max_60s'), 'max of 60 s'], [ratio('nll_nats', 'finite_tokens'), 'mean over the interval']]}))
    .withPanel(curve({
      title: 'Perplexity', unit: 'none', log: true, height: 10, description: 'exp of the loss. Logarithmic scale.',
      queries: [[run('perplexity'), 'last step'], [`exp(${ratio('nll_nats', 'finite_tokens')})`, 'over the interval']]}))
    .withPanel(curve({
      title: 'Bits per byte', unit: BITS_PER_BYTE, description: 'Comparable between tokenizers; absent if the job gives no byte table.',
      queries: [[run('bits_per_byte'), 'last step'], [`${ratio('scored_nll_nats', 'target_bytes')} / 0.6931471805599453`, 'over the interval']]}))
    .withPanel(curve({
      title: 'Objective and z-loss', unit: NATS_PER_TOKEN, description: 'What the gradient descends, and the part of it that is z-loss.',
      queries: [[run('objective_nats'), 'objective'], [run('z_loss_nats'), 'z-loss']]}))
    .withPanel(curve({
      title: 'Accuracy', unit: 'percentunit', min: 0, description: 'Share of tokens whose target has the largest logit.',
      queries: [[ratio('correct_tokens', 'finite_tokens'), 'over the interval']]}));

  builder
    .withPanel(curve({
      title: 'Share of z-loss', unit: 'percentunit', min: 0, runbook: 'LossgaugeNormalizerDrift',
      description: 'z-loss by negative log-likelihood and z-loss together. A share that grows says that log Z leaves 0.',
      queries: [[`${rate('z_loss_nats')} / (${rate('nll_nats')} + ${rate('z_loss_nats')} > 0)`, 'over the interval']]}))
    .withPanel(curve({
      title: 'Evaluation loss', unit: NATS_PER_TOKEN, description: 'As the job reported it.', queries: [[run('evaluation_loss_nats'), 'evaluation']]}));

  builder
    .withRow(row('Logits'))
    .withPanel(curve({
      title: 'max |z|', unit: 'none', width: 12, runbook: 'LossgaugeLogitBlowup', description: 'Largest absolute logit. A jump together with the loss is a normaliser blow-up.',
      queries: [[run('max_abs_logit'), 'last step'], [run('max_abs_logit_max_60s'), 'max of 60 s']]}))
    .withPanel(curve({
      title: 'log Z', unit: NATS, width: 12, runbook: 'LossgaugeNormalizerDrift', description: 'Log of the normaliser. z-loss pulls it towards 0; a steady drift is a warning.',
      queries: [[run('log_z_nats'), 'mean'], [run('log_z_max_nats'), 'max of the step'], [run('log_z_nats_max_60s'), 'max of 60 s']]}));

  builder
    .withRow(row('Gradients'))
    .withPanel(curve({
      title: 'Gradient norm', unit: 'none', log: true, runbook: 'LossgaugeGradExplosion', description: 'The job\'s own global norm, as handed over. It often rises before the loss does.',
      queries: [[run('grad_norm'), 'last step'], [run('grad_norm_max_60s'), 'max of 60 s']]}))
    .withPanel(curve({
      title: 'Logit gradient norm', unit: 'none', log: true, description: 'Norm of the gradient that cross-entropy hands to the model.',
      queries: [[run('logit_grad_norm'), 'last step']]}))
    .withPanel(curve({
      title: 'Gradient norms at the head', unit: 'none', log: true, description: 'Of the last hidden states and of the head\'s weight, where head and loss are one call.',
      queries: [[run('hidden_grad_norm'), 'hidden states'], [run('head_grad_norm'), 'head']]}))
    .withPanel(curve({title: 'Learning rate', unit: 'sci', description: 'As handed over by the job.', queries: [[run('learning_rate'), 'learning rate']]}));

  builder
    .withRow(row('Throughput'))
    .withPanel(curve({
      title: 'Tokens per second', unit: 'short', min: 0, description: 'Positions seen, and those whose target counts.',
      queries: [[rate('tokens'), 'tokens'], [rate('unmasked_tokens'), 'unmasked']]}))
    .withPanel(curve({
      title: 'Share of tokens that count', unit: 'percentunit', min: 0, description: 'Unmasked positions by all positions. A jump together with the loss is the data or the mask.',
      queries: [[ratio('unmasked_tokens', 'tokens'), 'over the interval']]}))
    .withPanel(curve({
      title: 'Age of the data', unit: 's', min: 0, runbook: 'LossgaugeStaleData',
      description: 'How old the last step was when lossgauged last looked, by its own clock; and how old that look is.',
      queries: [[`max(lossgauge_snapshot_timestamp_seconds - on (job, instance) group_right () lossgauge_run_last_step_timestamp_seconds{run="$run"})`, 'last step'],
        [`max(time() - lossgauge_snapshot_timestamp_seconds and on (job, instance) lossgauge_run_active{run="$run"})`, 'lossgauged']]}))
    .withPanel(curve({
      title: 'Step time', unit: 's', min: 0, runbook: 'LossgaugeSlowdown', description: 'By the producers\' own clock.',
      queries: [[run('step_seconds'), 'last step'], [run('step_seconds_max_60s'), 'max of 60 s']]}))
    .withPanel(curve({
      title: 'Ranks', unit: 'none', min: 0, runbook: 'LossgaugeRankMissing', description: 'Ranks declared, seen, and missing from the last step.',
      queries: [[run('world_size'), 'declared'], [`sum(lossgauge_run_ranks{run="$run"})`, 'seen'], [`sum(lossgauge_run_missing_ranks{run="$run"})`, 'missing']]}));

  builder
    .withRow(row('Incidents'))
    .withPanel(curve({
      title: 'Open incidents', unit: 'none', min: 0, description: 'Incidents that no root explains, by condition. They are marked on every curve.',
      queries: [['sum by (condition) (max by (condition, severity) (lossgauge_incidents_open{run="$run"}))', '{{condition}}']]}))
    .withPanel(curve({
      title: 'Loss spikes by cause', unit: 'none', min: 0, description: 'Since the run was first seen.',
      queries: [['max by (cause) (lossgauge_spikes_total{run="$run"})', '{{cause}}']]}))
    .withPanel(curve({
      title: 'Reduction mismatches by kind', unit: 'none', min: 0, runbook: 'LossgaugeReductionMismatch', description: 'Integrity and accounting: ranks that disagree, or a loss divided wrongly.',
      queries: [['max by (kind) (lossgauge_reduction_mismatches_total{run="$run"})', '{{kind}}']]}))
    .withPanel(curve({
      title: 'Non-finite', unit: 'none', min: 0, runbook: 'LossgaugeNonfinite', description: 'Rows and steps with NaN or Inf, per interval. They are kept out of every other curve.',
      queries: [['sum(increase(lossgauge_run_nonfinite_rows_total{run="$run"}[$__rate_interval]))', 'rows'],
        ['sum(increase(lossgauge_run_nonfinite_steps_total{run="$run"}[$__rate_interval]))', 'steps']]}))
    .withPanel(curve({
      title: 'Records lost', unit: 'none', min: 0, runbook: 'LossgaugeRecordsLost', description: 'Per interval, by reason. Totals stay right; single steps are missing.',
      queries: [['sum by (reason) (increase(lossgauge_run_records_lost_total{run="$run"}[$__rate_interval]))', '{{reason}}']]}))
    .withPanel(curve({
      title: 'Drain lag', unit: 's', min: 0, description: 'How far lossgauged is behind the rings, by instance.',
      queries: [['lossgauge_drain_lag_seconds and on (instance) lossgauge_run_active{run="$run"}', '{{instance}}']]}));

  return build(builder);
}
