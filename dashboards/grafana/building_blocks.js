// What every dashboard of lossgauge is made of: one datasource variable, one run variable, panels that say what they show.
import common from '@grafana/grafana-foundation-sdk/common';
import dashboard from '@grafana/grafana-foundation-sdk/dashboard';
import prometheus from '@grafana/grafana-foundation-sdk/prometheus';
import stat from '@grafana/grafana-foundation-sdk/stat';
import timeseries from '@grafana/grafana-foundation-sdk/timeseries';

// Never a literal uid: the dashboard must work in any Grafana.
export const DATASOURCE = {type: 'prometheus', uid: '${datasource}'};

export function datasourceVariable() {
  return new dashboard.DatasourceVariableBuilder('datasource').label('Prometheus').type('prometheus');
}

// Newest runs too: label values over the dashboard's time range, refreshed with it.
export function runVariable() {
  return new dashboard.QueryVariableBuilder('run')
    .label('Run')
    .datasource(DATASOURCE)
    .query({query: 'label_values(lossgauge_run_active, run)', refId: 'run'})
    .definition('label_values(lossgauge_run_active, run)')
    .refresh(dashboard.VariableRefresh.OnTimeRangeChanged)
    .sort(dashboard.VariableSort.AlphabeticalAsc);
}

export function query(expr, legend, {instant = false} = {}) {
  const target = new prometheus.DataqueryBuilder().datasource(DATASOURCE).expr(expr).legendFormat(legend);
  return instant ? target.instant() : target.range();
}

function fill(panel, {title, description, unit, width, height, queries}) {
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

export function annotation(name, expr, title, colour) {
  return new dashboard.AnnotationQueryBuilder().name(name).datasource(DATASOURCE).enable(true).iconColor(colour).expr(expr)
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
