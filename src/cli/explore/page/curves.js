// Curves of several runs in one chart.

import { draw, lookOf, whenWidthChanges, written } from "./chart.js";
import { ask, at, fill, make } from "./page.js";

/** Update interval for running runs, in milliseconds. */
const REFRESH = 5000;
const TABLE_ROWS = 200;
/** Number of runs selected at first. */
const FIRST = 4;

let runs = [];
const curves = new Map();
/** Number of drawings started; outdated responses are ignored. */
let drawn = 0;
const chosen = new Set();

function listRuns() {
  const wanted = at("run-filter").value.toLowerCase();
  at("runs").replaceChildren();
  for (const { name, study, finished, place } of runs) {
    if (!`${name} ${study}`.toLowerCase().includes(wanted)) continue;
    const box = make("input", { type: "checkbox", checked: chosen.has(place) });
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(place);
      else chosen.delete(place);
      drawCurves();
    });
    const swatch = make("span", { className: `swatch ${lookOf(place)}` });
    const state = finished ? study : `${study}, running`;
    at("runs").append(make("label", {}, box, swatch, make("span", {}, name, " ", make("small", {}, state))));
  }
}

async function drawCurves(again = false) {
  drawn += 1;
  const mine = drawn;
  const wanted = [...chosen].sort((a, b) => a - b);
  for (const place of wanted) {
    if (!again && curves.has(place)) continue;
    const read = await ask(`/api/runs/${place}/curves`);
    // If a request fails, the other runs are still drawn.
    curves.set(place, read ?? curves.get(place) ?? []);
  }
  if (mine !== drawn) return;
  const names = [...new Set(wanted.flatMap((place) => curves.get(place).map((curve) => curve.name)))];
  const figure = at("figure");
  const before = figure.value;
  if (names.join("\n") !== [...figure.options].map((one) => one.value).join("\n")) {
    fill(figure, names.map((name) => [name, name]));
    if (names.includes(before)) figure.value = before;
  }
  const series = wanted.flatMap((place) =>
    curves.get(place)
      .filter((curve) => curve.name === figure.value)
      .map((curve) => ({ name: runs[place].name, place, points: curve.points })));
  const read = (text) => { at("reading").textContent = text; };
  const ends = series.map(({ name, points }) => `${name} ends at ${written(points.at(-1)[1])}`).join("; ");
  draw(at("chart"), series, `${figure.value}. ${ends}`, at("logarithmic").checked, (text) => read(text || ends));
  read(ends);
  const rows = series.flatMap(({ name, points }) =>
    points.slice(-TABLE_ROWS).map(([step, value]) => make("tr", {},
      make("td", {}, name), make("td", {}, String(step)), make("td", {}, written(value)))));
  const head = make("tr", {}, ...["run", "step", figure.value].map((title) => make("th", { scope: "col" }, title)));
  const isCut = series.some(({ points }) => points.length > TABLE_ROWS);
  const caption = isCut ? make("caption", {}, `The last ${TABLE_ROWS} points of each run`) : null;
  at("points").replaceChildren(...[caption, head, ...rows].filter(Boolean));
}

export async function startCurves(found) {
  runs = found;
  runs.slice(0, FIRST).forEach(({ place }) => chosen.add(place));
  at("run-filter").addEventListener("input", listRuns);
  at("figure").addEventListener("change", () => drawCurves());
  at("logarithmic").addEventListener("change", () => drawCurves());
  at("choice").addEventListener("submit", (event) => event.preventDefault());
  setInterval(() => {
    const underWay = [...chosen].some((place) => !runs[place].finished);
    if (at("live").checked && underWay && !document.hidden && !at("curves").hidden) drawCurves(true);
  }, REFRESH);
  whenWidthChanges(at("chart"), () => drawCurves());
  listRuns();
  await drawCurves();
}
