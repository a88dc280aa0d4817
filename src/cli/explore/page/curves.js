// Curves of several runs in one chart.

import { draw, seriesClass, whenWidthChanges, formatNumber } from "./chart.js";
import { ask, byId, fill, make } from "./page.js";
import { describeMetric } from "./terms.js";

/** Update interval for running runs, in milliseconds. */
const REFRESH_MS = 5000;
/** Maximum number of points of each run in the table. */
const TABLE_ROWS = 200;
/** Maximum number of runs of a study that are selected at first. */
const INITIAL_RUNS = 40;

let runs = [];
/** The curves and the phases of each run, by index of the run. */
const curves = new Map();
/** Number of drawings started; outdated responses are ignored. */
let drawings = 0;
/** Indices of the selected runs. */
const selectedRuns = new Set();

/** The runs of the chosen study: metrics of different studies have nothing in common. */
const runsOfStudy = () => runs.filter(({ study }) => study === byId("study").value);

/** Selects the runs of the chosen study. */
function selectRuns() {
  const ofStudy = runsOfStudy();
  selectedRuns.clear();
  ofStudy.slice(0, INITIAL_RUNS).forEach(({ index }) => selectedRuns.add(index));
  byId("first-runs").textContent = `The first ${INITIAL_RUNS} of ${ofStudy.length} runs are ticked.`;
  byId("first-runs").hidden = ofStudy.length <= INITIAL_RUNS;
  listRuns();
}

function listRuns() {
  const filter = byId("run-filter").value.toLowerCase();
  byId("runs").replaceChildren();
  for (const { name, finished, index } of runsOfStudy()) {
    if (!name.toLowerCase().includes(filter)) continue;
    const checkbox = make("input", { type: "checkbox", checked: selectedRuns.has(index) });
    checkbox.addEventListener("change", () => {
      if (checkbox.checked) selectedRuns.add(index);
      else selectedRuns.delete(index);
      drawCurves();
    });
    const swatch = make("span", { className: `swatch ${seriesClass(index)}` });
    const state = make("small", { className: finished ? "finished" : "unfinished" }, finished ? "finished" : "not finished");
    byId("runs").append(make("label", {}, checkbox, swatch, make("span", {}, name, " ", state)));
  }
  byId("live-label").hidden = runsOfStudy().every(({ finished }) => finished);
}

async function drawCurves(reload = false) {
  drawings += 1;
  const drawingNumber = drawings;
  const indices = [...selectedRuns].sort((a, b) => a - b);
  await Promise.all(indices.map(async (index) => {
    if (!reload && curves.has(index)) return;
    const response = await ask(`/api/runs/${index}/curves`);
    // If a request fails, the other runs are still drawn.
    curves.set(index, response ?? curves.get(index) ?? { curves: [], phases: [] });
  }));
  if (drawingNumber !== drawings) return;
  const names = [...new Set(indices.flatMap((index) => curves.get(index).curves.map((curve) => curve.name)))];
  const metric = byId("metric");
  const previousMetric = metric.value;
  if (names.join("\n") !== [...metric.options].map((option) => option.value).join("\n")) {
    fill(metric, names.map((name) => [name, name]));
    if (names.includes(previousMetric)) metric.value = previousMetric;
  }
  byId("metric-about").textContent = describeMetric(metric.value);
  byId("metric-about").hidden = byId("metric-about").textContent === "";
  const series = indices.flatMap((index) =>
    curves.get(index).curves
      .filter((curve) => curve.name === metric.value)
      .map((curve) => ({ name: runs[index].name, index, points: curve.points })));
  // A run of one phase needs no mark. Runs with the same phases share their marks.
  const ofSeries = series.map(({ index }) => curves.get(index).phases).filter((phases) => phases.length > 1);
  const phases = [...new Map(ofSeries.flat().map((phase) => [phase.join(" "), phase])).values()];
  const showReading = (text) => { byId("reading").textContent = text; };
  const lastValues = series.map(({ name, points }) => `${name} ends at ${formatNumber(points.at(-1)[1])}`).join("; ");
  draw(byId("chart"), series, `${metric.value}. ${lastValues}`, byId("logarithmic").checked, phases, (text) => showReading(text || lastValues));
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
  const studies = [...new Set(runs.map(({ study }) => study))];
  fill(byId("study"), studies.map((study) => [study, study]));
  byId("study-label").hidden = studies.length === 1;
  byId("study").addEventListener("change", () => {
    selectRuns();
    drawCurves();
  });
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
  selectRuns();
  await drawCurves();
}
