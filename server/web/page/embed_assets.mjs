// Lays the status page out as it is served and writes it as C++:
//
//     node embed_assets.mjs SOURCE_DIR RUNBOOKS_DIR NODE_MODULES DIST_DIR OUTPUT.cc
//
// DIST_DIR gets the same tree as files ("/" as index.html), for the browser tests. Output depends on the content only.
import {createHash} from 'node:crypto';
import {mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync} from 'node:fs';
import {dirname, extname, join} from 'node:path';

const CONTENT_TYPES = {
  '.html': 'text/html; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.txt': 'text/plain; charset=utf-8',
  '.md': 'text/plain; charset=utf-8',  // a browser shows it; text/markdown it would only keep as a file
};
const BYTES_PER_LINE = 24;

const [sourceDir, runbooksDir, nodeModules, distDir, output] = process.argv.slice(2);
if (!output) {
  console.error('usage: embed_assets.mjs SOURCE_DIR RUNBOOKS_DIR NODE_MODULES DIST_DIR OUTPUT.cc');
  process.exit(2);
}

const files = new Map();  // path as served -> file
for (const name of readdirSync(join(sourceDir, 'src'))) {
  if (extname(name) in CONTENT_TYPES) files.set(name === 'index.html' ? '/' : `/page/${name}`, join(sourceDir, 'src', name));
}
for (const name of readdirSync(runbooksDir)) {
  if (extname(name) === '.md') files.set(`/page/runbooks/${name}`, join(runbooksDir, name));
}
const uplot = join(nodeModules, 'uplot');
files.set('/page/uplot/uplot.js', join(uplot, 'dist/uPlot.esm.js'));
files.set('/page/uplot/uplot.css', join(uplot, 'dist/uPlot.min.css'));
files.set('/page/uplot/license.txt', join(uplot, 'LICENSE'));

rmSync(distDir, {recursive: true, force: true});
const arrays = [];
const rows = [];
const paths = [...files.keys()].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
for (const [index, path] of paths.entries()) {
  const bytes = readFileSync(files.get(path));
  const onDisk = path === '/' ? 'index.html' : path.slice(1);
  mkdirSync(dirname(join(distDir, onDisk)), {recursive: true});
  writeFileSync(join(distDir, onDisk), bytes);
  const type = CONTENT_TYPES[extname(onDisk)];
  const etag = createHash('sha256').update(bytes).digest('hex').slice(0, 32);
  const lines = [];
  for (let i = 0; i < bytes.length; i += BYTES_PER_LINE) lines.push(bytes.subarray(i, i + BYTES_PER_LINE).join(','));
  arrays.push(`// ${path}\nconstexpr unsigned char kBytes${index}[] = {\n${lines.join(',\n')}};\n`);
  rows.push(`    {${JSON.stringify(path)}, ${JSON.stringify(type)}, "\\"${etag}\\"", Text(kBytes${index})},`);
}

writeFileSync(output, `// Made by server/web/page/embed_assets.mjs; do not edit.
#include "server/web/page_assets.h"

#include <cstddef>

namespace lossgauge::web {
namespace {

${arrays.join('\n')}
template <std::size_t kSize>
std::string_view Text(const unsigned char (&bytes)[kSize]) {
  return {reinterpret_cast<const char*>(bytes), kSize};
}

}  // namespace

std::span<const PageAsset> PageAssets() {
  static const PageAsset assets[] = {
${rows.join('\n')}
  };
  return assets;
}

}  // namespace lossgauge::web
`);
