// Tests the page of `engram explore` in Chromium. `.ci/run` starts the program and calls
//
//   node tests/explore/page.mjs ADDRESS [SCREENSHOTS]      # the printed address with its token
//
// with train/bundled and a memory `capitals` with keys of MiniLM.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const [address, screenshots] = process.argv.slice(2);
// The origin, without the token.
const { origin } = new URL(address);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
page.setDefaultTimeout(60_000);

// Console messages, failed requests and requests to other servers are faults.
const faults = [];
page.on("console", (message) => faults.push(`console: ${message.text()}`));
page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
page.on("requestfailed", (request) => faults.push(`failed: ${request.url()}`));
page.on("response", (response) => response.status() >= 400 && faults.push(`${response.status()}: ${response.url()}`));
page.on("request", (request) => {
  if (!request.url().startsWith(origin) && !request.url().startsWith("blob:")) faults.push(`elsewhere: ${request.url()}`);
});

async function screenshot(name) {
  if (!screenshots) return;
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: `${screenshots}/${name}.png` });
}
const text = (selector) => page.textContent(selector);
const idle = () => page.waitForFunction(() => document.querySelector("[aria-busy]") === null);
const tests = {};

tests["curves of runs are drawn and described as text"] = async () => {
  await page.waitForSelector("#chart path.curve");
  const curveCount = await page.locator("#chart path.curve").count();
  assert.ok(curveCount >= 2, `${curveCount} curves`);
  assert.match(await text("#reading"), /ends at \d/);
  await page.locator("#runs input").first().uncheck();
  await page.waitForFunction((before) => document.querySelectorAll("#chart path.curve").length < before, curveCount);
  await page.locator("#runs input").first().check();
  await page.waitForFunction((before) => document.querySelectorAll("#chart path.curve").length === before, curveCount);
  await page.fill("#run-filter", "no such run");
  assert.equal(await page.locator("#runs label").count(), 0);
  await page.fill("#run-filter", "");
  await screenshot("curves");
};

tests["nearly equal values are drawn"] = async () => {
  const count = await page.evaluate(async () => {
    const { draw } = await import("/chart.js");
    const container = document.createElement("div");
    const points = [[0, 0.30000000000000004], [1, 0.3]];
    draw(container, [{ name: "flat", index: 0, points }], "flat", false, () => {});
    draw(container, [{ name: "large", index: 0, points: [[0, 1e15], [1, 1e15 + 1]] }], "large", false, () => {});
    return container.querySelectorAll("line.grid").length;
  });
  assert.ok(count > 0 && count < 20, `${count} ticks`);
};

tests["an invalid request gets an error message"] = async () => {
  const error = await page.evaluate(async () => {
    const response = await fetch("/api/memories/0/search", {
      method: "POST", headers: { "content-type": "application/json" }, body: '{"k": -1}',
    });
    return (await response.json()).error;
  }).catch((error) => error.message);
  assert.match(error, /k: invalid value/);
  // Chromium itself logs the status.
  faults.splice(0, faults.length, ...faults.filter((fault) => !/422/.test(fault)));
};

tests["tabs are reached by keys"] = async () => {
  await page.focus("#tab-curves");
  await page.keyboard.press("ArrowRight");
  assert.ok(await page.isVisible("#memory"));
  assert.equal(await page.getAttribute("#tab-memory", "aria-selected"), "true");
  await page.keyboard.press("ArrowLeft");
  assert.ok(await page.isVisible("#curves"));
};

tests["a text search finds the right entry"] = async () => {
  await page.click("#tab-memory");
  const capitals = await page.locator("#memories option").evaluateAll((options) => options.find((option) => option.textContent.endsWith("capitals"))?.value);
  await page.selectOption("#memories", capitals);
  await page.fill("#words", "Which city is the capital of Hungary?");
  await page.press("#words", "Enter");
  await page.waitForFunction(() => document.querySelector("#hits li")?.textContent.includes("Budapest"));
  await page.click("#hits li:nth-child(2) button");
  await page.waitForFunction(() => document.getElementById("found").textContent.includes("nearest to entry"));
};

tests["a run's memory is searched by an image, with gates"] = async () => {
  const run = await page.locator("#memories option").evaluateAll((options) => options.find((option) => option.textContent.endsWith("reveal/memory")).value);
  await page.selectOption("#memories", run);
  await page.fill("#words", "Which spice can be smelled near this?");
  await page.press("#words", "Enter");
  await page.waitForFunction(() => document.getElementById("found").textContent.includes("encoded and searched"));
  const dropped = await page.evaluateHandle(async (memory) => {
    const image = await (await fetch(`/api/memories/${memory}/images/7236`)).blob();
    const transfer = new DataTransfer();
    transfer.items.add(new File([image], "dropped.png", { type: "image/png" }));
    return transfer;
  }, run);
  const before = await text("#hits");
  await page.dispatchEvent("#query-image", "drop", { dataTransfer: dropped });
  await page.waitForFunction((old) => document.getElementById("hits").textContent !== old, before);
  assert.match(await text("#hits li:first-child .soft"), /score -?\d.*gate \d/);
  await page.uncheck("#sources input[value=kg]");
  await idle();
  assert.doesNotMatch(await text("#hits"), / · kg/);
  await page.fill("#containing", "SMELL");
  await page.press("#containing", "Enter");
  await page.waitForFunction(() => document.getElementById("found").textContent.includes("contain these words"));
  for (const hit of await page.locator("#hits li p:first-child").allTextContents()) assert.match(hit, /smell/i);
  await page.fill("#containing", "");
  await page.press("#containing", "Enter");
  await page.waitForFunction(() => !document.getElementById("found").textContent.includes("contain these words"));
  await page.focus("#words");
  await screenshot("memory");
};

tests["switching an entry off changes the answer, and switching it on restores the answer"] = async () => {
  await page.click("#tab-answers");
  await page.waitForSelector("#questions button");
  let changed = false;
  if (screenshots) {
    await page.fill("#question-words", "held_out");
    await page.waitForFunction(() => [...document.querySelectorAll("#questions small")].every((small) => small.textContent.includes("held out")));
  }
  // A question whose answer depends on one entry.
  for (let question = 0; question < (screenshots ? 32 : 12) && !changed; question += 1) {
    // Its image is fetched first, while the last answer is still displayed.
    const answered = page.waitForResponse((response) => response.url().endsWith("/answer"));
    await page.locator("#questions button").nth(question).click();
    await answered;
    await idle();
    const before = await text("#answer-text");
    const attributed = page.locator("#evidence li", { has: page.locator(".swatch.series-0") });
    if (await attributed.count() === 0) continue;
    // Not `uncheck`: the list is redrawn before it could check the box again.
    await attributed.first().locator("input").click();
    await page.waitForSelector("#off li");
    await idle();
    changed = (await text("#answer-text")) !== before;
    // The screenshot needs a correct answer.
    if (screenshots && !(await text("#gold")).includes(`Correct answer: ${before};`)) changed = false;
    if (!changed) continue;
    // The checkbox keeps the focus, although it has moved.
    assert.match(await page.evaluate(() => document.activeElement.dataset.control), /^entry -?\d+$/);
    assert.match(await text("#answer-about"), new RegExp(`With all entries: ${before}`));
    await page.locator("#off li input").click();
    await page.waitForFunction((old) => document.getElementById("answer-text")?.textContent === old, before);
    assert.equal(await page.locator("#off li").count(), 0);
    await screenshot("answers");
  }
  assert.ok(changed, "no answer changed");
  await page.locator("#tokens button").first().focus();
  assert.match(await text("#token"), /nats/);
  await page.fill("#question-words", "held_out spice");
  await page.waitForFunction(() => [...document.querySelectorAll("#questions small")].every((small) => small.textContent.includes("held out")));
};

tests["speech is played, drawn, and transcribed with other images and less noise"] = async () => {
  await page.click("#tab-speech");
  await page.waitForSelector("#transcripts td");
  assert.ok(await page.locator("#transcripts tr").count() >= 3);
  assert.ok(await page.isVisible("#waves polygon"));
  const rows = await text("#transcripts");
  await page.fill("#snr", "-16");
  await page.selectOption("#other", "3");
  await page.waitForFunction((old) => document.getElementById("transcripts").textContent !== old, rows);
  await idle();
  // The screenshot needs a name that is correct only with its own images.
  const errors = (row) => text(`#transcripts tr:nth-child(${row}) td:last-child`).then(Number);
  const onlyOwnCorrect = async () => (await errors(4)) === 0 && (await errors(3)) > 0 && (await errors(5)) > 0;
  for (let name = 4; screenshots && name < 40 && !(await onlyOwnCorrect()); name += 1) {
    await page.selectOption("#name", String(name));
    await page.waitForFunction(() => document.querySelector("#transcripts[aria-busy]") !== null);
    await idle();
  }
  await screenshot("speech");
  await page.selectOption("#noise", "");
  await page.waitForFunction(() => document.getElementById("audio").src.includes("noise") === false);
  await idle();
  const seconds = await page.evaluate(async () => {
    const audio = document.getElementById("audio");
    audio.preload = "auto";
    if (!(audio.duration > 0)) await new Promise((resolve) => audio.addEventListener("loadedmetadata", resolve, { once: true }));
    return audio.duration;
  });
  assert.ok(seconds > 0.3 && seconds < 20, `${seconds} s`);
};

tests["all tabs fit the width of a phone"] = async () => {
  await page.setViewportSize({ width: 390, height: 800 });
  await page.emulateMedia({ colorScheme: "dark" });
  for (const tab of await page.locator("[role=tab]:visible").all()) {
    await tab.click();
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= 390, `${await tab.textContent()}: ${width} pixels`);
    // Drawings are not scaled: their text is not smaller than other text.
    await page.waitForFunction(() => [...document.querySelectorAll("#chart svg, #waves svg")].every((svg) =>
      svg.clientWidth === 0 || svg.viewBox.baseVal.width <= svg.clientWidth * 1.2));
  }
  await screenshot("phone");
};

const start = performance.now();
await page.goto(address);
await page.waitForSelector("[role=tab]:visible");
console.log(`first content after ${Math.round(performance.now() - start)} ms`);
let failed = 0;
for (const [name, run] of Object.entries(tests)) {
  try {
    await run();
    console.log(`ok       ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED   ${name}: ${error.message}`);
    await screenshot("failed");
  }
}
for (const fault of faults) console.log(`FAULT    ${fault}`);
await browser.close();
process.exit(failed + faults.length === 0 ? 0 : 1);
