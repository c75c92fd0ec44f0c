// Takes the pictures of the status page that the README shows, from a real lossgauged (for example the one that deploy/demo.sh keeps up).
//
//   node tests/end_to_end/screenshots.mjs URL RUN OUT_DIR [OTHER_RUN]      with another run: the comparison of both, too
//
// Needs LOSSGAUGE_BROWSER_MODULES (build/cpu/tests/server/web/npm) and Chromium at LOSSGAUGE_CHROMIUM (/usr/bin/chromium).
import {createRequire} from 'node:module';
import {join, resolve} from 'node:path';

const [url, run, out, other] = process.argv.slice(2);
if (!out) {
  console.error('usage: screenshots.mjs URL RUN OUT_DIR [OTHER_RUN]');
  process.exit(2);
}
const require = createRequire(resolve(process.env.LOSSGAUGE_BROWSER_MODULES ?? 'build/cpu/tests/server/web/npm', 'index.js'));
const {chromium} = require('playwright-core');
const browser = await chromium.launch({
  executablePath: process.env.LOSSGAUGE_CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
const views = {run: `#/run/${encodeURIComponent(run)}`, ...(other && {compare: `#/compare/${encodeURIComponent(run)}/${encodeURIComponent(other)}`})};
const looks = ['dark', 'light'].flatMap((scheme) => [[1440, 1350], [390, 844]].map(([width, height]) => ({scheme, width, height})));
for (const {scheme, width, height} of looks) {
  const look = {viewport: {width, height}, colorScheme: scheme, deviceScaleFactor: width < 500 ? 2 : 1};
  for (const [name, hash] of Object.entries(views)) {
    const context = await browser.newContext(look);
    const page = await context.newPage();
    const errors = [];
    page.on('pageerror', (error) => errors.push(error.stack ?? String(error)));
    await page.goto(`${url}/${hash}`);
    await page.locator('canvas').first().waitFor({timeout: 20_000});
    // All of a long history comes in several answers.
    if (name === 'run') await page.getByText(/^steps 0 to /).waitFor({timeout: 20_000});
    await page.waitForTimeout(2_000);
    await page.screenshot({path: join(out, `${name}-${scheme}-${width}.png`), fullPage: width < 500});
    if (errors.length > 0) throw new Error(errors.join('\n'));
    await context.close();
  }
  const context = await browser.newContext({...look, javaScriptEnabled: false});
  const plain = await context.newPage();
  await plain.goto(`${url}/`);
  await plain.waitForURL('**/plain');
  const cut = await plain.locator('.plain-runs').evaluate((table) => table.scrollWidth > table.clientWidth);
  if (cut) throw new Error(`the plain table is wider than ${width}`);
  await plain.screenshot({path: join(out, `plain-${scheme}-${width}.png`), fullPage: true});
  await context.close();
}
await browser.close();
