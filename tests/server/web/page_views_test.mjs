// The status page in Chromium: scales, keys, band over ranks, rank grid, two runs compared, long runs, no JavaScript, no network.
import assert from 'node:assert/strict';
import {test} from 'node:test';
import {plausibleStep} from './fake_api.mjs';
import {AxeBuilder, PHONE, WIDE, addRunWithSteps, fake, hasText, open, page, stepsShown, until} from './page_fixture.mjs';

const ODD = '🚀 "a/b" <i>\'c\'</i> 損失';

// How many pixels of a canvas are about of this colour.
const pixels = (selector, [red, green, blue], tolerance = 12) => page.evaluate(([where, r, g, b, t]) => {
  const canvas = document.querySelector(where);
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (Math.abs(data[i] - r) < t && Math.abs(data[i + 1] - g) < t && Math.abs(data[i + 2] - b) < t && data[i + 3] > 25) count++;
  }
  return count;
}, [selector, red, green, blue, tolerance]);

function addRanks(name, steps, losses) {
  fake.addRun(name, {layout: {worldSize: losses.length, dataParallel: losses.length}, producers: losses.map((_, rank) => ({rank, state: 'live', publishedStep: String(steps - 1)}))});
  for (let step = 0; step < steps; step++) {
    fake.addStep(name, step, {...plausibleStep(step), rankSteps: losses.map((by, rank) => ({rank, lossNats: plausibleStep(step).lossNats + by}))});
  }
}

test('each curve can be drawn on a logarithmic scale and back', async () => {
  addRunWithSteps('demo', 100);
  await open();
  await hasText('#curves-note', 'steps 0 to 99');
  const picture = () => page.evaluate(() => document.querySelector('.curve[data-field=lossNats] canvas').toDataURL());
  const linear = await picture();
  await page.locator('#scales [data-scale=log]').click();
  assert.equal(await page.locator('#scales [aria-pressed=true]').innerText(), 'log');
  await until((before) => document.querySelector('.curve[data-field=lossNats] canvas').toDataURL() !== before, linear);
  await page.locator('#scales [data-scale=auto]').click();
  await until((before) => document.querySelector('.curve[data-field=lossNats] canvas').toDataURL() === before, linear);
});

test('keys zoom, move and show all again', async () => {
  addRunWithSteps('demo', 201);
  await open();
  await hasText('#curves-note', 'steps 0 to 200');
  await page.locator('#curves').focus();
  await page.keyboard.press('+');
  await hasText('#curves-note', 'shown: 50 to 150');
  await page.keyboard.press('ArrowRight');
  await hasText('#curves-note', 'shown: 75 to 175');
  for (let i = 0; i < 9; i++) await page.keyboard.press('ArrowRight');
  await hasText('#curves-note', 'shown: 100 to 200');  // never past the end
  await page.keyboard.press('-');
  await until(() => !document.querySelector('#curves-note').textContent.includes('shown'));
  await page.keyboard.press('+');
  await hasText('#curves-note', 'shown: 50 to 150');
  await page.keyboard.press('0');
  await until(() => !document.querySelector('#curves-note').textContent.includes('shown'));
});

test('of a job with few ranks a band shows how far they lie apart', async () => {
  addRanks('demo', 60, [-1, 0, 1]);
  await open();
  await hasText('#curves-note', 'band: over the ranks');
  const band = [0x1d, 0x5f, 0x9e];
  await until(() => document.querySelectorAll('.curve').length >= 5);
  assert.ok(await pixels('.curve[data-field=lossNats] canvas', band, 14) > 1000, 'the band is filled');
  fake.addStep('demo', 60, {...plausibleStep(60), rankSteps: [{rank: 0, lossNats: 1}, {rank: 1, lossNats: 9}]});
  await hasText('#curves-note', 'steps 0 to 60');
  assert.ok(fake.requests.some((url) => url.includes('/steps/watch') && url.includes('include_ranks=true')));
});

test('of one rank, or of very many, there is no band and nobody asks for ranks', async () => {
  addRanks('many', 20, Array(17).fill(0));
  await open();
  await hasText('#curves-note', 'steps 0 to 19');
  await page.locator('#rank-grid li').nth(16).waitFor();
  assert.ok(!(await stepsShown()).includes('band'));
  assert.ok(!fake.requests.some((url) => url.includes('include_ranks')));
});

test('the rank grid says who is late, who is off and who is gone, in words too', async () => {
  const at = (rank, state, publishedStep) => ({rank, state, publishedStep: String(publishedStep)});
  addRunWithSteps('demo', 40, {layout: {worldSize: 6}, producers: [at(0, 'live', 39), at(1, 'live', 30), at(2, 'lost', 39), at(3, 'frozen', 39), at(4, 'live', 39), at(5, 'live', 38)]});
  fake.setIncidents('demo', [{id: 'i', condition: 'integrity', kind: 'mass', severity: 'CRITICAL', open: true, rank: 4, onsetStep: '3', lastStep: '39'}]);
  fake.addStep('demo', 40, {...plausibleStep(40), rankSteps: [0, 1, 2, 3, 4, 5].map((rank) => ({rank, lossNats: rank === 4 ? 5 : 2}))});
  await open();
  await page.locator('#rank-grid [data-rank="4"][data-state=off]').waitFor();
  const states = await page.locator('#rank-grid li').evaluateAll((all) => all.map((one) => one.dataset.state));
  assert.deepEqual(states, ['well', 'late', 'lost', 'frozen', 'off', 'well']);
  assert.match(await page.locator('#rank-grid [data-rank="1"]').textContent(), /rank 1: behind the others, 9 steps behind/);
  await until(() => /rank 4: named by an open incident.*loss 5.000, 3.000 from the median/.test(document.querySelector('#rank-grid [data-rank="4"]').textContent));
});

test('two runs are compared: the server says whether they may be, and the difference is drawn where targets were the same', async () => {
  for (const [name, by] of [['plain', 0], [ODD, 0.5]]) {
    fake.addRun(name);
    for (let step = 0; step < 80; step++) {
      const loss = plausibleStep(step).lossNats + by;
      fake.addStep(name, step, {...plausibleStep(step), lossNats: loss, targetFingerprint: String(step < 40 || by === 0 ? step + 1 : step + 1000)});
    }
  }
  fake.comparison = {a: 'plain', b: ODD, comparable: true, matchedBy: 'target_fingerprint', compared: '40', differing: '40', firstDifferingStep: '40',
    firstDifference: 'other targets', loss: {a: 2, b: 2.5, difference: 0.5, low: 0.48, high: 0.52}, perplexity: {a: 7.389, b: 12.18, difference: 4.793}};
  await open({hash: '#/run/plain'});
  await hasText('#run-name', 'plain');
  await page.getByLabel('Compare with').selectOption({label: ODD});
  await hasText('#comparison', 'Comparable');
  assert.equal(await page.locator('#comparison-title').innerText(), `a: plain against b: ${ODD}`);
  assert.ok(await page.title() === `plain against ${ODD} · lossgauge`);
  for (const wanted of ['by target fingerprint', '0.5000', '0.4800 to 0.5200', '40 steps compared', '40 with other targets', 'first at step 40: other targets']) {
    await hasText('#comparison', wanted);
  }
  // As the server's words call them.
  assert.deepEqual(await page.locator('#comparison thead th').allInnerTexts(), ['Mean', 'a', 'b', 'b less a', '95 % band']);
  assert.equal(await page.locator('#comparison .curve').count(), 4);
  assert.match(await page.locator('#comparison [data-curve^="Difference"] .uplot').getAttribute('aria-label'), /last 0\.5000$/);
  assert.equal(await page.locator('#comparison i').count(), 0);  // a name is text
  assert.equal(await page.locator('#run').isVisible(), false);
  await page.locator('#comparison-title a').last().click();
  await hasText('#run-name', ODD);
  assert.equal(await page.locator('#comparison').isVisible(), false);
});

test('of a run that has gone far beyond the end of the other the steps that both have are drawn', async () => {
  addRunWithSteps('long', 6_000);
  addRunWithSteps('short', 60);
  fake.comparison = {comparable: true, matchedBy: 'unmasked_tokens'};
  await open({hash: '#/compare/long/short'});
  await page.locator('#comparison [data-curve^="Difference"]').waitFor();
  const loss = await page.locator('#comparison [data-curve^="Loss"] .uplot').getAttribute('aria-label');
  assert.match(loss, /long last (\S+), short last \1$/);
});

test('runs that must not be compared are not, and the reason is given', async () => {
  addRunWithSteps('a', 10);
  addRunWithSteps('b', 10);
  fake.comparison = {a: 'a', b: 'b', comparable: false, reason: 'not comparable: no step saw the same targets in both', differing: '10'};
  await open({hash: '#/compare/a/b'});
  await hasText('#comparison', 'Not comparable');
  await hasText('#comparison', 'no step saw the same targets in both');
  await page.goto(`${fake.url}/#/compare/a/nope`);
  await hasText('#comparison', 'One of these runs is not known');
});

test('a comparison bears gradients of zero and beyond every axis', async () => {
  for (const run of ['a', 'b']) {
    addRunWithSteps(run, 20);
    for (let step = 20; step < 30; step++) fake.addStep(run, step, {...plausibleStep(step), gradNorm: [0, 8e-30, 1e90, 'Infinity'][step % 4]});
  }
  fake.comparison = {comparable: true, matchedBy: 'unmasked_tokens'};
  await open({hash: '#/compare/a/b'});
  await page.locator('#comparison .curve').nth(3).waitFor();
  await page.waitForTimeout(300);  // and no script error, which afterEach looks for
});

for (const [name, viewport] of [['wide', WIDE], ['phone', PHONE]]) {
  test(`a comparison has no accessibility fault and no sideways scrolling: ${name}`, async () => {
    for (const run of ['a', 'b']) addRunWithSteps(run, 30);
    const loss = {a: 4.329, b: 4.329, difference: -3.41e-10, low: -3.71e-9, high: 3.02e-9};
    fake.comparison = {comparable: true, matchedBy: 'unmasked_tokens', loss, perplexity: {a: 75.88, b: 75.88, difference: -2.59e-8}};
    await open({hash: '#/compare/a/b', viewport, scheme: name === 'wide' ? 'dark' : 'light'});
    await page.locator('#comparison .curve').nth(2).waitFor();
    const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(content <= window, `${content} > ${window}`);
    const cut = await page.evaluate(() => [...document.querySelectorAll('#comparison, .comparison-head, .comparison-figures')]
      .filter((one) => one.scrollWidth > one.clientWidth || one.getBoundingClientRect().right > innerWidth - 9).map((one) => one.className));
    assert.deepEqual(cut, []);
    const found = await new AxeBuilder({page}).analyze();
    assert.deepEqual(found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' ')}`), []);
  });
}

test('a long run is loaded piece by piece until ten thousand points are there', async () => {
  addRunWithSteps('long', 12_500);
  await open();
  await hasText('#curves-note', 'steps 2500 to 12499');
  const tails = fake.requests.filter((url) => url.startsWith('/api/v1/steps?') && url.includes('last_step'));
  assert.equal(tails.length, 4);
  assert.ok(tails.every((url) => url.includes('include_thinned=true')));
  fake.addStep('long', 12_500, plausibleStep(12_500));
  await hasText('#curves-note', 'to 12500');
});

test('without JavaScript the browser is sent to the plain table', async () => {
  addRunWithSteps('demo', 3);
  await open({javaScriptEnabled: false});
  await page.waitForURL('**/plain');
  await hasText('h1', 'plain table');
});

test('nothing is asked of any other host', async () => {
  addRunWithSteps('demo', 20);
  addRunWithSteps('other', 20);
  const hosts = new Set();
  await open();
  page.on('request', (request) => hosts.add(new URL(request.url()).host));
  await page.reload();
  await hasText('#curves-note', 'steps 0 to 19');
  await page.goto(`${fake.url}/#/compare/demo/other`);
  await page.locator('#comparison .curve').first().waitFor();
  assert.deepEqual([...hosts], [new URL(fake.url).host]);
});
