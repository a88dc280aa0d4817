// Takes the screenshots of README.md (`question`) and docs/how-to/explore.md:
//
//   engram explore train/bundled CAPITALS > address &          # CAPITALS as in `.ci/run`
//   npm install --prefix tests/explore
//   node tests/explore/screenshots.mjs "$(cat address)" docs/how-to/explore

import { LAPTOP, launch, openWindow, PHONE } from "./browser.mjs";

const [address, folder] = process.argv.slice(2);
const browser = await launch();
const page = await openWindow(browser, LAPTOP, "light", []);
const idle = () => page.waitForFunction(() => document.querySelector("[aria-busy]") === null);

async function screenshot(name) {
  await idle();
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: `${folder}/${name}.png` });
}

await page.goto(address);
await page.waitForSelector("#evidence li");
await screenshot("answers");

await page.fill("#question-words", "carousel-horse");
await page.click("#questions li button:has-text('What dance belongs to this?')");
await page.waitForFunction(() => document.getElementById("asked").textContent.startsWith("What dance"));
await screenshot("question");

await page.click("#tab-speech");
await page.waitForSelector("#transcripts td");
await screenshot("speech");

await page.click("#tab-memory");
await page.waitForSelector("#hits li");
const memories = page.locator("#memories option");
await page.selectOption("#memories", await memories.evaluateAll((options) =>
  (options.find(({ textContent }) => textContent.endsWith("reveal/memory")) ?? options[0]).value));
await idle();
await page.fill("#words", "Which spice can be smelled near this?");
await page.press("#words", "Enter");
await page.waitForFunction(() => document.getElementById("found").textContent.includes("nearest to the query"));
await screenshot("memory");

await page.click("#tab-curves");
await page.waitForSelector("#chart path.curve");
await screenshot("curves");

await page.setViewportSize(PHONE);
await page.emulateMedia({ colorScheme: "dark" });
await page.click("#tab-answers");
await screenshot("phone");
await browser.close();
