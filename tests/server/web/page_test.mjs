// The status page in Chromium: runs, verdict, curves, incidents, ranks of one run.
import assert from 'node:assert/strict';
import {test} from 'node:test';
import {plausibleStep, tellStory} from './fake_api.mjs';
import {AxeBuilder, PHONE, WIDE, addRunWithSteps, fake, hasText, open, page, runNames, stepsShown, text, until} from './page_fixture.mjs';

test('runs are listed with the worst verdict first and ended runs last', async () => {
  fake.addRun('calm', {action: 'CONTINUE'});
  fake.addRun('over', {action: 'HALT', ended: true});
  fake.addRun('young', {action: 'WATCH'});
  fake.addRun('broken', {action: 'HALT'});
  fake.addRun('lost', {action: 'RESTART'});
  fake.addRun('new', {action: 'UNKNOWN'});
  await open();
  await hasText('#runs', 'calm');
  assert.deepEqual(await runNames(), ['broken', 'lost', 'young', 'new', 'calm', 'over']);
  await hasText('#run-name', 'broken');  // the worst is opened by itself
  assert.match(page.url(), /#\/run\/broken$/);
});

test('the verdict comes with its reason, codes, evidence, resume point and term', async () => {
  addRunWithSteps('demo', 30, {action: 'RESTART', reason: 'divergence since step 12', verdict: {
    reasonCodes: ['divergence'], lastGoodStep: '11', resumePoint: {step: '10', path: '/ckpt/10.pt'}, skip: {first: '11', last: '14'}, rankAtFault: 3,
    evidence: [{name: 'loss', value: 7.25, unit: 'nats/token', text: ''}]}});
  await open();
  await hasText('.action-word', 'RESTART');
  for (const wanted of ['divergence since step 12', 'step 10  /ckpt/10.pt', '11 to 14', '7.250 nats/token', 'Rank at fault', 'valid']) {
    await hasText('#verdict', wanted);
  }
  assert.deepEqual(await page.locator('.codes li').allInnerTexts(), ['divergence']);
});

test('history is loaded and new steps arrive live on the curves and in the figures', async () => {
  addRunWithSteps('demo', 50);
  await open();
  await hasText('#curves-note', 'steps 0 to 49');
  assert.deepEqual(await page.locator('.curve').evaluateAll((all) => all.map((one) => one.dataset.field)),
    ['lossNats', 'perplexity', 'maxAbsLogit', 'logZMeanNats', 'gradNorm']);
  fake.addStep('demo', 50, {...plausibleStep(50), lossNats: 4.321});
  await hasText('#curves-note', 'steps 0 to 50');
  await hasText('.curve[data-field=lossNats] .curve-value', '4.321');
  await hasText('#readouts', '4.321');
  await page.locator('.connection-live').waitFor();
});

test('a signal that was not measured has no curve, and a missing value is not zero', async () => {
  fake.addRun('observe-only');
  for (let step = 0; step < 5; step++) fake.addStep('observe-only', step, {lossNats: 2.5, gradNorm: 1});
  await open();
  await page.locator('.curve[data-field=gradNorm]').waitFor();
  assert.equal(await page.locator('.curve[data-field=maxAbsLogit]').count(), 0);
  assert.match(await page.locator('#readouts > div', {hasText: 'max |z|'}).innerText(), /–/);
});

test('a NaN step is marked and does not hide the other steps', async () => {
  addRunWithSteps('demo', 20);
  fake.addStep('demo', 20, {lossNats: 'NaN', perplexity: 'NaN', nonfiniteRows: '2'});
  await open();
  await page.locator('#readouts .nonfinite', {hasText: 'NaN'}).first().waitFor();
  assert.equal(await page.locator('.curve').count(), 5);
  // The cross is drawn in the colour of a critical finding, at the foot of the loss curve.
  await until(() => {
    const canvas = document.querySelector('.curve[data-field=lossNats] canvas');
    const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < data.length; i += 4) {
      if (Math.abs(data[i] - 0xc0) < 12 && Math.abs(data[i + 1] - 0x3a) < 12 && data[i + 2] < 12 && data[i + 3] > 200) return true;
    }
    return false;
  });
});

test('a gradient of zero and a perplexity beyond every axis break no curve', async () => {
  addRunWithSteps('demo', 20);
  for (let step = 20; step < 30; step++) fake.addStep('demo', step, {...plausibleStep(step), gradNorm: step % 2 ? 0 : 8e-30, perplexity: step % 2 ? 'Infinity' : 1e90});
  await open();
  await hasText('#curves-note', 'steps 0 to 29');
  fake.addStep('demo', 30, plausibleStep(30));
  await hasText('#curves-note', 'steps 0 to 30');  // and no script error, which afterEach looks for
});

test('incidents are listed with explanation and acknowledgement, and marked on the curves', async () => {
  addRunWithSteps('demo', 100);
  const marked = () => page.evaluate(() => {
    const canvas = document.querySelector('.curve[data-field=lossNats] canvas');
    const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let i = 0; i < data.length; i += 4) {
      if (Math.abs(data[i] - 0xa8) < 12 && Math.abs(data[i + 1] - 0x6a) < 12 && data[i + 2] < 12 && data[i + 3] > 200) count++;
    }
    return count;
  });
  await open();
  await hasText('#curves-note', 'steps 0 to 99');
  assert.equal(await marked(), 0);
  fake.setIncidents('demo', [{id: 'i-1', condition: 'loss_spike', kind: 'logit_blowup', severity: 'WARNING', open: true, onsetStep: '40', peakStep: '42',
    lastStep: '60', summary: 'Loss rose by 2.4 nats.', evidence: [{name: 'rise', value: 2.41, unit: 'nats/token'}], acknowledged: true,
    acknowledgedBy: 'ada', acknowledgedComment: 'crawl page', hiddenBy: ''}]);
  fake.setVerdict('demo', {action: 'WATCH', reason: 'loss spike'});  // a change of verdict fetches the incidents
  await hasText('#incidents', 'loss spike: logit blowup');
  await hasText('#incidents', 'acknowledged by ada');
  await until(() => document.querySelector('#incidents-note').textContent === '1 open, 1 in all');
  await page.waitForTimeout(400);  // one drawing
  assert.ok(await marked() > 100, 'the label of the incident is on the curve');
  await page.locator('#incidents summary').click();
  await hasText('#incidents', 'Loss rose by 2.4 nats.');
  await hasText('#incidents', 'crawl page');
  await hasText('#incidents', 'The story of i-1.');
  await hasText('#incidents', '30 (loss.close_steps) clean steps <b>end</b> it.');  // text, not markup
  assert.ok(!(await page.locator('.incident-story').textContent()).includes('told already'), 'evidence stands in the facts');
  await page.getByRole('button', {name: 'Show on the curves'}).click();
  assert.equal(await page.locator('#ranges [aria-pressed=true]').count(), 0);
});

test('the story of an open incident stays while its numbers change, and is asked for again only when more changes', async () => {
  addRunWithSteps('demo', 100);
  const incident = {id: 'i-1', condition: 'loss_spike', severity: 'WARNING', open: true, onsetStep: '40', peakStep: '42', lastStep: '60',
    summary: 'Loss rose.', evidence: [{name: 'rise', value: 2.41, unit: 'nats/token'}]};
  const other = {id: 'i-0', condition: 'blip', severity: 'INFO', open: false, onsetStep: '10', lastStep: '11', summary: 'A blip.', resolvedTime: '2026-03-04T05:06:07Z'};
  const change = (...incidents) => {
    fake.setIncidents('demo', incidents);
    fake.setVerdict('demo', {action: 'WATCH', reason: `spike ${Math.random()}`});  // a change of verdict fetches the incidents
  };
  const asked = () => fake.requests.filter((url) => url.startsWith('/api/v1/explain')).length;
  await open();
  await hasText('#curves-note', 'steps 0 to 99');
  change(incident, other);
  await hasText('#incidents', 'steps 40 to 60');
  await page.locator('#incidents summary').first().click();
  await hasText('#incidents', 'The story of i-1.');
  assert.equal(asked(), 1);
  await page.evaluate(() => {
    window.kept = {story: document.querySelector('.incident-story section'), other: document.querySelector('#incidents details[data-id=i-0]')};
  });
  for (const step of ['61', '62', '63']) {
    change({...incident, lastStep: step, evidence: [{name: 'rise', value: 2.5, unit: 'nats/token'}]}, other);
    await hasText('#incidents', `steps 40 to ${step}`);
  }
  await page.waitForTimeout(300);  // a toggle of what was made open comes later
  assert.equal(asked(), 1);
  assert.ok(await page.evaluate(() => window.kept.story.isConnected && document.querySelector('#incidents details[open]').contains(window.kept.story)));
  assert.ok(await page.evaluate(() => window.kept.other.isConnected), 'what did not change was not made anew');
  change({...incident, lastStep: '63', open: false, resolvedTime: '2026-03-04T05:06:07Z'}, other);
  await hasText('#incidents', 'resolved');
  await until(() => !window.kept.story.isConnected);
  await hasText('#incidents', 'The story of i-1.');
  assert.equal(asked(), 2);
});

test('dragging over a curve zooms all of them and a double click shows everything again', async () => {
  addRunWithSteps('demo', 200);
  await open();
  await hasText('#curves-note', 'steps 0 to 199');
  const box = await page.locator('.curve[data-field=lossNats] .u-over').boundingBox();
  await page.mouse.move(box.x + box.width * 0.25, box.y + 50);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.5, box.y + 50, {steps: 5});
  await page.mouse.up();
  await hasText('#curves-note', 'shown:');
  const [, first, last] = /shown: (\d+) to (\d+)/.exec(await stepsShown());
  assert.ok(Math.abs(first - 50) <= 2 && Math.abs(last - 100) <= 2, await stepsShown());
  fake.addStep('demo', 200, plausibleStep(200));  // a new step does not take the view away
  await hasText('#curves-note', 'steps 0 to 200');
  assert.match(await stepsShown(), /shown: /);
  await page.mouse.dblclick(box.x + box.width * 0.5, box.y + 50);
  await until(() => !document.querySelector('#curves-note').textContent.includes('shown'));
  assert.match(await page.locator('.curve[data-field=lossNats] .uplot').getAttribute('aria-label'), /^Loss over steps: last /);
});

test('a resumed run shows both attempts', async () => {
  fake.addRun('demo', {attempts: [{attempt: 'a0'}, {attempt: 'a1'}]});
  for (let step = 0; step < 30; step++) fake.addStep('demo', step, {...plausibleStep(step), attempt: 'a0'});
  for (let step = 20; step < 40; step++) fake.addStep('demo', step, plausibleStep(step));
  await open();
  await hasText('#curves-note', 'steps 0 to 39');
  assert.match(await stepsShown(), /grey: earlier attempts/);
});

test('ranks in trouble stand first', async () => {
  addRunWithSteps('demo', 5, {layout: {worldSize: 3, dataParallel: 3}, producers: [
    {rank: 0, state: 'live', publishedStep: '4', enteredStep: '4', recordsLost: '0'},
    {rank: 1, state: 'live', publishedStep: '4', enteredStep: '5', recordsLost: '12'},
    {rank: 2, state: 'lost', publishedStep: '-1', enteredStep: '-1', recordsLost: '0'}]});
  await open();
  await page.locator('#ranks tbody tr').nth(2).waitFor();
  const rows = await page.locator('#ranks tbody tr').allInnerTexts();
  assert.match(rows[0], /^2\s+lost\s+–/);
  assert.match(rows[2], /^1\s+live\s+4 \(in 5\).*12/);
});

test('a verdict that has expired is shown as stale and never as good', async () => {
  addRunWithSteps('demo', 5, {action: 'CONTINUE', reason: 'fresh', termSeconds: 5});
  await open();
  await page.locator('.tone-continue.verdict').waitFor();
  // The server still answers, but its verdict does not renew itself: a daemon whose drain hangs.
  const frozen = fake.verdictOf(fake.runs.get('demo'));
  fake.verdictOf = () => frozen;
  await page.locator('#stale', {hasText: 'Data stale: its last verdict has expired'}).waitFor();
  assert.equal(await text('.action-word'), 'UNKNOWN');
  assert.match(await text('.action-before'), /last known: CONTINUE/);
  assert.equal(await page.locator('.verdict.tone-continue').count(), 0);
});

test('losing the server is said plainly, nothing stays green, and it heals by itself', async () => {
  addRunWithSteps('demo', 5, {action: 'CONTINUE'});
  await open();
  await page.locator('.tone-continue.verdict').waitFor();
  fake.answering = false;
  fake.dropStreams();
  await page.locator('#stale', {hasText: 'lossgauged cannot be reached'}).waitFor();
  await page.locator('.connection-down').waitFor();
  assert.equal(await page.locator('.tone-continue').count(), 0);
  fake.answering = true;
  fake.addStep('demo', 5, plausibleStep(5));
  await page.locator('.connection-live').waitFor();
  await page.locator('.tone-continue.verdict').waitFor();
  await hasText('#curves-note', 'steps 0 to 5');  // what was missed meanwhile is there
  assert.equal(await page.locator('#stale').isVisible(), false);
});

test('where event streams do not come through, polling shows new steps and verdicts', async () => {
  fake.streaming = false;
  addRunWithSteps('demo', 5);
  await open();
  await hasText('#connection', 'Polling');
  fake.addStep('demo', 5, plausibleStep(5));
  fake.setVerdict('demo', {action: 'HALT', reason: 'integrity broken'});
  await hasText('.action-word', 'HALT');
  await hasText('#curves-note', 'steps 0 to 5');
});

test('a hidden page gives its streams back and misses nothing', async () => {
  addRunWithSteps('demo', 5);
  await open();
  await page.locator('.tone-continue.verdict').waitFor();
  await until(() => document.title === 'CONTINUE · demo · lossgauge');
  const show = (hidden) => page.evaluate((value) => {
    Object.defineProperty(document, 'hidden', {configurable: true, get: () => value});
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
  await show(true);
  for (let tries = 0; fake.streams.size > 0 && tries < 400; tries++) await page.waitForTimeout(50);
  fake.addStep('demo', 5, plausibleStep(5));
  fake.setVerdict('demo', {action: 'HALT', reason: 'integrity broken'});
  await until(() => document.title === 'HALT · demo · lossgauge');  // the tab's title still tells
  assert.equal(fake.streams.size, 0);
  await show(false);
  await hasText('#curves-note', 'steps 0 to 5');
  assert.equal(fake.streams.size, 2);
});

test('odd run names are text, can be linked to, and run nothing', async () => {
  const names = ['<img src=x onerror="window.hacked=1">', 'a/b?c=d&e#f %41', '"quoted" \\ \'single\'', '🚀 損失', '../..', ' '];
  for (const name of names) addRunWithSteps(name, 3, {reason: '<b>bold</b>', verdict: {reasonCodes: ['<script>window.hacked=1</script>']}});
  await open();
  await page.locator('#runs li').nth(names.length - 1).waitFor();
  for (const name of names) {
    await page.goto(`${fake.url}/#/run/${encodeURIComponent(name)}`);
    await until((wanted) => document.getElementById('run-name')?.textContent === wanted, name);
    await hasText('#curves-note', 'steps 0 to 2');
  }
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator('#runs img, #verdict img, #verdict b').count(), 0);
});

test('a link to a run that is not there says so', async () => {
  fake.addRun('demo');
  await open({hash: '#/run/nope'});
  await hasText('#no-run', 'There is no run named “nope”');
  await page.goto(`${fake.url}/#/run/%E0%A4%A`);  // no valid encoding: as if no run were named
  await hasText('#run-name', 'demo');
});

test('the keyboard reaches everything and arrows walk through the runs', async () => {
  for (const name of ['a', 'b', 'c']) addRunWithSteps(name, 3);
  await open();
  await hasText('#run-name', 'a');
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.className), 'skip');
  await page.keyboard.press('Tab');
  await page.keyboard.press('ArrowDown');
  await hasText('#run-name', 'b');
  await page.keyboard.press('End');
  await hasText('#run-name', 'c');
  await page.keyboard.press('ArrowUp');
  await hasText('#run-name', 'b');
  const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(ring, 'solid');
  // A refresh of the list does not take the focus away.
  fake.addRun('zz', {action: 'HALT'});
  await hasText('#runs', 'zz');
  assert.equal(await page.evaluate(() => document.activeElement.closest('li')?.dataset.run), 'b');
});

test('a change of verdict is announced to screen readers', async () => {
  addRunWithSteps('demo', 3);
  await open();
  await page.locator('.tone-continue.verdict').waitFor();
  fake.setVerdict('demo', {action: 'HALT', reason: 'integrity broken'});
  await until(() => document.getElementById('announcement').textContent === 'demo: verdict HALT. integrity broken');
  assert.equal(await page.locator('#announcement').getAttribute('aria-live'), 'polite');
});

test('without JavaScript there are links to the same data', async () => {
  const html = await (await fetch(`${fake.url}/`)).text();
  const inside = /<body>.*<noscript>(.*?)<\/noscript>/s.exec(html)[1];
  assert.match(inside, /href="\/api\/v1\/runs"/);
  assert.match(inside, /href="\/metrics"/);
});

for (const scheme of ['light', 'dark']) {
  for (const [name, viewport] of [['wide', WIDE], ['phone', PHONE]]) {
    test(`no accessibility fault and no sideways scrolling: ${scheme}, ${name}`, async () => {
      const story = tellStory(fake);
      try {
        await open({scheme, viewport});
        await page.locator('.curve').nth(4).waitFor();
        await hasText('#incidents', 'divergence');
        for (const summary of await page.locator('#incidents summary').all()) await summary.click();
        const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
        assert.ok(content <= window, `${content} > ${window}`);
        const found = await new AxeBuilder({page}).analyze();
        assert.deepEqual(found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' ')}`), []);
      } finally {
        clearInterval(story);
      }
    });
  }
}

test('dark and light differ in paper and in curves', async () => {
  addRunWithSteps('demo', 5);
  await open({scheme: 'dark'});
  await page.locator('.curve').first().waitFor();
  const paper = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const dark = await paper();
  await page.emulateMedia({colorScheme: 'light'});
  assert.notEqual(await paper(), dark);
  await page.locator('.curve').nth(4).waitFor();  // drawn anew
});
