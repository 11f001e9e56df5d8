/* Check HTML reports in Chromium: choice, hover, keyboard, width, network, axe.

   $ cd /tmp && npm i @sparticuz/chromium puppeteer-core axe-core
   $ node REPO/tests/browser/check_report.cjs OUT a.html b.html ...

   Packages are those of the current folder. Screenshots go to OUT. The exit code is 1
   if a check fails. */
"use strict";
const assert = require("node:assert");
const fs = require("node:fs");
const path = require("node:path");
const {createRequire} = require("node:module");
const {pathToFileURL} = require("node:url");

const installed = createRequire(path.join(process.cwd(), "package.json"));
const chromium = installed("@sparticuz/chromium");
const puppeteer = installed("puppeteer-core");
const axe = fs.readFileSync(installed.resolve("axe-core/axe.min.js"), "utf-8");

const WIDTHS = [375, 1280];
const [out, ...files] = process.argv.slice(2);

async function open(browser, file, {width, scheme = "light", script = true}) {
  const page = await browser.newPage();
  const faults = [];
  const address = pathToFileURL(path.resolve(file)).href;
  page.on("console", (message) => faults.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("dialog", async (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    await dialog.dismiss();
  });
  page.on("request", (request) => {
    const url = request.url();
    if (url !== address && url !== "data:,") faults.push(`request: ${url}`);
  });
  await page.setViewport({width, height: 900});
  await page.emulateMediaFeatures([{name: "prefers-color-scheme", value: scheme}]);
  await page.setJavaScriptEnabled(script);
  await page.goto(address, {waitUntil: "load"});
  return {page, faults};
}

/* What a diagram and its tables show. */
function shown() {
  const numbers = (element) => [...element.attributes]
    .filter((one) => !["class", "role", "tabindex"].includes(one.name))
    .map((one) => Number(one.value));
  const side = (name) => ({
    bins: [...document.querySelectorAll(`#${name}-figure .bin`)].map((bin) => ({
      text: bin.querySelector("title").textContent,
      shapes: [...bin.children].slice(1).map((c) => [c.tagName, c.getAttribute("class"), numbers(c)]),
    })),
    title: document.querySelector(`#${name}-figure b`).textContent,
    spoken: document.querySelector(`#${name}-figure svg`).getAttribute("aria-label"),
    cells: [...document.querySelectorAll(`#numbers td.${name}`)].map((c) => c.textContent),
    rows: [...document.querySelectorAll(`#${name}-bins tbody tr`)].map((row) =>
      [...row.children].map((c) => c.textContent)),
  });
  return {
    before: side("before"), after: side("after"),
    summary: document.getElementById("choice-summary").textContent,
  };
}

function same(a, b, where) {
  if (typeof a === "number") assert(Math.abs(a - b) <= 0.011, `${where}: ${a} and ${b}`);
  else if (a !== null && typeof a === "object") {
    assert.deepStrictEqual(Object.keys(a), Object.keys(b), where);
    for (const key of Object.keys(a)) same(a[key], b[key], `${where}.${key}`);
  } else assert.strictEqual(a, b, where);
}

async function choose(page, view) {
  for (const name of ["method", "eps", "point"]) {
    if (view[name] !== null && (await page.$(`#choice-${name}`))) {
      await page.select(`#choice-${name}`, String(view[name]));
    }
  }
}

async function checkChoice(page) {
  const data = JSON.parse(await page.$eval("#data", (one) => one.textContent));
  const first = await page.evaluate(shown);
  const start = data.views.findIndex((view) => view.summary === first.summary);
  for (const view of [...data.views, data.views[start]]) {
    await choose(page, view);
    const now = await page.evaluate(shown);
    const before = data.before[view.before];
    assert.strictEqual(now.summary, view.summary);
    for (const [side, one] of [[now.before, before], [now.after, view]]) {
      assert.deepStrictEqual(side.cells, one.cells);
      assert.deepStrictEqual(side.rows, one.bins.map((bin) => bin[6]));
      assert.strictEqual(side.bins.length, one.bins.length);
      assert.strictEqual(side.title, one.title);
      assert.strictEqual(side.spoken, `${one.title}. ${one.means}`);
    }
    for (const name of ["eps", "method", "point"]) {
      if (!(await page.$(`#choice-${name}`))) continue;
      const [value, off] = await page.$eval(`#choice-${name}`, (c) => [c.value, c.disabled]);
      assert.strictEqual(off, view[name] === null, name);
      if (!off) assert.strictEqual(value, String(view[name]), name);
    }
  }
  // The script draws what page.py wrote.
  same(await page.evaluate(shown), first, "redrawn");
  return data;
}

async function tabTo(page, found, most = 60) {
  for (let i = 0; i < most; i++) {
    await page.keyboard.press("Tab");
    if (await page.evaluate(found)) return;
  }
  assert.fail(`not reached by the tab key: ${found}`);
}

async function checkKeyboard(page) {
  await page.evaluate(() => { document.activeElement.blur(); window.scrollTo(0, 0); });
  await tabTo(page, () => document.activeElement.id === "choice-method");
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineWidth);
  assert.strictEqual(outline, "3px", "focus of a control is visible");
  const old = await page.$eval("#choice-summary", (one) => one.textContent);
  await page.keyboard.press("Home");
  const start = await page.$eval("#choice-summary", (one) => one.textContent);
  await page.keyboard.press("End");
  const end = await page.$eval("#choice-summary", (one) => one.textContent);
  assert.notStrictEqual(start, end, `keys change the choice (${old})`);
  await tabTo(page, () => document.activeElement.classList.contains("bin"));
  const at = () => page.evaluate(() => {
    const bin = document.activeElement;
    const hit = getComputedStyle(bin.querySelector(".hit"));
    return {
      i: [...bin.parentNode.children].indexOf(bin), n: bin.parentNode.children.length,
      text: bin.querySelector("title").textContent, stroke: hit.strokeWidth,
      told: bin.closest("figure").querySelector(".readout").textContent,
      stops: bin.parentNode.querySelectorAll('[tabindex="0"]').length,
    };
  });
  for (const [key, place] of [["Home", () => 0], ["ArrowRight", (n) => Math.min(1, n - 1)],
    ["End", (n) => n - 1], ["ArrowRight", (n) => n - 1], ["ArrowLeft", (n) => Math.max(n - 2, 0)]]) {
    await page.keyboard.press(key);
    const now = await at();
    assert.strictEqual(now.i, place(now.n), key);
    assert.strictEqual(now.told, now.text, "a focused bin tells its numbers");
    assert.strictEqual(now.stroke, "2px", "focus of a bin is visible");
    assert.strictEqual(now.stops, 1, "a diagram is one stop of the tab key");
  }
}

async function checkHover(page) {
  const bins = await page.$$("figure.reliability .bin .hit");
  assert(bins.length > 1);
  for (const bin of [bins[0], bins[bins.length - 1]]) {
    await bin.hover();
    const [text, told] = await bin.evaluate((one) => [
      one.parentNode.querySelector("title").textContent,
      one.closest("figure").querySelector(".readout").textContent,
    ]);
    assert.match(told, /^Confidence .* rows, mean confidence .*\s%, accuracy .*\s%/);
    assert.strictEqual(told, text);
  }
}

async function checkAxe(page, where) {
  await page.evaluate(() => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run());
  const texts = found.violations.map((one) => `${one.id}: ${one.nodes.map((n) => n.html).join(" ")}`);
  assert.deepStrictEqual(texts, [], `axe, ${where}`);
  assert(found.passes.length > 20);
}

async function checkWidth(page) {
  const [wide, inner] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert(wide <= inner, `the page is ${wide} wide on a screen of ${inner}`);
}

async function checkFile(browser, file) {
  const name = path.basename(file, ".html");
  for (const width of WIDTHS) {
    for (const scheme of ["light", "dark"]) {
      const {page, faults} = await open(browser, file, {width, scheme});
      await page.screenshot({path: path.join(out, `${name}-${width}-${scheme}.png`), fullPage: true});
      await checkWidth(page);
      const data = await checkChoice(page);
      if (data.views.length > 1) await checkKeyboard(page);
      await checkHover(page);
      await checkWidth(page);
      await checkAxe(page, `${width} ${scheme}`);
      await checkWidth(page);
      assert.deepStrictEqual(faults, []);
      await page.close();
    }
  }
  const {page, faults} = await open(browser, file, {width: 375, script: false});
  const plain = await page.evaluate(shown);
  assert(plain.after.bins.length && plain.after.cells.length && plain.after.rows.length);
  assert.strictEqual(await page.$eval("#choice", (one) => one.offsetHeight), 0);
  assert.deepStrictEqual(faults, []);
  await page.close();
}

async function main() {
  fs.mkdirSync(out, {recursive: true});
  const browser = await puppeteer.launch({
    args: chromium.args, executablePath: await chromium.executablePath(), headless: "shell",
  });
  let failed = 0;
  for (const file of files) {
    try {
      await checkFile(browser, file);
      console.log(`${file}: passed`);
    } catch (error) {
      failed = 1;
      console.log(`${file}: ${error.stack}`);
    }
  }
  await browser.close();
  process.exit(failed);
}

if (!out || !files.length) {
  console.log("usage: node check_report.cjs OUT a.html ...");
  process.exit(2);
}
main();
