// Curves of several runs in one chart.

import { draw, seriesClass, whenWidthChanges, formatNumber } from "./chart.js";
import { ask, at, fill, make } from "./page.js";

/** Update interval for running runs, in milliseconds. */
const REFRESH = 5000;
const TABLE_ROWS = 200;
/** Number of runs selected at first. */
const FIRST = 4;

let runs = [];
const curves = new Map();
/** Number of drawings started; outdated responses are ignored. */
let drawings = 0;
const chosen = new Set();

function listRuns() {
  const filter = at("run-filter").value.toLowerCase();
  at("runs").replaceChildren();
  for (const { name, study, finished, index } of runs) {
    if (!`${name} ${study}`.toLowerCase().includes(filter)) continue;
    const box = make("input", { type: "checkbox", checked: chosen.has(index) });
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(index);
      else chosen.delete(index);
      drawCurves();
    });
    const swatch = make("span", { className: `swatch ${seriesClass(index)}` });
    const state = finished ? study : `${study}, unfinished`;
    at("runs").append(make("label", {}, box, swatch, make("span", {}, name, " ", make("small", {}, state))));
  }
}

async function drawCurves(again = false) {
  drawings += 1;
  const mine = drawings;
  const selected = [...chosen].sort((a, b) => a - b);
  for (const index of selected) {
    if (!again && curves.has(index)) continue;
    const read = await ask(`/api/runs/${index}/curves`);
    // If a request fails, the other runs are still drawn.
    curves.set(index, read ?? curves.get(index) ?? []);
  }
  if (mine !== drawings) return;
  const names = [...new Set(selected.flatMap((index) => curves.get(index).map((curve) => curve.name)))];
  const metric = at("metric");
  const before = metric.value;
  if (names.join("\n") !== [...metric.options].map((one) => one.value).join("\n")) {
    fill(metric, names.map((name) => [name, name]));
    if (names.includes(before)) metric.value = before;
  }
  const series = selected.flatMap((index) =>
    curves.get(index)
      .filter((curve) => curve.name === metric.value)
      .map((curve) => ({ name: runs[index].name, index, points: curve.points })));
  const showReading = (text) => { at("reading").textContent = text; };
  const ends = series.map(({ name, points }) => `${name} ends at ${formatNumber(points.at(-1)[1])}`).join("; ");
  draw(at("chart"), series, `${metric.value}. ${ends}`, at("logarithmic").checked, (text) => showReading(text || ends));
  showReading(ends);
  const rows = series.flatMap(({ name, points }) =>
    points.slice(-TABLE_ROWS).map(([step, value]) => make("tr", {},
      make("td", {}, name), make("td", {}, String(step)), make("td", {}, formatNumber(value)))));
  const head = make("tr", {}, ...["run", "step", metric.value].map((title) => make("th", { scope: "col" }, title)));
  const isTruncated = series.some(({ points }) => points.length > TABLE_ROWS);
  const caption = isTruncated ? make("caption", {}, `The last ${TABLE_ROWS} points of each run`) : null;
  at("points").replaceChildren(...[caption, head, ...rows].filter(Boolean));
}

export async function startCurves(allRuns) {
  runs = allRuns;
  runs.slice(0, FIRST).forEach(({ index }) => chosen.add(index));
  at("run-filter").addEventListener("input", listRuns);
  at("metric").addEventListener("change", () => drawCurves());
  at("logarithmic").addEventListener("change", () => drawCurves());
  at("choice").addEventListener("submit", (event) => event.preventDefault());
  setInterval(() => {
    const areRunning = [...chosen].some((index) => !runs[index].finished);
    if (at("live").checked && areRunning && !document.hidden && !at("curves").hidden) drawCurves(true);
  }, REFRESH);
  whenWidthChanges(at("chart"), () => drawCurves());
  listRuns();
  await drawCurves();
}
