// What every dashboard of lossgauge is made of: one datasource variable, one run variable, panels that say what they show.
import common from '@grafana/grafana-foundation-sdk/common';
import dashboard from '@grafana/grafana-foundation-sdk/dashboard';
import prometheus from '@grafana/grafana-foundation-sdk/prometheus';
import stat from '@grafana/grafana-foundation-sdk/stat';
import table from '@grafana/grafana-foundation-sdk/table';
import timeseries from '@grafana/grafana-foundation-sdk/timeseries';

// Never a literal uid: the dashboard must work in any Grafana.
export const DATASOURCE = {type: 'prometheus', uid: '${datasource}'};

// Where the pages of dashboards/runbooks are; README.md says how to put in an address of one's own, for rules and dashboards alike.
const RUNBOOKS = 'https://lossgauge.example/runbooks/';

// Grafana's own unit list has no nats: a unit that is not in it is shown as it stands.
export const NATS = 'suffix: nats', NATS_PER_TOKEN = 'suffix: nats/token', BITS_PER_BYTE = 'suffix: bits/byte';

export const ACTION_COLOURS = {CONTINUE: 'green', WATCH: 'yellow', RESTART: 'red', HALT: 'purple', UNKNOWN: 'text'};

// What all dashboards share: name, refresh, the way to each other.
export function page(title, uid, description) {
  return new dashboard.DashboardBuilder(title)
    .uid(`lossgauge-${uid}`)
    .description(description)
    .tags(['lossgauge'])
    .readonly()
    .refresh('30s')
    .time({from: 'now-3h', to: 'now'})
    .timezone('browser')
    .tooltip(dashboard.DashboardCursorSync.Crosshair)
    .links([
      new dashboard.DashboardLinkBuilder('lossgauge').type(dashboard.DashboardLinkType.Dashboards).tags(['lossgauge']).keepTime(true).includeVars(true),
      new dashboard.DashboardLinkBuilder('Runbooks').type(dashboard.DashboardLinkType.Link).url(RUNBOOKS).targetBlank(true),
    ])
    .withVariable(datasourceVariable());
}

export function datasourceVariable() {
  return new dashboard.DatasourceVariableBuilder('datasource').label('Prometheus').type('prometheus');
}

// Newest runs too: label values over the dashboard's time range, refreshed with it.
export function runVariable(name = 'run', label = 'Run') {
  return labelVariable(name, label, 'label_values(lossgauge_run_active, run)');
}

// All by default.
export function instanceVariable() {
  return labelVariable('instance', 'lossgauged', 'label_values(lossgauge_build_info, instance)').multi(true).includeAll(true).allValue('.*');
}

function labelVariable(name, label, definition) {
  return new dashboard.QueryVariableBuilder(name)
    .label(label)
    .datasource(DATASOURCE)
    .query({query: definition, refId: name})
    .refresh(dashboard.VariableRefresh.OnTimeRangeChanged)
    .sort(dashboard.VariableSort.AlphabeticalAsc);
}

// A run's name may hold anything. Between backticks PromQL takes every character as it stands, and what means something to a regular expression Grafana's format
// `regex` escapes, so that it matches that one name. Only a backtick itself ends such a string, and no format of Grafana's escapes it. Between quotes more would be
// wrong: `doublequote` escapes quotes but no backslash, and what Grafana does with a bare variable depends on its version and on a feature toggle.
const withAnyName = (expr) => expr.replaceAll(/="\$(run|other)"/g, '=~`${$1:regex}`');

export function query(expr, legend, {instant = false, format} = {}) {
  const target = new prometheus.DataqueryBuilder().datasource(DATASOURCE).expr(withAnyName(expr)).legendFormat(legend);
  if (format !== undefined) target.format(format);
  return instant ? target.instant() : target.range();
}

// runbook: the alert whose page explains the panel.
function fill(panel, {title, description, unit, width, height, queries, runbook}) {
  if (runbook !== undefined) {
    panel.links([new dashboard.DashboardLinkBuilder(`Runbook: ${runbook}`).type(dashboard.DashboardLinkType.Link).url(`${RUNBOOKS}${runbook}.md`)
      .targetBlank(true)]);
  }
  panel.title(title).description(description).datasource(DATASOURCE).unit(unit).span(width).height(height);
  queries.forEach(([expr, legend, options], i) => panel.withTarget(query(expr, legend, options).refId(String.fromCharCode(65 + i))));
  return panel;
}

// A curve. Gaps stay gaps: an absent value was not measured.
export function curve({log = false, min, ...options}) {
  const panel = fill(new timeseries.PanelBuilder(), {width: 8, height: 8, ...options})
    .lineWidth(1)
    .fillOpacity(0)
    .showPoints(common.VisibilityMode.Auto)
    .spanNulls(false)
    .legend(new common.VizLegendOptionsBuilder().displayMode(common.LegendDisplayMode.List).placement(common.LegendPlacement.Bottom)
      .showLegend(true))
    .tooltip(new common.VizTooltipOptionsBuilder().mode(common.TooltipDisplayMode.Multi).sort(common.SortOrder.Descending));
  if (log) panel.scaleDistribution(new common.ScaleDistributionConfigBuilder().type(common.ScaleDistribution.Log).log(10));
  if (min !== undefined) panel.min(min);
  return panel;
}

export function number(options) {
  return fill(new stat.PanelBuilder(), {width: 4, height: 4, ...options, queries: options.queries.map(([e, l]) => [e, l, {instant: true}])})
    .noValue('no data')
    .graphMode(common.BigValueGraphMode.None)
    .colorMode(common.BigValueColorMode.None)
    .reduceOptions(new common.ReduceDataOptionsBuilder().calcs(['lastNotNull']));
}

// A word that a label carries, coloured by what it is.
export function word({colours = {}, ...options}) {
  const panel = number({unit: 'none', ...options}).textMode(common.BigValueTextMode.Name).colorMode(common.BigValueColorMode.Background);
  for (const [name, colour] of Object.entries(colours)) {
    panel.overrideByName(name, [{id: 'color', value: {mode: 'fixed', fixedColor: colour}}]);
  }
  return panel;
}

// Figures that are good at 0 and bad above, one for each label.
export function zeroIsGood(options) {
  return number({unit: 'none', ...options}).colorMode(common.BigValueColorMode.Value).thresholds(thresholds([[null, 'green'], [1, 'red']]));
}

export function thresholds(steps) {
  return new dashboard.ThresholdsConfigBuilder().mode(dashboard.ThresholdsMode.Absolute).steps(steps.map(([value, color]) => ({value, color})));
}

// Numbers that stand for words: {4: ['HALT', 'purple'], ...}.
export function words(names) {
  return [{type: dashboard.MappingType.ValueToText,
    options: Object.fromEntries(Object.entries(names).map(([value, [text, color]], index) => [value, {text, color, index}]))}];
}

// One row for each value of `key`. columns: [title, PromQL by key, field configuration such as {unit, decimals}]. Sorted by the column `worst`, largest first.
export function rows({title, description, width = 24, height = 10, key, columns, worst, shown = {}, runbook}) {
  const queries = columns.map(([, expr]) => [expr, '', {instant: true, format: prometheus.PromQueryFormat.Table}]);
  const panel = fill(new table.PanelBuilder(), {title, description, width, height, unit: 'none', queries, runbook});
  const fields = columns.map((_, i) => `Value #${String.fromCharCode(65 + i)}`);
  const order = [...Object.keys(shown), ...fields];
  panel.noValue('–')
    .withTransformation({id: 'merge', options: {}})
    .withTransformation({id: 'organize', options: {excludeByName: {Time: true}, indexByName: Object.fromEntries([key, ...order].map((name, i) => [name, i])),
      renameByName: {...Object.fromEntries(fields.map((field, i) => [field, columns[i][0]])), ...shown}}})
    .withTransformation({id: 'sortBy', options: {sort: [{field: worst, desc: true}]}});
  for (const [name, , config = {}] of columns) panel.overrideByName(name, Object.entries(config).map(([id, value]) => ({id, value})));
  return panel;
}

export function annotation(name, expr, title, colour) {
  return new dashboard.AnnotationQueryBuilder().name(name).datasource(DATASOURCE).enable(true).iconColor(colour).expr(withAnyName(expr))
    .titleFormat(title).textFormat(name);
}

export function row(title) {
  return new dashboard.RowBuilder(title);
}

// The SDK gives variables keys that Grafana's schema does not know for their type, and panels no ids: both are set right here, so that the
// file is stable and passes validation.
export function build(builder) {
  const result = builder.build();
  for (const variable of result.templating.list) {
    for (const key of Object.keys(variable)) {
      if (key.startsWith('auto')) delete variable[key];
    }
  }
  result.panels.forEach((panel, i) => { panel.id = i + 1; });
  return result;
}
