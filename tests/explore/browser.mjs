// Opens pages in Chromium and checks their appearance: shared by page.mjs, reports.mjs and screenshots.mjs.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

/** Window sizes in pixels: a laptop and a small phone. */
export const LAPTOP = { width: 1280, height: 900 };
export const PHONE = { width: 360, height: 740 };
/** Minimum contrast of text (WCAG 2.2, level AA), and minimum size of controls on a phone, in pixels. */
const MIN_CONTRAST = 4.5;
const MIN_CONTROL = 24;

export const launch = () => chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

/** Opens a window, and collects console messages and failed requests in `faults`. */
export async function openWindow(browser, viewport, colorScheme, faults) {
  const page = await browser.newPage({ viewport, colorScheme });
  page.setDefaultTimeout(60_000);
  page.on("console", (message) => faults.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("requestfailed", (request) => faults.push(`failed: ${request.url()}`));
  page.on("response", (response) => response.status() >= 400 && faults.push(`${response.status()}: ${response.url()}`));
  return page;
}

/** Asserts that the page does not scroll sideways, and that its texts and controls are legible. */
export async function checkAppearance(page, name) {
  const { width } = page.viewportSize();
  const scrollWidth = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(scrollWidth <= width, `${name}: ${scrollWidth} pixels wide in a window of ${width}`);
  const pale = await page.evaluate(paleTexts, MIN_CONTRAST);
  assert.deepEqual(pale, [], `${name}: low contrast`);
  if (width > PHONE.width) return;
  const small = await page.evaluate(smallControls, MIN_CONTROL);
  assert.deepEqual(small, [], `${name}: small controls`);
}

/** Texts whose contrast with their background is below a minimum. Runs in the page. */
function paleTexts(minimum) {
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    for (let node = element; node; node = node.parentElement) {
      const colour = channels(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const pale = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const text = texts.currentNode.textContent.trim();
    if (text === "" || !element.checkVisibility() || element.closest("script, style, :disabled")) continue;
    const style = getComputedStyle(element);
    const foreground = channels(element instanceof SVGElement ? style.fill : style.color);
    const [dark, light] = [luminance(foreground), luminance(background(element))].sort((a, b) => a - b);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < minimum) pale.add(`${text.slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return [...pale];
}

/** Controls that are too small to be tapped; links and terms within a text may be small. Runs in the page. */
function smallControls(minimum) {
  const controls = [...document.querySelectorAll("button:not(.term), select, input, summary, [role=tab]")];
  return controls.filter((control) => control.checkVisibility()).flatMap((control) => {
    // A label is tapped in place of its checkbox.
    const target = control.matches("[type=checkbox]") ? control.closest("label") ?? control : control;
    const { width, height } = target.getBoundingClientRect();
    return Math.min(width, height) < minimum - 0.5 ? [`${control.id || control.textContent || control.type}: ${Math.round(width)} × ${Math.round(height)}`] : [];
  });
}

/** Whether an element is within the window, once images have their sizes. */
export const isInWindow = (page, selector) => page.waitForFunction((selector) => {
  const { top, bottom } = document.querySelector(selector).getBoundingClientRect();
  return bottom > 0 && top >= 0 && bottom <= innerHeight;
}, selector, { timeout: 5000 }).then(() => true, () => false);

/** Runs tests by name, prints their results and the faults, and ends the process. */
export async function runTests(browser, tests, faults, whenFailed = async () => {}) {
  let failed = 0;
  for (const [name, run] of Object.entries(tests)) {
    try {
      await run();
      console.log(`ok       ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED   ${name}: ${error.message}`);
      await whenFailed();
    }
  }
  for (const fault of faults) console.log(`FAULT    ${fault}`);
  await browser.close();
  process.exit(failed + faults.length === 0 ? 0 : 1);
}
