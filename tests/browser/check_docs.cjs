/* Check the built documentation in Chromium: names are not broken, nothing is loaded
   from the internet, and formulas are drawn.

   $ cd /tmp && npm i @sparticuz/chromium puppeteer-core
   $ node REPO/tests/browser/check_docs.cjs OUT DOCS api.html guide/start.html ...

   Packages are those of the current folder. Without pages, all of DOCS are checked.
   Screenshots go to OUT. A fault is a name that is broken in the middle, text of the
   article that is right of the screen, a formula that is left as TeX, or a request that
   is not for a file. The exit code is 1 if there is one at 1280 or 375 pixels. */
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const {createRequire} = require("node:module");
const {pathToFileURL} = require("node:url");

const installed = createRequire(path.join(process.cwd(), "package.json"));
const chromium = installed("@sparticuz/chromium");
const puppeteer = installed("puppeteer-core");

/* Words of names that are on two lines, and texts that are cut at the right. */
function faults() {
  const article = document.querySelector("article");
  const found = [];
  const range = document.createRange();
  const walk = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const element = node.parentElement;
    if (element.closest("pre, script, style, math, svg, .headerlink, .math")) continue;
    const scrolls = element.closest(".pst-scrollable-table-container");
    const named = element.closest("code, dt.sig, h1, h2, table.autosummary");
    for (const match of node.data.matchAll(/[A-Za-z0-9_]{2,}/g)) {
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const boxes = [...range.getClientRects()].filter((box) => box.width > 0);
      const lines = new Set(boxes.map((box) => Math.round(box.top)));
      if (named && lines.size > 1) found.push(`broken: ${match[0]}`);
      if (!scrolls && boxes.some((box) => box.right > innerWidth + 1)) found.push(`cut: ${match[0]}`);
    }
  }
  const formulas = article.querySelectorAll(".math");
  for (const one of formulas) {
    if (!one.querySelector("mjx-container")) found.push(`not drawn: ${one.textContent}`);
  }
  return [...new Set(found)];
}

/* Formulas are drawn after the page is loaded. */
const drawn = () => !document.querySelector("article .math") || window.MathJax?.startup?.promise;

function allPages(docs) {
  return fs.readdirSync(docs, {recursive: true})
    .filter((name) => name.endsWith(".html") && !/^_|genindex|search|modindex/.test(name)).sort();
}

async function main([out, docs, ...named]) {
  fs.mkdirSync(out, {recursive: true});
  const browser = await puppeteer.launch({
    args: chromium.args, executablePath: await chromium.executablePath(), headless: "shell",
  });
  let failed = 0;
  const pages = named.length ? named : allPages(docs);
  for (const name of pages) {
    for (const width of [375, 1280]) {
      const page = await browser.newPage();
      const asked = [];
      await page.setRequestInterception(true);
      page.on("request", (request) => {
        if (/^(file|data|blob):/.test(request.url())) return request.continue();
        asked.push(`asks for ${request.url()}`);
        return request.abort();
      });
      await page.setViewport({width, height: 900});
      await page.goto(pathToFileURL(path.resolve(docs, name)).href);
      await page.evaluate(drawn);
      const file = `${name.replace(/\W/g, "_")}-${width}.png`;
      await page.screenshot({path: path.join(out, file)});
      if (await page.$("article")) {
        const found = [...asked, ...await page.evaluate(faults)];
        if (found.length) {
          failed += 1;
          console.log(`${name}, ${width} px: ${found.slice(0, 8).join("; ")}`);
        }
      }
      await page.close();
    }
  }
  await browser.close();
  console.log(`${failed} of ${2 * pages.length} views fail`);
  process.exit(failed ? 1 : 0);
}

if (process.argv.length < 4) {
  console.log("usage: node check_docs.cjs OUT DOCS page.html ...");
  process.exit(2);
}
main(process.argv.slice(2));
