// Checks HTML reports (`engram reproduce`, `engram eval … --html`) in Chromium, on a laptop and a phone, light and dark:
//
//   node tests/explore/reports.mjs FILE… [--screenshots FOLDER]

import { basename, resolve } from "node:path";
import { parseArgs } from "node:util";
import { checkAppearance, LAPTOP, launch, openWindow, PHONE, runTests } from "./browser.mjs";

const { values, positionals } = parseArgs({ allowPositionals: true, options: { screenshots: { type: "string" } } });
const browser = await launch();
const [faults, tests] = [[], {}];
for (const file of positionals) {
  for (const size of [LAPTOP, PHONE]) {
    for (const colours of ["light", "dark"]) {
      const name = `${basename(file, ".html")}-${size.width}-${colours}`;
      tests[name] = async () => {
        const page = await openWindow(browser, size, colours, faults);
        await page.goto(`file://${resolve(file)}`);
        await page.evaluate(() => document.querySelectorAll("details").forEach((details) => { details.open = true; }));
        if (values.screenshots) await page.screenshot({ path: `${values.screenshots}/${name}.png`, fullPage: true });
        await checkAppearance(page, name);
        await page.close();
      };
    }
  }
}
await runTests(browser, tests, faults);
