// The status page in Chromium: runs of the past, which only the history knows.
import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {test} from 'node:test';
import {fileURLToPath} from 'node:url';
import {plausibleStep} from './fake_api.mjs';
import {AxeBuilder, PHONE, WIDE, addRunWithSteps, fake, hasText, open, page, stepsShown, text, until} from './page_fixture.mjs';

const WRITTEN = '2026-03-04T05:06:07Z';
const ODD = '<b>"a/b" & 損失</b>';

const stepsOf = (count, fields = {}) => Array.from({length: count}, (_, step) => ({sequence: String(step + 1), attempt: 'a1', step: String(step),
  receiveTime: '2026-03-04T05:00:00Z', unmaskedTokens: '4096', ...plausibleStep(step), ...fields}));
const judged = (action, reason, fields = {}) => ({action, reason, reasonCodes: [], attempt: 'a1', evaluatedAt: '2026-03-04T04:50:00Z', policyVersion: 'p1', ...fields});
const ended = (fields = {}) => ({action: 'UNKNOWN', reason: 'The run ended cleanly after step 59, 0 s ago', reasonCodes: ['ended'], attempt: 'a1', lastStep: '59',
  evaluatedAt: '2026-03-04T05:00:01Z', since: '2026-03-04T05:00:01Z', ...fields});
const event = (kind, fields = {}) => ({attempt: 'a1', rank: 0, kind, text: '', ...fields});
const incident = (fields) => ({id: 'i-1', run: 'night', condition: 'loss_spike', kind: 'data', severity: 'WARNING', open: false, onsetStep: '20', lastStep: '30',
  onsetTime: '2026-03-04T04:40:00Z', summary: 'Loss rose.', evidence: [], ...fields});

function addNight(fields = {}) {
  fake.addPast('night', WRITTEN, {
    steps: stepsOf(60), incidents: [incident(), incident({id: 'i-2', condition: 'integrity', kind: 'mass', severity: 'CRITICAL', open: true, onsetStep: '40', lastStep: '59'})],
    verdicts: [ended(), judged('HALT', 'the sums over ranks are wrong', {reasonCodes: ['integrity/mass'], rankAtFault: 3, lastGoodStep: '39',
      evidence: [{name: 'fresh_limit', value: 60, unit: 's'}, {name: 'bad_rows', value: 7, unit: 'rows'}]}), judged('CONTINUE', 'all is well')],
    events: [event('resume', {attempt: 'a0'}), event('checkpoint', {step: '20', text: '/ckpt/20.pt'}), event('checkpoint', {step: '50', text: '/ckpt/50.pt'}),
      event('evaluation', {step: '50', value: 2.25}), event('end', {text: 'done'}), event('end', {rank: 1, text: 'done'})], ...fields});
}

const pastNames = () => page.locator('#past-runs .run-name').allInnerTexts();
const facts = () => page.locator('#verdict .facts > div').evaluateAll((all) => Object.fromEntries(all.map((one) => [one.firstChild.textContent, one.lastChild.textContent])));
const noFault = async () => {
  const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(content <= window, `${content} > ${window}`);
  const found = await new AxeBuilder({page}).analyze();
  assert.deepEqual(found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' ')}`), []);
};

test('earlier runs are folded away below the live ones, newest first, with when they were last written', async () => {
  addRunWithSteps('live', 3);
  for (const name of ['newest', ODD, 'oldest']) fake.addPast(name, WRITTEN);
  await open();
  await hasText('#past summary', 'Earlier 3');
  await hasText('#run-name', 'live');
  assert.equal(await page.locator('#past-runs').isVisible(), false);
  await page.locator('#past summary').click();
  assert.deepEqual(await pastNames(), ['newest', ODD, 'oldest']);
  assert.equal(await text('#past-runs li:first-child .run-written'), '2026-03-04 05:06:07 UTC');
  assert.equal(await page.locator('#past-runs b').count(), 0);  // a name is text
});

test('without earlier runs there is no such section', async () => {
  addRunWithSteps('live', 3);
  await open();
  await hasText('#run-name', 'live');
  await until(() => performance.getEntriesByType('resource').some((one) => one.name.includes('include_past')));
  assert.equal(await page.locator('#past').isVisible(), false);
});

test('of very many earlier runs the newest are listed, and others are found by name', async () => {
  addRunWithSteps('live', 3);
  for (let i = 0; i < 300; i++) fake.addPast(`sweep-${i}`, WRITTEN);
  await open();
  await page.locator('#past summary').click();
  await hasText('#past-note', 'The newest 50 of 300');
  assert.equal(await page.locator('#past-runs li').count(), 50);
  await page.getByLabel('Find').fill('SWEEP-29');
  await until(() => document.querySelectorAll('#past-runs li').length === 11);
  assert.deepEqual((await pastNames()).slice(0, 2), ['sweep-29', 'sweep-290']);
  await page.getByLabel('Find').fill('nothing');
  await hasText('#past-note', 'None of that name');
});

test('the keyboard opens the earlier runs, finds one and walks through them', async () => {
  addRunWithSteps('live', 3);
  for (const name of ['other', 'night-2', 'night-1']) fake.addPast(name, WRITTEN, {steps: stepsOf(3)});
  await open();
  await hasText('#past summary', 'Earlier 3');
  await page.locator('#past summary').focus();
  await page.keyboard.press('Enter');
  await page.keyboard.press('Tab');
  await page.keyboard.type('night');
  await until(() => document.querySelectorAll('#past-runs li').length === 2);
  await page.keyboard.press('ArrowDown');
  await hasText('#run-name', 'night-2');
  await page.keyboard.press('ArrowDown');
  await hasText('#run-name', 'night-1');
  assert.equal(await page.locator('#past-runs [aria-current]').innerText().then((said) => said.split('\n')[0]), 'night-1');
  await page.keyboard.press('ArrowUp');
  await page.keyboard.press('ArrowUp');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'past-filter');
});

test('a run of the past is shown as it was left: how it ended, what was last thought of it, its curves and its incidents', async () => {
  addNight();
  await open({hash: '#/run/night'});
  await hasText('.action-word', 'ENDED');
  await hasText('.run-state', 'Of the past · last written 2026-03-04 05:06:07 UTC');
  assert.equal(await text('#verdict .reason'), 'The run ended cleanly after step 59, and said: “done”.');
  assert.equal(await text('.past-judged'), 'Last verdict: HALT');
  await hasText('.past-reason', 'the sums over ranks are wrong');
  assert.deepEqual(await page.locator('.codes li').allInnerTexts(), ['integrity/mass']);
  await hasText('#curves-note', 'steps 0 to 59');
  assert.ok(await page.locator('.curve').count() >= 5);
  await hasText('#readouts', '59');
  await until(() => [...document.querySelectorAll('#verdict dt')].some((name) => name.textContent === 'Attempts'));
  const said = await facts();
  assert.deepEqual([said['Newest checkpoint'], said.Evaluation, said['Rank at fault'], said['Last good step'], said['bad rows'], said.Ended, said.Attempts],
    ['step 50  /ckpt/50.pt', '2.2500 nats/token at step 50', '3', '39', '7 rows', '2026-03-04 05:00:01 UTC', 'a0, a1']);
  // What only a live run has is left out.
  for (const name of ['Verdict', 'Valid until', 'fresh limit', 'Since']) assert.equal(said[name], undefined, name);
  assert.equal(await page.locator('#ranks-panel').isVisible(), false);
  assert.equal(await page.locator('#stale').isVisible(), false);
  assert.equal(await page.title(), 'ended · night · lossgauge');
  await hasText('#incidents-note', '1 open at the end, 2 in all');
  assert.ok(!(await page.locator('#incidents').innerText()).includes('not acknowledged'));
  for (let tries = 0; fake.streams.size > 0 && tries < 400; tries++) await page.waitForTimeout(50);
  assert.equal(fake.streams.size, 0, 'nothing of it is watched');
});

test('a run whose end nobody told is not said to have ended, and no colour says that it is well', async () => {
  addNight({verdicts: [judged('CONTINUE', 'all is well')], events: [], incidents: []});
  await open({hash: '#/run/night'});
  await hasText('.action-word', 'PAST');
  assert.match(await text('#verdict .reason'), /^No clean end of it is known/);
  assert.equal(await text('.past-judged'), 'Last verdict: CONTINUE');
  assert.equal(await page.locator('#run .tone-continue').count(), 0);
  assert.equal(await page.title(), 'past · night · lossgauge');
});

test('a run of which nothing but its name is left is shown without failing', async () => {
  fake.addPast('night', WRITTEN);
  await open({hash: '#/run/night'});
  await hasText('.past-reason', 'No verdict of it is kept');
  await hasText('#curves-note', 'no steps');
  await hasText('#incidents', 'None.');
});

test('steps that have been thinned all are drawn', async () => {
  addNight({steps: stepsOf(40, {thinned: {firstStep: '0', steps: '64'}})});
  await open({hash: '#/run/night'});
  await hasText('#curves-note', 'steps 0 to 39');
});

test('each incident leads to its runbook, which is served, and each condition that has an alert to the page of that alert', async () => {
  addNight();
  await open({hash: '#/run/night'});
  await page.locator('#incidents summary').nth(1).waitFor();
  for (const summary of await page.locator('#incidents summary').all()) await summary.click();
  assert.deepEqual(await page.locator('.incident-runbook a').allInnerTexts(), ['runbook LossgaugeReductionMismatch', 'runbook LossgaugeLossSpike']);
  await hasText('#incidents', 'The story of i-1.');
  const rules = readFileSync(fileURLToPath(new URL('../../../dashboards/rules/lossgauge.alerts.yml', import.meta.url)), 'utf8');
  const pages = new Map([...rules.matchAll(/^ +condition: (\w+)$[^]*?runbook_url: \S+\/(\w+\.md)$/gm)].map(([, condition, name]) => [condition, name]));
  assert.ok(pages.size > 20, String(pages.size));
  const links = await page.evaluate(async (conditions) => {
    const {runbookOf} = await import('/page/runbooks.js');
    return conditions.map((condition) => runbookOf(condition).href);
  }, [...pages.keys()]);
  assert.deepEqual(links, [...pages.values()].map((name) => `/page/runbooks/${name}`));
  for (const href of links) {
    const answer = await fetch(`${fake.url}${href}`);
    assert.equal(answer.status, 200, href);
    assert.match(await answer.text(), /## Mitigation/);
  }
});

test('a run that is forgotten while it is looked at goes on as one of the past, and back to the live view when it lives again', async () => {
  addRunWithSteps('other', 3);
  addRunWithSteps('demo', 30, {action: 'CONTINUE'});
  await open({hash: '#/run/demo'});
  await page.locator('.tone-continue.verdict').waitFor();
  fake.forget('demo', [ended({lastStep: '29'}), judged('WATCH', 'loss spike')]);
  fake.dropStreams();
  await hasText('.action-word', 'ENDED');
  await hasText('#curves-note', 'steps 0 to 29');
  await hasText('#past summary', 'Earlier 1');
  assert.equal(await page.locator('#ranks-panel').isVisible(), false);
  assert.match(page.url(), /#\/run\/demo$/);
  addRunWithSteps('demo', 35, {action: 'CONTINUE'});
  await page.locator('.tone-continue.verdict').waitFor();
  await hasText('#curves-note', 'steps 0 to 34');
  assert.equal(await page.locator('#ranks-panel').isVisible(), true);
  assert.equal(await page.locator('#past').isVisible(), false);
});

test('with nothing live the earlier runs are open to see', async () => {
  addNight();
  await open();
  await hasText('#no-run', 'No run is live. Choose an earlier one.');
  await page.locator('#past-runs a').click();
  await hasText('.action-word', 'ENDED');
  await page.locator('#past summary').click();
  await page.waitForTimeout(2_500);  // two rounds of the clock
  assert.equal(await page.locator('#past-runs').isVisible(), false, 'who has closed it has closed it');
});

test('while the history is busy it is said so, and the run comes by itself', async () => {
  addRunWithSteps('live', 3);
  addNight();
  fake.historyReads = false;
  await open({hash: '#/run/night'});
  await hasText('#no-run', 'The history cannot be read just now');
  await hasText('#runs', 'live');
  fake.historyReads = true;
  await hasText('.action-word', 'ENDED');
});

test('a live run and one of the past are compared, and two of the past not over and over', async () => {
  addRunWithSteps('live', 60);
  addNight();
  fake.addPast('older', WRITTEN, {steps: stepsOf(60)});
  fake.comparison = {comparable: true, matchedBy: 'unmasked_tokens', loss: {a: 2, b: 2, difference: 0}};
  await open({hash: '#/run/live'});
  await page.locator('#compare-choice optgroup[label=Earlier] option').nth(1).waitFor({state: 'attached'});
  await page.getByLabel('Compare with').selectOption({label: 'night'});
  await hasText('#comparison', 'Comparable');
  assert.equal(await page.locator('#comparison .curve').count(), 4);
  assert.match(page.url(), /#\/compare\/live\/night$/);
  await page.goto(`${fake.url}/#/compare/night/older`);
  await until(() => document.title === 'night against older · lossgauge' && document.querySelectorAll('#comparison .curve').length === 4);
  const asked = () => fake.requests.filter((url) => url.includes('compare?a=night&b=older')).length;
  assert.equal(asked(), 1);
  await page.waitForTimeout(6_000);  // more than the time between two rounds of a live comparison
  assert.equal(asked(), 1);
});

for (const scheme of ['light', 'dark']) {
  for (const [name, viewport] of [['wide', WIDE], ['phone', PHONE]]) {
    test(`a run of the past has no accessibility fault and no sideways scrolling: ${scheme}, ${name}`, async () => {
      addRunWithSteps('live', 3);
      addNight();
      fake.addPast(`llama-8b-sft-lr3e-4-bs512-warmup2000-cosine-mix7-${'x'.repeat(40)}`, WRITTEN);
      await open({scheme, viewport, hash: '#/run/night'});
      await page.locator('#past summary').click();
      await hasText('#curves-note', 'steps 0 to 59');
      for (const summary of await page.locator('#incidents summary').all()) await summary.click();
      await hasText('#incidents', 'The story of i-2.');
      await noFault();
      assert.ok((await stepsShown()).includes('59'));
    });
  }
}
