// Tests the page of `engram explore` in Chromium. `.ci/run` starts the program and calls
//
//   node tests/explore/page.mjs ADDRESS UNFINISHED      # the printed address with its token
//
// with train/bundled, a memory `capitals` with keys of MiniLM, and UNFINISHED, the folder of a run without summary.json.
// The test of unfinished runs adds summary.json to this folder.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { checkAppearance, isInWindow, LAPTOP, launch, openWindow, PHONE, runTests } from "./browser.mjs";

const [address, unfinished] = process.argv.slice(2);
// The origin, without the token.
const { origin } = new URL(address);
const browser = await launch();
// Console messages, failed requests and requests to other servers are faults.
const faults = [];

async function open(size, colours) {
  const page = await openWindow(browser, size, colours, faults);
  page.on("request", (request) => {
    if (!request.url().startsWith(origin) && !request.url().startsWith("blob:")) faults.push(`elsewhere: ${request.url()}`);
  });
  await page.goto(address);
  await page.waitForSelector("[role=tab]:visible");
  return page;
}

const start = performance.now();
let page = await open(LAPTOP, "light");
console.log(`first content after ${Math.round(performance.now() - start)} ms`);

const text = (selector) => page.textContent(selector);
const count = (selector) => page.locator(selector).count();
const idle = () => page.waitForFunction(() => document.querySelector("[aria-busy]") === null);
const optionEndingIn = (selector, end) => page.locator(`${selector} option`).evaluateAll((options, end) =>
  options.find((option) => option.textContent.endsWith(end)).value, end);
const tests = {};

/** The first view has a right answer, with the entry that holds it. */
async function hasRightAnswer() {
  assert.equal(await page.getAttribute("#tab-answers", "aria-selected"), "true");
  await page.waitForSelector("#answer-about .verdict.right");
  const answer = await text("#answer-text");
  assert.match(await text("#gold"), new RegExp(`^Correct answer: .*${answer}`, "i"));
  assert.equal(await count("#evidence li.truth"), 1);
  assert.match(await text("#evidence li.truth"), /holds the correct answer/);
  assert.ok(await page.isVisible("#asked-image"));
}

tests["the first view has a right answer with its evidence"] = hasRightAnswer;

tests["switching the entry off changes the answer, and Switch all on restores it"] = async () => {
  const before = await text("#answer-text");
  // Not `uncheck`: the list is redrawn before it could check the box again.
  await page.click("#evidence li.truth input");
  await page.waitForSelector("#off li.truth");
  await idle();
  assert.notEqual(await text("#answer-text"), before);
  assert.ok(await page.isVisible("#answer-about .verdict.wrong"));
  assert.match(await text("#gold"), /is switched off/);
  assert.match(await text("#answer-about"), new RegExp(`With all entries: ${before}`));
  // The checkbox keeps the focus, although it has moved.
  assert.match(await page.evaluate(() => document.activeElement.dataset.control), /^entry -?\d+$/);
  await page.click("#evidence li:first-child input");
  await page.waitForFunction(() => document.querySelectorAll("#off li").length === 2);
  await page.click("#all-on");
  await page.waitForFunction((old) => document.getElementById("answer-text").textContent === old, before);
  assert.ok(await page.isVisible("#answer-about .verdict.right"));
  assert.equal(await count("#off li"), 0);
  assert.ok(await page.isHidden("#all-on"));
};

tests["a test question is marked, and a changed question is not"] = async () => {
  await page.locator("#questions button").nth(5).click();
  await page.waitForFunction((old) => document.getElementById("asked").textContent !== old, await text("#asked"));
  await idle();
  assert.equal(await count("#answer-about .verdict"), 1);
  await page.locator("#tokens button").first().focus();
  assert.match(await text("#token"), /nats/);
  await page.fill("#question", "Which spice can be smelled near this?");
  await page.press("#question", "Enter");
  await page.waitForFunction(() => document.querySelector("#answer-about .verdict") === null);
  await idle();
  assert.equal(await text("#gold"), "");
  assert.equal(await count("#evidence li.truth"), 0);
  await page.fill("#question-words", "held_out spice");
  await page.waitForFunction(() => [...document.querySelectorAll("#questions small")].every((small) => small.textContent.includes("held out")));
};

tests["terms have tooltips, with the pointer and with the keyboard"] = async () => {
  assert.equal(await page.locator("#tooltip").count(), 1);
  const terms = page.locator("#evidence-title [data-term]");
  assert.ok(await terms.count() >= 4);
  for (const term of await terms.all()) {
    await term.hover();
    assert.match(await text("#tooltip"), /\w{3,}.*\.$/);
    assert.equal(await term.getAttribute("aria-describedby"), "tooltip");
  }
  await page.mouse.move(0, 0);
  assert.ok(await page.isHidden("#tooltip"));
  await terms.first().focus();
  assert.match(await text("#tooltip"), /nats/);
  assert.ok(await isInWindow(page, "#tooltip"));
  await page.keyboard.press("Escape");
  assert.ok(await page.isHidden("#tooltip"));
  const known = await page.evaluate(async () => (await import("/terms.js")).TERMS);
  const used = await page.locator("[data-term]").evaluateAll((terms) => terms.map((term) => term.dataset.term));
  assert.deepEqual([...new Set(used)].sort(), Object.keys(known).sort());
};

tests["each tab has a line of help"] = async () => {
  for (const tab of ["answers", "speech", "memory", "curves"]) assert.match(await text(`#${tab} > .help`), /\w.*\./);
};

tests["the first clip has a rescued word"] = async () => {
  await page.click("#tab-speech");
  await page.waitForSelector("#transcripts td");
  const word = await text("#rescue strong");
  assert.equal(await text("#transcripts tr:nth-child(4) mark"), word);
  assert.ok(await page.isVisible("#transcripts tr:nth-child(3) .verdict.wrong"));
  assert.ok(await page.isVisible("#transcripts tr:nth-child(4) .verdict.right"));
  assert.ok(await page.isVisible("#waves polygon"));
};

tests["speech is played and transcribed with other images and less noise"] = async () => {
  const rows = await text("#transcripts");
  await page.fill("#snr", "-16");
  // An image that is not shown yet: the transcripts name it.
  const other = await page.inputValue("#other");
  await page.selectOption("#other", other === "3" ? "4" : "3");
  await page.waitForFunction((old) => document.getElementById("transcripts").textContent !== old, rows);
  await idle();
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

tests["tabs are reached by keys"] = async () => {
  await page.focus("#tab-speech");
  await page.keyboard.press("ArrowRight");
  assert.ok(await page.isVisible("#memory"));
  assert.equal(await page.getAttribute("#tab-memory", "aria-selected"), "true");
  await page.keyboard.press("ArrowLeft");
  assert.ok(await page.isVisible("#speech"));
};

tests["a text search finds the right entry"] = async () => {
  await page.click("#tab-memory");
  await page.selectOption("#memories", await optionEndingIn("#memories", "capitals"));
  await page.fill("#words", "Which city is the capital of Hungary?");
  await page.press("#words", "Enter");
  await page.waitForFunction(() => document.querySelector("#hits li")?.textContent.includes("Budapest"));
  await page.click("#hits li:nth-child(2) button");
  await page.waitForFunction(() => document.getElementById("found").textContent.includes("nearest to entry"));
};

tests["a run's memory is searched by an image, with gates"] = async () => {
  const memory = await optionEndingIn("#memories", "bundled/reveal/memory");
  await page.selectOption("#memories", memory);
  await page.fill("#words", "Which spice can be smelled near this?");
  await page.press("#words", "Enter");
  await page.waitForFunction(() => document.getElementById("found").textContent.includes("encoded and searched"));
  const withImage = await page.locator("#hits img").first().getAttribute("src");
  const dropped = await page.evaluateHandle(async (address) => {
    const image = await (await fetch(address)).blob();
    const transfer = new DataTransfer();
    transfer.items.add(new File([image], "dropped.png", { type: "image/png" }));
    return transfer;
  }, withImage);
  const before = await text("#hits");
  await page.dispatchEvent("#query-image", "drop", { dataTransfer: dropped });
  await page.waitForFunction((old) => document.getElementById("hits").textContent !== old, before);
  assert.match(await text("#hits li:first-child .soft"), /score -?\d.*gate \d/);
  await page.uncheck("#sources input[value=kg]");
  await idle();
  assert.doesNotMatch(await text("#hits"), / · kg/);
  await page.click("#all-sources");
  await idle();
  assert.ok(await page.isChecked("#sources input[value=kg]") && await page.isHidden("#all-sources"));
  await page.fill("#containing", "SMELL");
  await page.press("#containing", "Enter");
  await page.waitForFunction(() => document.getElementById("found").textContent.includes("contain these words"));
  for (const hit of await page.locator("#hits li p:first-child").allTextContents()) assert.match(hit, /smell/i);
  await page.fill("#containing", "");
  await page.press("#containing", "Enter");
  await page.waitForFunction(() => !document.getElementById("found").textContent.includes("contain these words"));
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

tests["curves of runs are drawn and described as text"] = async () => {
  await page.click("#tab-curves");
  await page.waitForSelector("#chart path.curve");
  // Only runs of one study share an axis, and all of them are ticked.
  assert.equal(await count("#runs input:checked"), await count("#runs input"));
  await page.selectOption("#study", "reveal");
  await page.waitForFunction(() => document.querySelectorAll("#chart path.curve").length === 3);
  const curveCount = await count("#chart path.curve");
  assert.ok(curveCount >= 2, `${curveCount} curves`);
  assert.match(await text("#reading"), /ends at \d/);
  assert.match(await text("#metric-about"), /\w.*\./);
  await page.locator("#runs input").first().uncheck();
  await page.waitForFunction((before) => document.querySelectorAll("#chart path.curve").length < before, curveCount);
  await page.locator("#runs input").first().check();
  await page.waitForFunction((before) => document.querySelectorAll("#chart path.curve").length === before, curveCount);
  await page.fill("#run-filter", "no such run");
  assert.equal(await count("#runs label"), 0);
  await page.fill("#run-filter", "");
};

tests["single points and nearly equal values are drawn"] = async () => {
  const [ticks, dots, marks] = await page.evaluate(async () => {
    const { draw } = await import("/chart.js");
    const container = document.createElement("div");
    draw(container, [{ name: "single", index: 0, points: [[150, 0.3]] }], "single", false, [], () => {});
    const dots = [...container.querySelectorAll("circle")].map((dot) => [dot.getAttribute("cx"), dot.getAttribute("cy")]);
    const points = [[0, 0.30000000000000004], [1, 0.3]];
    draw(container, [{ name: "flat", index: 0, points }], "flat", false, [["one", 0], ["two", 1]], () => {});
    const marks = [...container.querySelectorAll(".phase-name")].map((mark) => mark.textContent);
    draw(container, [{ name: "large", index: 0, points: [[0, 1e15], [1, 1e15 + 1]] }], "large", false, [], () => {});
    return [container.querySelectorAll("line.grid").length, dots, marks];
  });
  assert.ok(ticks > 0 && ticks < 20, `${ticks} ticks`);
  assert.deepEqual(marks, ["one", "two"]);
  assert.equal(dots.length, 1);
  assert.ok(dots[0].every((coordinate) => Number(coordinate) > 0), `${dots}`);
};

tests["finished runs are shown as finished, also if they finish while the page is open"] = async () => {
  const runs = await count("#runs label");
  assert.equal(await count("#runs .finished"), runs - 1);
  assert.match(await text("#runs label:has(.unfinished)"), /training.*not finished/);
  assert.ok(await page.isVisible("#live-label"));
  // Only selected runs are updated.
  await page.check("#runs label:has(.unfinished) input");
  writeFileSync(join(unfinished, "summary.json"), "{}");
  await page.waitForFunction((runs) => document.querySelectorAll("#runs .finished").length === runs, runs);
  assert.ok(await page.isHidden("#live-label"));
};

for (const [size, colours] of [[LAPTOP, "light"], [LAPTOP, "dark"], [PHONE, "light"], [PHONE, "dark"]]) {
  tests[`all tabs are legible at ${size.width} pixels, ${colours}`] = async () => {
    await page.close();
    page = await open(size, colours);
    await hasRightAnswer();
    if (size === PHONE) assert.ok(await isInWindow(page, "#answer-about .verdict"), "the first answer");
    for (const [tab, content] of Object.entries({
      answers: "#evidence li", speech: "#transcripts td", memory: "#hits li", curves: "#chart path.curve",
    })) {
      await page.click(`#tab-${tab}`);
      await page.waitForSelector(content);
      await idle();
      await checkAppearance(page, tab);
      // Drawings are not scaled: their text is not smaller than other text.
      await page.waitForFunction(() => [...document.querySelectorAll("#chart svg, #waves svg")].every((svg) =>
        svg.clientWidth === 0 || svg.viewBox.baseVal.width <= svg.clientWidth * 1.2));
    }
  };
}

tests["on a phone, results appear where the user taps"] = async () => {
  await page.click("#tab-answers");
  const question = page.locator("#questions > li").nth(20);
  await question.locator("button").first().click();
  await page.waitForFunction(() => document.querySelector("#questions li #answer .verdict"));
  await idle();
  assert.equal(await question.locator("#answer").count(), 1);
  assert.ok(await isInWindow(page, "#answer-about .verdict"), "the answer to a test question");
  await checkAppearance(page, "a test question");
  await page.fill("#question", "Which spice can be smelled near this?");
  await page.press("#question", "Enter");
  await page.waitForSelector("#answer-below > #answer");
  await page.click("#tab-memory");
  await page.fill("#words", "spice");
  await page.press("#words", "Enter");
  await page.waitForFunction(() => document.getElementById("found").textContent.includes("nearest to the query"));
  await page.waitForFunction(() => document.getElementById("hits").getBoundingClientRect().top < innerHeight / 2);
  await page.click("#tab-speech");
  await page.click("#speech [data-term=frozen]");
  assert.ok(await isInWindow(page, "#tooltip"), "a tooltip");
  await checkAppearance(page, "a tooltip");
};

await runTests(browser, tests, faults);
