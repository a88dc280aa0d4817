// The page: curves of runs, and memories.

import { draw, lookOf, written } from "./chart.js";

const REFRESH = 5000;
const TABLE_ROWS = 200;
const at = (id) => document.getElementById(id);

function make(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** The JSON of an address; what went wrong is told on the page. */
async function ask(address, body) {
  const options = body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  };
  try {
    const response = await fetch(address, options);
    const read = await response.json();
    if (!response.ok) throw new Error(read.error ?? response.statusText);
    at("failure").hidden = true;
    return read;
  } catch (error) {
    const gone = error instanceof TypeError ? "the program is not there: is `engram explore` still on?" : error.message;
    at("failure").textContent = gone;
    at("failure").hidden = false;
    return null;
  }
}

// Tabs, also by arrow keys.

const tabs = [...document.querySelectorAll("[role=tab]")];

function show(tab) {
  for (const one of tabs) {
    const chosen = one === tab;
    one.setAttribute("aria-selected", chosen);
    one.tabIndex = chosen ? 0 : -1;
    at(one.getAttribute("aria-controls")).hidden = !chosen;
  }
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
}

for (const [place, tab] of tabs.entries()) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(place + step + tabs.length) % tabs.length];
    show(next);
    next.focus();
  });
}

// Curves.

let runs = [];
const curves = new Map();
const chosen = new Set();

async function loadRuns() {
  const read = await ask("/api/runs");
  if (!read) return;
  runs = read;
  runs.slice(0, 4).forEach((_, place) => chosen.add(place));
  listRuns();
  await drawCurves();
}

function listRuns() {
  const wanted = at("run-filter").value.toLowerCase();
  at("runs").replaceChildren();
  for (const [place, run] of runs.entries()) {
    if (!`${run.name} ${run.study}`.toLowerCase().includes(wanted)) continue;
    const box = make("input", { type: "checkbox", checked: chosen.has(place) });
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(place);
      else chosen.delete(place);
      drawCurves();
    });
    const swatch = make("span", { className: `swatch ${lookOf(place)}` });
    const state = run.finished ? run.study : `${run.study}, under way`;
    const name = make("span", {}, run.name, " ", make("small", {}, state));
    at("runs").append(make("label", {}, box, swatch, name));
  }
  if (runs.length === 0) at("runs").append("No runs here.");
}

async function drawCurves(again = false) {
  const wanted = [...chosen].sort((a, b) => a - b);
  for (const place of wanted) {
    if (!again && curves.has(place)) continue;
    const read = await ask(`/api/runs/${place}/curves`);
    if (!read) return;
    curves.set(place, read);
  }
  const names = [...new Set(wanted.flatMap((place) => curves.get(place).map((curve) => curve.name)))];
  const figure = at("figure");
  const before = figure.value;
  figure.replaceChildren(...names.map((name) => make("option", { value: name, textContent: name })));
  if (names.includes(before)) figure.value = before;
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
  at("points").replaceChildren(head, ...rows);
}

at("run-filter").addEventListener("input", listRuns);
at("figure").addEventListener("change", () => drawCurves());
at("logarithmic").addEventListener("change", () => drawCurves());
at("choice").addEventListener("submit", (event) => event.preventDefault());
setInterval(() => {
  const under_way = [...chosen].some((place) => runs[place] && !runs[place].finished);
  if (at("live").checked && under_way && !document.hidden && !at("curves").hidden) drawCurves(true);
}, REFRESH);

// Memories.

let memories = [];
let picture = "";
let newest = 0;

async function loadMemories() {
  const read = await ask("/api/memories");
  if (!read) return;
  memories = read;
  at("memories").replaceChildren(...memories.map((memory, place) =>
    make("option", { value: place, textContent: memory.name })));
  if (memories.length === 0) {
    at("question").replaceChildren("No memories here.");
    return;
  }
  await chooseMemory();
}

async function chooseMemory() {
  const memory = memories[at("memories").value];
  const made = memory.encoders?.map((encoder) => encoder.name).join(" and ");
  at("about").textContent = `${memory.entries.toLocaleString("en")} entries, keys of ${memory.width} numbers` +
    (made ? ` by ${made}` : ", by a model that is not known: look at the neighbours of an entry");
  at("words").disabled = !memory.asked_by.text;
  at("picture").disabled = !memory.asked_by.pictures;
  at("drop").hidden = !memory.asked_by.pictures;
  at("sources").replaceChildren(...memory.sources.map(([name, count]) => make("label", {},
    make("input", { type: "checkbox", checked: true, name: "source", value: name }),
    make("span", {}, `${name} (${count.toLocaleString("en")})`))));
  await search();
}

async function search(like) {
  const place = at("memories").value;
  const boxes = [...document.querySelectorAll("[name=source]")];
  const sources = boxes.filter((box) => box.checked).map((box) => box.value);
  if (sources.length === 0) {
    at("found").textContent = "No source is searched: tick one.";
    at("hits").replaceChildren();
    return;
  }
  const wanted = { k: Number(at("k").value) || 10, sources: sources.length < boxes.length ? sources : [] };
  if (like !== undefined) wanted.like = like;
  else Object.assign(wanted, { text: at("words").value, picture });
  newest += 1;
  const mine = newest;
  const read = await ask(`/api/memories/${place}/search`, wanted);
  // An answer that was overtaken by a later question is not shown.
  if (!read || mine !== newest) return;
  const [seconds, making] = read.seconds;
  const milliseconds = (time) => `${written(time * 1000)} ms`;
  const asked = like !== undefined ? `nearest to entry ${like}` : wanted.text || wanted.picture ? "nearest" : "the first";
  at("found").textContent = `${read.hits.length} entries, ${asked}; generation ${read.generation}; ` +
    `searched in ${milliseconds(seconds)}, query made in ${milliseconds(making)}`;
  at("hits").replaceChildren(...read.hits.map((hit) => shown(place, hit)));
}

function shown(place, hit) {
  const side = make("div", {});
  if (hit.image) {
    const image = make("img", { alt: "", loading: "lazy", src: `/api/memories/${place}/pictures/${hit.id}` });
    image.addEventListener("error", () => image.replaceWith(make("small", { className: "soft" }, hit.image)));
    side.append(image);
  }
  const about = [`entry ${hit.id}`, hit.source, hit.document && `document ${hit.document}`].filter(Boolean).join(" · ");
  const like = make("button", { type: "button" }, "Neighbours");
  like.addEventListener("click", () => search(hit.id));
  const score = hit.score === null ? "" : `score ${hit.score.toFixed(4)} · `;
  return make("li", { className: "card" }, side,
    make("div", {}, make("p", {}, hit.text || hit.image || "no text"),
      make("p", { className: "soft" }, score + about)), like);
}

async function take(file) {
  if (!file) return;
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let start = 0; start < bytes.length; start += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  }
  picture = btoa(text);
  URL.revokeObjectURL(at("preview").src);
  at("preview").src = URL.createObjectURL(file);
  at("preview").hidden = at("no-picture").hidden = false;
  await search();
}

at("memories").addEventListener("change", chooseMemory);
at("question").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
at("sources").addEventListener("change", () => search());
at("picture").addEventListener("change", () => take(at("picture").files[0]));
at("no-picture").addEventListener("click", () => {
  picture = "";
  at("picture").value = "";
  at("preview").hidden = at("no-picture").hidden = true;
  search();
});
for (const event of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(event, (happened) => {
    happened.preventDefault();
    at("drop").classList.toggle("over", event === "dragover");
    if (event === "drop" && !at("picture").disabled) take(happened.dataTransfer.files[0]);
  });
}

if (location.hash === "#memory") show(at("tab-memory"));
loadRuns();
loadMemories();
