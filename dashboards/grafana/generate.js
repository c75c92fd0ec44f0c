// Writes the dashboards beside this file. `node generate.js --check` writes nothing and fails if a committed file is not what comes out.
import fs from 'node:fs';
import path from 'node:path';
import url from 'node:url';
import {compareRuns} from './compare_runs.js';
import {fleet} from './fleet.js';
import {lossgaugeItself} from './lossgauge_itself.js';
import {reductionIntegrity} from './reduction_integrity.js';
import {trainingRun} from './training_run.js';

const here = path.dirname(url.fileURLToPath(import.meta.url));
const dashboards = {
  'training-run.json': trainingRun(),
  'reduction-integrity.json': reductionIntegrity(),
  'compare-runs.json': compareRuns(),
  'fleet.json': fleet(),
  'lossgauge-itself.json': lossgaugeItself(),
};

let stale = 0;
for (const [name, dashboard] of Object.entries(dashboards)) {
  const file = path.join(here, name);
  const text = JSON.stringify(dashboard, null, 2) + '\n';
  if (!process.argv.includes('--check')) {
    fs.writeFileSync(file, text);
  } else if (!fs.existsSync(file) || fs.readFileSync(file, 'utf8') !== text) {
    console.error(`${name} is not what the generator makes: run "npm run generate" in dashboards/grafana`);
    stale = 1;
  }
}
process.exit(stale);
