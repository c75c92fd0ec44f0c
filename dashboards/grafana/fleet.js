// "Fleet": every run that some lossgauged sees, worst first.
import dashboard from '@grafana/grafana-foundation-sdk/dashboard';
import {ACTION_COLOURS, NATS_PER_TOKEN, annotation, build, curve, number, page, row, rows, word, words, zeroIsGood} from './building_blocks.js';

const URGENCY = {HALT: 4, RESTART: 3, WATCH: 2, UNKNOWN: 1, CONTINUE: 0};
const urgency = Object.entries(URGENCY).map(([action, number]) => `max by (run) (lossgauge_verdict{action="${action}"} == 1) * ${number}`).join(' or ');
const of = (metric) => `max by (run) (lossgauge_run_${metric})`;

export function fleet() {
  const builder = page('Fleet', 'fleet', 'All runs, worst verdict first.')
    .annotation(annotation('verdict', 'max by (run, action) (lossgauge_verdict{action=~"RESTART|HALT"}) > 0', '{{run}}: {{action}}', 'red'));

  builder
    .withRow(row('Now'))
    .withPanel(word({
      title: 'Runs by verdict', description: 'How many runs each action is advised for.', width: 12, colours: ACTION_COLOURS,
      queries: [['count by (action) (max by (run, action) (lossgauge_verdict == 1))', '{{action}}']]}).textMode('value_and_name'))
    .withPanel(zeroIsGood({
      title: 'Critical incidents', description: 'Open, over all runs.',
      queries: [['sum(max by (run, condition) (lossgauge_incidents_open{severity="critical"}))', 'critical']]}))
    .withPanel(zeroIsGood({
      title: 'Silent runs', description: 'Runs in their training phase whose last step is older than 5 minutes.', runbook: 'LossgaugeStaleData',
      queries: [['sum(max by (run) (time() - lossgauge_run_last_step_timestamp_seconds and on (job, instance, run) lossgauge_run_phase{phase="train"} == 1) > bool 300)', 'silent']]}))
    .withPanel(zeroIsGood({
      title: 'Unreachable', description: 'lossgauged processes that could not be scraped.', runbook: 'LossgaugeExporterDown',
      queries: [['sum(up{job=~".*lossgauge.*"} == bool 0)', 'unreachable']]}))
    .withPanel(rows({
      title: 'Runs', description: 'Worst first. A run leads to its dashboard.', height: 14, key: 'run', worst: 'Verdict', columns: [
        ['Verdict', urgency, {mappings: words(Object.fromEntries(Object.entries(URGENCY).map(([action, number]) => [number, [action, ACTION_COLOURS[action]]]))),
          'custom.cellOptions': {type: 'color-text'}}],
        ['Incidents', 'sum by (run) (max by (run, condition, severity) (lossgauge_incidents_open{severity!="info"}))'],
        ['Step', of('step'), {unit: 'locale'}],
        ['Loss', of('loss_nats'), {unit: NATS_PER_TOKEN, decimals: 3}],
        ['Last step', `1000 * ${of('last_step_timestamp_seconds')}`, {unit: 'dateTimeFromNow'}],
        ['Tokens per second', 'sum by (run) (rate(lossgauge_run_tokens_total[$__rate_interval]))', {unit: 'short'}],
        ['Ranks', 'sum by (run) (lossgauge_run_ranks)'],
        ['Declared', of('world_size')],
        ['Missing', 'sum by (run) (lossgauge_run_missing_ranks)'],
        ['Attempts', of('attempts')],
      ]}).overrideByName('run', [{id: 'links', value: [{title: 'Training run ${__value.text}',
      url: '/d/lossgauge-training-run?var-run=${__value.text:percentencode}&var-datasource=${datasource}&${__url_time_range}'}]}]));

  builder
    .withRow(row('Over time'))
    .withPanel(curve({title: 'Verdicts', unit: 'none', min: 0, description: 'Runs by advised action.', queries: [['sum by (action) (max by (run, action) (lossgauge_verdict))', '{{action}}']]}))
    .withPanel(curve({
      title: 'Incidents opened', unit: 'none', min: 0, description: 'Per interval, by condition.',
      queries: [['sum by (condition) (max by (run, condition) (increase(lossgauge_incidents_total[$__rate_interval])))', '{{condition}}']]}))
    .withPanel(curve({
      title: 'Tokens per second', unit: 'short', min: 0, description: 'Of each run.', queries: [['sum by (run) (rate(lossgauge_run_tokens_total[$__rate_interval]))', '{{run}}']]}))
    .withPanel(curve({
      title: 'Loss', unit: NATS_PER_TOKEN, width: 12, description: 'Of each run over the interval: a ratio of sums.',
      queries: [['sum by (run) (rate(lossgauge_run_nll_nats_total[$__rate_interval])) / (sum by (run) (rate(lossgauge_run_finite_tokens_total[$__rate_interval])) > 0)', '{{run}}']]}))
    .withPanel(curve({
      title: 'Unevenness of step times', unit: 'percentunit', width: 12, runbook: 'LossgaugeSlowdown', description: 'Longest step of 60 s by the last step\'s time. 1: all alike.',
      queries: [[`${of('step_seconds_max_60s')} / (${of('step_seconds')} > 0)`, '{{run}}']]}));

  return build(builder);
}
