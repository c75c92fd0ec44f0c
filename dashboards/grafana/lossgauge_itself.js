// "lossgauge itself": can what the other dashboards show be believed?
import {build, curve, instanceVariable, number, page, row, rows, zeroIsGood} from './building_blocks.js';

const RING_RECORDS = 512;  // slots of a rank's ring of steps
const at = (metric) => `lossgauge_${metric}{instance=~"$instance"}`;
const perSecond = (metric) => `sum by (instance) (rate(${at(metric)}[$__rate_interval]))`;
const grown = (metric, label) => `sum by (${label}) (increase(${at(metric)}[$__rate_interval]))`;
const self = (metric) => `process_${metric}{instance=~"$instance", job=~".*lossgauge.*"}`;

export function lossgaugeItself() {
  const builder = page('lossgauge itself', 'itself', 'Whether lossgauged keeps up, loses anything, and stays small.').withVariable(instanceVariable());

  builder
    .withRow(row('Health'))
    .withPanel(zeroIsGood({title: 'Unreachable', description: 'Processes that could not be scraped.', runbook: 'LossgaugeExporterDown', queries: [['sum(up{job=~".*lossgauge.*"} == bool 0)', 'unreachable']]}))
    .withPanel(number({title: 'Runs', unit: 'none', description: 'Known, by state.', width: 8, queries: [[`sum by (state) (${at('runs')})`, '{{state}}']]}))
    .withPanel(number({title: 'Rings', unit: 'none', description: 'Ring files mapped now.', queries: [[`sum(${at('rings_attached')})`, 'rings']]}))
    .withPanel(zeroIsGood({title: 'Failed writes', description: 'Of state and history, per interval.', runbook: 'LossgaugeStateWriteErrors', queries: [[`sum(increase(${at('state_write_errors_total')}[$__rate_interval]))`, 'failed']]}))
    .withPanel(number({title: 'Oldest start', unit: 'dateTimeFromNow', description: 'Of the processes.', queries: [[`1000 * min(${self('start_time_seconds')})`, 'start']]}));

  builder
    .withRow(row('Drain'))
    .withPanel(curve({title: 'Drain lag', unit: 's', min: 0, description: 'Age of the oldest record delivered in the last cycle.', runbook: 'LossgaugeDrainStuck', queries: [[at('drain_lag_seconds'), '{{instance}}']]}))
    .withPanel(curve({
      title: 'Ring use', unit: 'percentunit', min: 0, runbook: 'LossgaugeRecordsLost',
      description: `The lag as a share of the time that a ring of ${RING_RECORDS} steps lasts at the pace of the fastest run. At 1 records are overwritten before they are read.`,
      queries: [[`max by (instance) (${at('drain_lag_seconds')} / on (job, instance) group_right () (lossgauge_run_step_seconds{instance=~"$instance"} * ${RING_RECORDS} > 0))`, '{{instance}}']]}))
    .withPanel(curve({title: 'Drain thread busy', unit: 'percentunit', min: 0, description: 'Share of its time that the drain thread works.', queries: [[perSecond('drain_busy_seconds_total'), '{{instance}}']]}))
    .withPanel(curve({title: 'Records read', unit: 'suffix: /s', min: 0, description: 'Per second.', queries: [[`sum by (instance) (rate(lossgauge_run_records_read_total{instance=~"$instance"}[$__rate_interval]))`, '{{instance}}']]}))
    .withPanel(curve({title: 'Records lost', unit: 'none', min: 0, description: 'Per interval, by reason. Totals stay right; single steps are missing.', runbook: 'LossgaugeRecordsLost', queries: [[grown('run_records_lost_total', 'reason'), '{{reason}}']]}))
    .withPanel(curve({title: 'Steps joined', unit: 'suffix: /s', min: 0, description: 'Per second.', queries: [[perSecond('steps_joined_total'), '{{instance}}']]}))
    .withPanel(curve({
      title: 'Odd records', unit: 'none', min: 0, description: 'Per interval: of steps joined already, second ones of a rank, and steps that jumped absurdly.',
      queries: [[grown('late_records_total', 'instance'), '{{instance}}: late'], [grown('duplicate_records_total', 'instance'), '{{instance}}: duplicate'], [grown('absurd_steps_total', 'instance'), '{{instance}}: absurd']]}))
    .withPanel(curve({title: 'Rings that cannot be read', unit: 'none', min: 0, description: 'Errors per interval, by cause.', runbook: 'LossgaugeRingUnreadable', queries: [[grown('ring_errors_total', 'cause'), '{{cause}}']]}))
    .withPanel(curve({title: 'Producers refused', unit: 'none', min: 0, description: 'Per interval, by cause.', runbook: 'LossgaugeRunsRefused', queries: [[grown('runs_refused_total', 'cause'), '{{cause}}']]}));

  builder
    .withRow(row('Forwarding: sidecars'))
    .withPanel(curve({
      title: 'Daemons reached', unit: 'none', min: 0, runbook: 'LossgaugeForwardingDown', description: 'Sidecars that have a stream to the first, and to the second, daemon of --forward_to.',
      queries: [[`sum by (daemon) (${at('forward_connected')})`, 'daemon {{daemon}}']]}))
    .withPanel(curve({title: 'Spool', unit: 'bytes', min: 0, runbook: 'LossgaugeSpoolDropping', description: 'What is kept until every daemon has it.', queries: [[at('forward_spool_bytes'), '{{instance}}']]}))
    .withPanel(curve({
      title: 'Records forwarded', unit: 'suffix: /s', min: 0, description: 'Sent to each daemon per second, those that were sent again included.',
      queries: [[`sum by (instance, daemon) (rate(${at('forward_records_sent_total')}[$__rate_interval]))`, '{{instance}} to {{daemon}}']]}))
    .withPanel(curve({
      title: 'Records acknowledged', unit: 'suffix: /s', min: 0, description: 'Of those sent, what each daemon has in its store, per second.',
      queries: [[`sum by (instance, daemon) (rate(${at('forward_records_acknowledged_total')}[$__rate_interval]))`, '{{instance}} by {{daemon}}']]}))
    .withPanel(curve({
      title: 'Records dropped', unit: 'none', min: 0, runbook: 'LossgaugeSpoolDropping', description: 'Per interval: left the spool before a daemon had them, or could not be written to it.',
      queries: [[grown('forward_records_dropped_total', 'daemon'), 'daemon {{daemon}}'], [`sum(increase(${at('forward_spool_write_errors_total')}[$__rate_interval]))`, 'not written']]}))
    .withPanel(curve({
      title: 'Reconnects', unit: 'none', min: 0, runbook: 'LossgaugeForwardingDown', description: 'Streams that ended, or never began, per interval.',
      queries: [[`sum by (instance, daemon) (increase(${at('forward_failures_total')}[$__rate_interval]))`, '{{instance}} to {{daemon}}']]}));

  builder
    .withRow(row('Ingest: daemons'))
    .withPanel(curve({title: 'Senders', unit: 'none', min: 0, runbook: 'LossgaugeJoinIncomplete', description: 'Sidecars connected.', queries: [[at('ingest_senders'), '{{instance}}']]}))
    .withPanel(curve({
      title: 'Join lag', unit: 's', min: 0, runbook: 'LossgaugeJoinIncomplete', description: 'Age of the oldest record that the last cycle brought to the join, from its reading on the node.',
      queries: [[`${at('drain_lag_seconds')} and on (job, instance) ${at('ingest_senders')}`, '{{instance}}']]}))
    .withPanel(curve({
      title: 'Ranks not heard', unit: 'none', min: 0, runbook: 'LossgaugeJoinIncomplete', description: 'Of each run: their node is cut off, or has not sent all that it held.',
      queries: [[`max by (run) (${at('run_unreachable_ranks')} and on (job, instance) ${at('ingest_senders')})`, '{{run}}']]}))
    .withPanel(curve({title: 'Refused', unit: 'none', min: 0, runbook: 'LossgaugeIngestRefusing', description: 'What senders sent and was refused, per interval, by cause; the log names the sender.', queries: [[grown('ingest_refused_total', 'cause'), '{{cause}}']]}))
    .withPanel(curve({title: 'Records refused', unit: 'none', min: 0, runbook: 'LossgaugeIngestRefusing', description: 'Of producers that are refused, per interval, by who refuses.', queries: [[grown('ingest_records_refused_total', 'instance'), '{{instance}}']]}))
    .withPanel(curve({
      title: 'Batches and repetitions', unit: 'suffix: /s', min: 0, description: 'Batches read per second, and records that came again; those count once.',
      queries: [[perSecond('ingest_batches_total'), '{{instance}}: batches'], [perSecond('ingest_records_repeated_total'), '{{instance}}: repeated']]}));

  builder
    .withRow(row('Steps sent elsewhere: remote write, OTLP'))
    .withPanel(curve({title: 'Steps that wait', unit: 'none', min: 0, runbook: 'LossgaugeSinkBehind', description: 'To be sent to the receiver.', queries: [[at('sink_pending_steps'), '{{instance}}: {{sink}}']]}))
    .withPanel(curve({
      title: 'Age of the last step taken', unit: 's', min: 0, runbook: 'LossgaugeSinkBehind', description: 'Since the receiver last took one.',
      queries: [[`time() - ${at('sink_last_sent_timestamp_seconds')}`, '{{instance}}: {{sink}}']]}))
    .withPanel(curve({
      title: 'Samples sent', unit: 'suffix: /s', min: 0, description: 'Per second.',
      queries: [[`sum by (instance, sink) (rate(${at('sink_samples_sent_total')}[$__rate_interval]))`, '{{instance}}: {{sink}}']]}))
    .withPanel(curve({
      title: 'Steps refused by the receiver', unit: 'none', min: 0, runbook: 'LossgaugeSinkRefused', description: 'Per interval, by what it said. They are not sent again.',
      queries: [[`sum by (sink, reason) (increase(lossgauge_sink_steps_dropped_total{instance=~"$instance", reason=~"out_of_order|out_of_window|refused|server_error"}[$__rate_interval]))`, '{{sink}}: {{reason}}']]}))
    .withPanel(curve({
      title: 'Steps given up', unit: 'none', min: 0, runbook: 'LossgaugeSinkDropping', description: 'Per interval: too old, too many, or gone from the history.',
      queries: [[`sum by (sink, reason) (increase(lossgauge_sink_steps_dropped_total{instance=~"$instance", reason=~"too_old|queue_full|missing"}[$__rate_interval]))`, '{{sink}}: {{reason}}']]}))
    .withPanel(curve({
      title: 'Requests and retries', unit: 'suffix: /s', min: 0, runbook: 'LossgaugeSinkBehind', description: 'Per second, by how they ended. Busy, failed and unreachable ones are tried again.',
      queries: [[`sum by (sink, result) (rate(${at('sink_requests_total')}[$__rate_interval]))`, '{{sink}}: {{result}}']]}));

  builder
    .withRow(row('State and history'))
    .withPanel(curve({title: 'Size', unit: 'bytes', min: 0, description: 'Of state and history on disk.', queries: [[at('state_bytes'), '{{instance}}']]}))
    .withPanel(curve({
      title: 'Steps thinned and dropped', unit: 'none', min: 0, description: 'Per interval. Thinned steps are kept as rows with mean, minimum and maximum.',
      queries: [[grown('history_steps_thinned_total', 'instance'), '{{instance}}: thinned'], [grown('history_steps_dropped_total', 'reason'), 'dropped: {{reason}}']]}))
    .withPanel(curve({title: 'Detectors that had to start anew', unit: 'none', min: 0, description: 'Per interval: their saved state could not be restored.', queries: [[grown('baseline_resets_total', 'instance'), '{{instance}}']]}));

  builder
    .withRow(row('Cost'))
    .withPanel(curve({title: 'Memory', unit: 'bytes', min: 0, description: 'Resident.', queries: [[self('resident_memory_bytes'), '{{instance}}']]}))
    .withPanel(curve({title: 'CPU', unit: 'suffix: cores', min: 0, description: 'Cores used.', queries: [[`rate(${self('cpu_seconds_total')}[$__rate_interval])`, '{{instance}}']]}))
    .withPanel(curve({title: 'Open files', unit: 'percentunit', min: 0, description: 'Of the files that the process may open.', queries: [[`${self('open_fds')} / ${self('max_fds')}`, '{{instance}}']]}))
    .withPanel(curve({title: 'Time of a scrape', unit: 's', min: 0, description: 'Time spent rendering by the number of pages: a ratio of sums.', queries: [[`${perSecond('scrape_seconds_total')} / (${perSecond('scrapes_total')} > 0)`, '{{instance}}']]}))
    .withPanel(curve({title: 'Size of a page', unit: 'bytes', min: 0, description: 'Of the page before the last one.', queries: [[at('scrape_bytes'), '{{instance}}']]}))
    .withPanel(curve({title: 'Ranks without series', unit: 'none', min: 0, description: 'Above 500 ranks on a page only runs are exported.', queries: [[at('ranks_not_exported'), '{{instance}}']]}))
    .withPanel(rows({
      title: 'Versions', description: 'What each process was built from.', height: 6, key: 'instance', worst: 'Threads',
      shown: {version: 'Version', revision: 'Revision', compiler: 'Compiler'}, columns: [
        ['Threads', `max by (instance, version, revision, compiler) (${self('threads')} * on (job, instance) group_left (version, revision, compiler) ${at('build_info')})`]]}));

  return build(builder);
}
