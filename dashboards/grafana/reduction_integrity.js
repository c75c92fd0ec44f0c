// "Reduction integrity": do the ranks' own sums fit together? By tensor-parallel group, then by rank: who is off.
import {NATS_PER_TOKEN, annotation, build, curve, page, row, rows, runVariable, zeroIsGood} from './building_blocks.js';

const ofRank = (metric) => `max by (run, rank) (lossgauge_${metric}{run="$run"})`;
const GROUP_OF_RANK = 'max by (run, rank, tensor_group) (lossgauge_rank_info{run="$run"})';
// A rank's value with the group that it belongs to.
const placed = (metric) => `${ofRank(metric)} * on (run, rank) group_left (tensor_group) ${GROUP_OF_RANK}`;
const overGroup = (operation, metric) => `${operation} by (tensor_group) (${placed(metric)})`;
// A scrape may see ranks at different steps; their sums need not fit then.
const AT_ONE_STEP = `and on (tensor_group) ${overGroup('max', 'step')} == ${overGroup('min', 'step')}`;
const TOKENS = `sum(${overGroup('max', 'step_unmasked_tokens')})`;

export function reductionIntegrity() {
  const builder = page('Reduction integrity', 'reduction-integrity', 'Whether the sums of a run\'s ranks fit together: vocabulary shards, denominators, reported loss.')
    .withVariable(runVariable())
    .annotation(annotation('mismatch', 'max by (kind) (lossgauge_reduction_mismatches_open{run="$run"}) > 0', '{{kind}}', 'red'));

  builder
    .withRow(row('What does not fit'))
    .withPanel(zeroIsGood({
      title: 'Open mismatches', description: 'By kind. lossgauged compares every step; the other panels see what a scrape sees.', width: 24, height: 5,
      runbook: 'LossgaugeReductionMismatch', queries: [['max by (kind) (lossgauge_reduction_mismatches_open{run="$run"})', '{{kind}}']]}))
    .withPanel(curve({
      title: 'Mismatches by kind', unit: 'none', min: 0, description: 'Incidents since the run was first seen.',
      queries: [['max by (kind) (lossgauge_reduction_mismatches_total{run="$run"})', '{{kind}}']]}))
    .withPanel(curve({
      title: 'Rows with a wrong mass', unit: 'none', min: 0, runbook: 'LossgaugeReductionMismatch',
      description: 'Rows of an interval whose own probability mass is not the share that the exchange implied, by rank.',
      queries: [['sum by (rank) (increase(lossgauge_mass_error_rows_total{run="$run"}[$__rate_interval]))', 'rank {{rank}}']]}))
    .withPanel(curve({
      title: 'Exchange', unit: 'none', min: 0, runbook: 'LossgaugeReductionMismatch',
      description: 'Rows of the last step that did not arrive as they were sent: missing, stale or flipped. By the rank that received them.',
      queries: [[ofRank('exchange_bad_rows'), 'rank {{rank}}']]}));

  builder
    .withRow(row('By tensor-parallel group'))
    .withPanel(curve({
      title: 'Mass error', unit: 'suffix: tokens', description: 'Sum of the ranks\' probability mass, less the finite tokens. More than a quarter of a token is an incident.',
      queries: [[`(${overGroup('sum', 'probability_mass_tokens')} - ${overGroup('max', 'step_finite_tokens')}) ${AT_ONE_STEP}`, '{{tensor_group}}']]}))
    .withPanel(curve({
      title: 'Target hits', unit: 'suffix: tokens', description: 'Sum of the ranks\' target hits, less the finite tokens: 0, or a shard begins at a wrong column.',
      queries: [[`(${overGroup('sum', 'target_hits')} - ${overGroup('max', 'step_finite_tokens')}) ${AT_ONE_STEP}`, '{{tensor_group}}']]}))
    .withPanel(curve({
      title: 'Agreement', unit: NATS_PER_TOKEN, min: 0, description: 'Largest less smallest loss of the ranks of a group, which compute the same one: 0.',
      queries: [[`(${overGroup('max', 'loss_nats')} - ${overGroup('min', 'loss_nats')}) ${AT_ONE_STEP}`, '{{tensor_group}}']]}))
    .withPanel(curve({
      title: 'Coverage', unit: 'suffix: columns', description: 'Columns of all shards of a group, less the vocabulary: 0. T - 1 times the vocabulary: gathered logits in a sharded loss.',
      queries: [[`${overGroup('sum', 'shard_columns')} - on () group_left () max(lossgauge_run_vocab_size{run="$run"})`, '{{tensor_group}}']]}))
    .withPanel(curve({
      title: 'Denominators', unit: 'suffix: tokens', min: 0, width: 16,
      description: 'What launches divided by, and what is right: the tokens of the step where gradients are summed, the tokens by the number of groups where they are averaged.',
      queries: [[overGroup('max', 'denominator_max_tokens'), '{{tensor_group}}, largest'], [overGroup('min', 'denominator_min_tokens'), '{{tensor_group}}, smallest'],
        [TOKENS, 'tokens of the step'], [`${TOKENS} / count(${overGroup('max', 'step_unmasked_tokens')})`, 'tokens by groups']]}))
    .withPanel(curve({
      title: 'Loss that the job reports', unit: NATS_PER_TOKEN, description: 'Reported, and measured by lossgauge over the last step.',
      queries: [['max(lossgauge_run_reported_loss_nats{run="$run"})', 'reported'], ['max(lossgauge_run_loss_nats{run="$run"})', 'measured']]}));

  builder
    .withRow(row('Who is off'))
    .withPanel(curve({
      title: 'Loss against the median rank', unit: NATS_PER_TOKEN, width: 12, runbook: 'LossgaugeRankOutlier', description: 'A rank apart from the others: its data, its random state or its device.',
      queries: [[`${ofRank('loss_nats')} - on (run) group_left () quantile by (run) (0.5, ${ofRank('loss_nats')})`, 'rank {{rank}}']]}))
    .withPanel(curve({
      title: 'Mass without a target', unit: 'percentunit', width: 12,
      description: 'Probability mass less target hits, by finite tokens. Of a trained model it is near 0 on every rank; the rank that stands apart is at fault.',
      queries: [[`(${ofRank('probability_mass_tokens')} - ${ofRank('target_hits')}) / (${ofRank('step_finite_tokens')} > 0)`, 'rank {{rank}}']]}))
    .withPanel(rows({
      title: 'Ranks', description: 'The last step of each rank. Ranks of a group must agree in tokens and loss.', key: 'rank', worst: 'Wrong mass, rows',
      shown: {tensor_group: 'Group'}, columns: [
        ['Wrong mass, rows', `sum by (rank, tensor_group) (${placed('mass_error_rows_total')})`],
        ['Step', `max by (rank, tensor_group) (${placed('step')})`],
        ['Loss', `max by (rank, tensor_group) (${placed('loss_nats')})`, {unit: NATS_PER_TOKEN, decimals: 4}],
        ['Tokens', `max by (rank, tensor_group) (${placed('step_unmasked_tokens')})`],
        ['Mass', `max by (rank, tensor_group) (${placed('probability_mass_tokens')})`, {decimals: 2}],
        ['Hits', `max by (rank, tensor_group) (${placed('target_hits')})`],
        ['Divided by, least', `max by (rank, tensor_group) (${placed('denominator_min_tokens')})`],
        ['Divided by, most', `max by (rank, tensor_group) (${placed('denominator_max_tokens')})`],
      ]}));

  return build(builder);
}
