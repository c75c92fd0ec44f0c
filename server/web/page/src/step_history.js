// The steps of a run from the history: the newest first, then what came before them, thinned where lossgauged has thinned it.
import {getJson} from './api.js';

const AT_A_TIME = 2000;
const MOST = 10_000;

// `receive` puts the steps of an answer into `store` and says whether one was new. `newest`: how many steps to begin with, and which.
export async function loadSteps(run, store, receive, signal, newest = {}) {
  receive(await getJson('/api/v1/steps', {run, tail: AT_A_TIME, ...newest}, signal));
  for (let added = true; added && store.size < MOST && store.firstStep() > 0;) {
    added = receive(await getJson('/api/v1/steps', {run, tail: AT_A_TIME, last_step: store.firstStep() - 1, include_thinned: true}, signal));
  }
}
