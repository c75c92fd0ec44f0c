// The status page in Chromium, as it is read: in a hurry, by keyboard alone, with a finger.
import assert from 'node:assert/strict';
import {test} from 'node:test';
import {plausibleStep} from './fake_api.mjs';
import {PHONE, WIDE, addRunWithSteps, fake, hasText, open, page, stepsShown, text, until} from './page_fixture.mjs';

test('the link that skips the list leads into the run, which stays', async () => {
  for (const name of ['a', 'b']) addRunWithSteps(name, 3);
  await open({hash: '#/run/b'});
  await hasText('#run-name', 'b');
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.className), 'skip');
  await page.keyboard.press('Enter');
  await until(() => document.activeElement.id === 'main');
  assert.match(page.url(), /#\/run\/b$/);
  assert.equal(await text('#run-name'), 'b');
  await page.keyboard.press('Tab');
  assert.ok(await page.evaluate(() => document.getElementById('run').contains(document.activeElement)));
});

test('while earlier steps are on their way the curves are not taken for all there is', async () => {
  addRunWithSteps('demo', 40);
  fake.heldSteps = [];
  await open();
  await hasText('#curves-note', 'loading');
  fake.addStep('demo', 40, plausibleStep(40));
  await hasText('#curves-note', 'steps 40 to 40 · loading earlier ones');
  const [first, ...others] = fake.heldSteps;
  fake.heldSteps = null;
  for (const reply of [first, ...others]) reply();
  await hasText('#curves-note', 'steps 0 to 40');
  await until(() => !document.querySelector('#curves-note').textContent.includes('loading'));
});

test('a run without steps is not loading for ever', async () => {
  fake.addRun('new');
  await open();
  await hasText('#curves-note', 'no steps yet');
});

test('names of runs that differ at their end can be told apart in the list', async () => {
  const names = ['seed1', 'seed2'].map((end) => `llama-8b-sft-lr3e-4-bs512-warmup2000-cosine-mix7-${end}`);
  for (const name of names) addRunWithSteps(name, 3);
  for (const viewport of [WIDE, PHONE]) {
    await page?.context().close();
    await open({viewport});
    await page.locator('#runs li').nth(1).waitFor();
    const cut = await page.locator('#runs .run-name').evaluateAll((all) => all.map((one) => {
      const end = document.createRange();
      end.setStart(one.firstChild, one.firstChild.length - 1);
      end.setEnd(one.firstChild, one.firstChild.length);
      const [letter, box] = [end.getBoundingClientRect(), one.getBoundingClientRect()];
      return letter.right > box.right + 1 || letter.bottom > box.bottom + 1;
    }));
    assert.deepEqual(cut, [false, false]);
  }
  assert.deepEqual(await page.locator('#runs a').evaluateAll((all) => all.map((one) => one.title)), names);  // of longer ones still
});

test('the verdict says nothing twice, and the newest checkpoint is not taken for the one to resume from', async () => {
  const summary = 'Loss left its course at step 12 (2.1 nats)';
  addRunWithSteps('demo', 30, {action: 'RESTART', reason: `${summary}. Resume from the checkpoint of step 10`, lastCheckpointStep: '28', lastCheckpointPath: '/ckpt/28.pt',
    verdict: {resumePoint: {step: '10', path: '/ckpt/10.pt'}, evidence: [{name: 'last_step_age', value: 0, unit: 's', text: 'step 29'},
      {name: 'incident', text: `i-1 divergence: ${summary}`}, {name: 'incident', text: 'i-2 frozen: rank 3 stands still'}]}});
  await open();
  await hasText('.action-word', 'RESTART');
  await hasText('#verdict', '/ckpt/28.pt');
  const facts = await page.locator('#verdict .facts > div').evaluateAll((all) => all.map((one) => [one.firstChild.textContent, one.lastChild.textContent]));
  assert.deepEqual(facts.filter(([name]) => name === 'incident').map(([, said]) => said), ['i-1 divergence', 'i-2 frozen: rank 3 stands still']);
  assert.deepEqual(facts.filter(([name]) => /step age/.test(name)), []);
  assert.deepEqual(facts.filter(([, said]) => said.includes('/ckpt/')).map(([name]) => name), ['Resume from', 'Newest checkpoint']);
});

test('an open incident says how it is acknowledged', async () => {
  addRunWithSteps('demo', 30);
  const incident = {condition: 'loss_spike', severity: 'WARNING', open: true, onsetStep: '10', lastStep: '12', summary: 'Loss rose.'};
  fake.setIncidents('demo', [{...incident, id: 'i-1'}, {...incident, id: 'i-2', acknowledged: true, acknowledgedBy: 'ada'}, {...incident, id: 'i-3', open: false}]);
  await open();
  await page.locator('#incidents summary').nth(2).waitFor();
  for (const summary of await page.locator('#incidents summary').all()) await summary.click();
  assert.deepEqual(await page.locator('#incidents dd', {hasText: 'lossgaugectl'}).allInnerTexts(), ['lossgaugectl ack i-1']);
});

test('who has a finger is told nothing of mouse and keys', async () => {
  addRunWithSteps('demo', 30);
  await open({viewport: PHONE, hasTouch: true, isMobile: true});
  await hasText('#curves-note', 'steps 0 to 29');
  assert.equal(await page.locator('#curves-keys').isVisible(), false);
  await page.context().close();
  await open();
  await hasText('#curves-note', 'steps 0 to 29');
  assert.equal(await page.locator('#curves-keys').isVisible(), true);
  assert.match(await stepsShown(), /^steps 0 to 29$/);
});
