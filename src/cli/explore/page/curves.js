// Curves of several runs in one chart.

import { draw, seriesClass, whenWidthChanges, formatNumber } from "./chart.js";
import { ask, byId, fill, make } from "./page.js";
import { describeMetric } from "./terms.js";

/** Update interval for running runs, in milliseconds. */
const REFRESH_MS = 5000;
/** Maximum number of points of each run in the table. */
const TABLE_ROWS = 200;
/** Number of runs selected at first. */
const INITIAL_RUNS = 4;

let runs = [];
/** The curves of each run, by index of the run. */
const curves = new Map();
/** Number of drawings started; outdated responses are ignored. */
let drawings = 0;
/** Indices of the selected runs. */
const selectedRuns = new Set();

function listRuns() {
  const filter = byId("run-filter").value.toLowerCase();
  byId("runs").replaceChildren();
  for (const { name, study, finished, index } of runs) {
    if (!`${name} ${study}`.toLowerCase().includes(filter)) continue;
    const checkbox = make("input", { type: "checkbox", checked: selectedRuns.has(index) });
    checkbox.addEventListener("change", () => {
      if (checkbox.checked) selectedRuns.add(index);
      else selectedRuns.delete(index);
      drawCurves();
    });
    const swatch = make("span", { className: `swatch ${seriesClass(index)}` });
    const state = make("small", { className: finished ? "finished" : "unfinished" }, finished ? "finished" : "not finished");
    byId("runs").append(make("label", {}, checkbox, swatch, make("span", {}, name, " ", make("small", {}, `${study}, `), state)));
  }
  byId("live-label").hidden = runs.every(({ finished }) => finished);
}

async function drawCurves(reload = false) {
  drawings += 1;
  const drawingNumber = drawings;
  const indices = [...selectedRuns].sort((a, b) => a - b);
  for (const index of indices) {
    if (!reload && curves.has(index)) continue;
    const response = await ask(`/api/runs/${index}/curves`);
    // If a request fails, the other runs are still drawn.
    curves.set(index, response ?? curves.get(index) ?? []);
  }
  if (drawingNumber !== drawings) return;
  const names = [...new Set(indices.flatMap((index) => curves.get(index).map((curve) => curve.name)))];
  const metric = byId("metric");
  const previousMetric = metric.value;
  if (names.join("\n") !== [...metric.options].map((option) => option.value).join("\n")) {
    fill(metric, names.map((name) => [name, name]));
    if (names.includes(previousMetric)) metric.value = previousMetric;
  }
  byId("metric-about").textContent = describeMetric(metric.value);
  byId("metric-about").hidden = byId("metric-about").textContent === "";
  const series = indices.flatMap((index) =>
    curves.get(index)
      .filter((curve) => curve.name === metric.value)
      .map((curve) => ({ name: runs[index].name, index, points: curve.points })));
  const showReading = (text) => { byId("reading").textContent = text; };
  const lastValues = series.map(({ name, points }) => `${name} ends at ${formatNumber(points.at(-1)[1])}`).join("; ");
  draw(byId("chart"), series, `${metric.value}. ${lastValues}`, byId("logarithmic").checked, (text) => showReading(text || lastValues));
  showReading(lastValues);
  const rows = series.flatMap(({ name, points }) =>
    points.slice(-TABLE_ROWS).map(([step, value]) => make("tr", {},
      make("td", {}, name), make("td", {}, String(step)), make("td", {}, formatNumber(value)))));
  const header = make("tr", {}, ...["run", "step", metric.value].map((title) => make("th", { scope: "col" }, title)));
  const isTruncated = series.some(({ points }) => points.length > TABLE_ROWS);
  const caption = isTruncated ? make("caption", {}, `The last ${TABLE_ROWS} points of each run`) : null;
  byId("points").replaceChildren(...[caption, header, ...rows].filter(Boolean));
}

export async function startCurves(allRuns) {
  runs = allRuns;
  runs.slice(0, INITIAL_RUNS).forEach(({ index }) => selectedRuns.add(index));
  byId("run-filter").addEventListener("input", listRuns);
  byId("metric").addEventListener("change", () => drawCurves());
  byId("logarithmic").addEventListener("change", () => drawCurves());
  byId("choice").addEventListener("submit", (event) => event.preventDefault());
  setInterval(async () => {
    const areRunning = [...selectedRuns].some((index) => !runs[index].finished);
    if (!byId("live").checked || !areRunning || document.hidden || byId("curves").hidden) return;
    await drawCurves(true);
    // Runs may have finished meanwhile.
    const current = await ask("/api/runs");
    current?.forEach((run, index) => { runs[index].finished = run.finished; });
    if (current) listRuns();
  }, REFRESH_MS);
  whenWidthChanges(byId("chart"), () => drawCurves());
  listRuns();
  await drawCurves();
}
