// Judges Kubernetes objects by their published models: each by the model's own schema, and as a literal of its type, which tsc compiles. The schemas let
// unknown fields pass, the types do not; the types know no patterns, the schemas do.
//
//     node check_objects.mjs OBJECTS.json NODE_MODULES WORK_DIR      OBJECTS.json: a list of objects
import {spawnSync} from 'node:child_process';
import {readFileSync, writeFileSync} from 'node:fs';
import {join, resolve} from 'node:path';
import {pathToFileURL} from 'node:url';

// No model of JobSet is published: its pods are checked as those of a Job, by the caller.
const MODELS = {
  'v1/ConfigMap': 'kubernetes-models/v1/ConfigMap', 'v1/Service': 'kubernetes-models/v1/Service', 'v1/PersistentVolumeClaim': 'kubernetes-models/v1/PersistentVolumeClaim',
  'apps/v1/Deployment': 'kubernetes-models/apps/v1/Deployment', 'batch/v1/Job': 'kubernetes-models/batch/v1/Job',
  'networking.k8s.io/v1/NetworkPolicy': 'kubernetes-models/networking.k8s.io/v1/NetworkPolicy',
  'monitoring.coreos.com/v1/PodMonitor': '@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor',
  'monitoring.coreos.com/v1/PrometheusRule': '@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule',
};

const [objectsFile, modules, work] = process.argv.slice(2);
const faults = [];
const literals = [];
for (const [index, object] of JSON.parse(readFileSync(objectsFile, 'utf8')).entries()) {
  const path = MODELS[`${object.apiVersion}/${object.kind}`];
  if (path === undefined) {
    faults.push(`${object.apiVersion}/${object.kind}: no published model is known`);
    continue;
  }
  try {
    const models = await import(pathToFileURL(`${join(resolve(modules), path)}.js`));
    new models[object.kind](object).validate();
  } catch (error) {
    faults.push(`${object.kind} ${object.metadata?.name}: ${error.message}`);
  }
  literals.push(`import type {I${object.kind} as I${index}} from '${path}';\nexport const object${index}: I${index} = ${JSON.stringify(object, null, 1)};\n`);
}
const source = join(work, 'objects.ts');
writeFileSync(source, literals.join(''));
const tsc = spawnSync(process.execPath, [join(modules, 'typescript', 'bin', 'tsc'), '--noEmit', '--strict', '--skipLibCheck', '--target', 'es2022',
  '--module', 'esnext', '--moduleResolution', 'bundler', source], {encoding: 'utf8'});
if (tsc.status !== 0) faults.push(tsc.stdout + tsc.stderr);
if (faults.length > 0) {
  console.error(faults.join('\n'));
  process.exit(1);
}
