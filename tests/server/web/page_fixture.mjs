// A page in Chromium over a stand-in for the server, new for each test. Needs LOSSGAUGE_PAGE_DIST (the page as built), LOSSGAUGE_BROWSER_MODULES (npm),
// LOSSGAUGE_CHROMIUM. Waits are for conditions, each with a generous limit; nothing is measured.
import assert from 'node:assert/strict';
import {after, afterEach, before, beforeEach} from 'node:test';
import {createRequire} from 'node:module';
import {join} from 'node:path';
import {plausibleStep, startFake} from './fake_api.mjs';

const require = createRequire(join(process.env.LOSSGAUGE_BROWSER_MODULES, 'index.js'));
const {chromium} = require('playwright-core');
export const {AxeBuilder} = require('@axe-core/playwright');

export const WIDE = {width: 1440, height: 900};
export const PHONE = {width: 390, height: 844};
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'];

let browser;
export let fake;  // live: that of the running test
export let page;
let faults;  // what the page complained about: script errors and violations of its own policy

before(async () => { browser = await chromium.launch({executablePath: process.env.LOSSGAUGE_CHROMIUM, args: FLAGS}); });
after(async () => { await browser.close(); });
beforeEach(async () => {
  fake = await startFake(process.env.LOSSGAUGE_PAGE_DIST);
  faults = [];
});
afterEach(async () => {
  await page?.context().close();
  await fake.close();
  assert.deepEqual(faults, []);
});

export async function open({hash = '', viewport = WIDE, scheme = 'light', ...options} = {}) {
  const context = await browser.newContext({viewport, colorScheme: scheme, ...options});
  page = await context.newPage();
  page.setDefaultTimeout(60_000);
  page.on('pageerror', (error) => faults.push(String(error)));
  page.on('console', (message) => {
    if (/Content Security Policy|Refused to/.test(message.text())) faults.push(message.text());
  });
  await page.goto(`${fake.url}/${hash}`);
}

// Until `predicate` holds in the page. Not waitForFunction: that evaluates text within the page, which the page's policy forbids.
export async function until(predicate, argument) {
  for (let tries = 0; tries < 1200; tries++) {
    if (await page.evaluate(predicate, argument)) return;
    await page.waitForTimeout(50);
  }
  assert.fail(`never came true: ${predicate}`);
}

export const text = (selector) => page.locator(selector).innerText();
export const hasText = (selector, wanted) => page.locator(selector, {hasText: wanted}).first().waitFor();
export const runNames = () => page.locator('#runs .run-name').allInnerTexts();
export const stepsShown = () => page.locator('#curves-note').innerText();

export function addRunWithSteps(name, count, fields = {}) {
  fake.addRun(name, fields);
  for (let step = 0; step < count; step++) fake.addStep(name, step, plausibleStep(step));
}
