// Grafana's published types judge the dashboards: each becomes a literal typed Dashboard, which tsc compiles. A JSON import would not do: its strings are no
// members of unions, and unknown keys pass. `node check_schema.js`, after npm ci.
import {spawnSync} from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import url from 'node:url';

// What Grafana's Prometheus datasource adds to an annotation stands in no published type.
const HEAD = `import {MappingType, ThresholdsMode} from '@grafana/schema';
import type {AnnotationQuery, Dashboard} from '@grafana/schema';
interface PrometheusAnnotation { expr: string; titleFormat: string; textFormat: string }
type Checked = Omit<Dashboard, 'annotations'> & {annotations: {list?: (AnnotationQuery & PrometheusAnnotation)[]}};
export const used = [MappingType, ThresholdsMode];
`;
// Members of enumerations have no literal form.
const ENUMERATIONS = [[/"type": "value"/g, '"type": MappingType.ValueToText'], [/"mode": "absolute"/g, '"mode": ThresholdsMode.Absolute']];

const here = path.dirname(url.fileURLToPath(import.meta.url));
const checked = path.join(here, 'checked');
fs.mkdirSync(checked, {recursive: true});
const sources = fs.readdirSync(here).filter((name) => name.endsWith('.json') && !name.startsWith('package')).map((name) => {
  const file = path.join(checked, `${name}.ts`);
  const literal = ENUMERATIONS.reduce((text, [from, to]) => text.replace(from, to), fs.readFileSync(path.join(here, name), 'utf8'));
  fs.writeFileSync(file, `${HEAD}export const dashboard: Checked = ${literal};\n`);
  return file;
});
const tsc = path.join(here, 'node_modules', 'typescript', 'bin', 'tsc');
const done = spawnSync(process.execPath, [tsc, '--noEmit', '--strict', '--skipLibCheck', '--target', 'es2022', '--module', 'nodenext', '--moduleResolution', 'nodenext',
  ...sources], {stdio: 'inherit'});
fs.rmSync(checked, {recursive: true});
process.exit(done.status ?? 1);
