// AVFormer: a spoken name in noise, transcribed with and without images.

import { whenWidthChanges, widthOf, formatNumber } from "./chart.js";
import { ask, at, fill, make, waiting } from "./page.js";

const run = () => at("speech-run").value;
/** The run's names, and its numbers of views and frames. */
let spoken = null;
/** The response that is drawn. */
let drawn = null;
let requests = 0;

function clipParameters() {
  const noise = at("noise").value;
  return new URLSearchParams({
    name: at("name").value,
    take: Math.max(Math.round(Number(at("take").value)) || 0, 0),
    other: at("other").value,
    ...(noise ? { noise, snr_db: at("snr").value } : {}),
  });
}

async function transcribe() {
  if (!at("name").value) return;
  at("snr-value").textContent = at("noise").value ? `${at("snr").value} dB` : "no noise";
  at("snr").disabled = !at("noise").value;
  requests += 1;
  const mine = requests;
  const clip = clipParameters();
  at("audio").src = `/api/runs/${run()}/audio?${clip}`;
  const read = await waiting(at("transcripts"), () => ask(`/api/runs/${run()}/transcribe?${clip}`));
  if (!read || mine !== requests) return;
  at("spoken").textContent = `Spoken by ${read.voice}, ${formatNumber(read.seconds)} s: ${read.text}`;
  drawn = read;
  drawWaveform(read);
  const names = { frozen: "frozen ASR model (word times above)", nothing: "adapters, no images" };
  const rows = read.transcripts.map(({ images, words, errors, text }, index) => {
    const views = make("div", { className: "images" });
    const name = index > 1 ? Number(at(index === 2 ? "name" : "other").value) : -1;
    for (let view = 0; name >= 0 && view < Math.min(spoken.frames, 4); view += 1) {
      views.append(make("img", { alt: images, src: `/api/runs/${run()}/frames/${name}/${view}` }));
    }
    const label = names[images] ?? (index === 2 ? `adapters, images of the spoken name` : `adapters, images of ${images}`);
    const aligned = make("span", {}, ...words.flatMap(([kind, reference, hypothesis]) => [edit(kind, reference, hypothesis), " "]));
    const plain = words.map(([, , hypothesis]) => hypothesis).filter(Boolean).join(" ");
    return make("tr", {}, make("th", { scope: "row" }, label, views), make("td", { className: "aligned" }, aligned,
      plain === text ? null : make("small", { className: "soft" }, ` ${text}`)),
      make("td", { className: "errors" }, String(errors)));
  });
  const head = make("tr", {}, ...["system", "reference and hypothesis", "errors"].map((title) =>
    make("th", { scope: "col" }, title)));
  at("transcripts").replaceChildren(head, ...rows);
}

/** An aligned word: reference and hypothesis. */
function edit(kind, reference, hypothesis) {
  const parts = {
    hit: [hypothesis],
    substitution: [make("del", {}, reference), make("ins", {}, hypothesis)],
    deletion: [make("del", {}, reference)],
    insertion: [make("ins", {}, hypothesis)],
  }[kind];
  return make("span", { className: kind, title: kind }, ...parts);
}

/** Draws the waveform, and the words of the frozen ASR model at their times. */
function drawWaveform({ peaks, seconds, words }) {
  const namespace = "http://www.w3.org/2000/svg";
  const element = (name, attributes, text) => {
    const one = document.createElementNS(namespace, name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    if (text !== undefined) one.textContent = text;
    return one;
  };
  const [width, height] = [widthOf(at("waves")), 140];
  const wordTimes = words.map((word) => `${word.text.trim()} ${word.start} to ${word.end} s`).join(", ");
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Waveform. ${wordTimes}` });
  const loudest = peaks.reduce((loudest, [low, high]) => Math.max(loudest, -low, high), 1e-6);
  const y = (sample) => 55 - (sample / loudest) * 50;
  const x = (index) => (index / Math.max(peaks.length - 1, 1)) * width;
  const above = peaks.map(([, high], index) => `${x(index).toFixed(1)},${y(high).toFixed(1)}`);
  const below = peaks.map(([low], index) => `${x(index).toFixed(1)},${y(low).toFixed(1)}`).reverse();
  svg.append(element("polygon", { class: "waveform", points: [...above, ...below].join(" ") }));
  for (const word of words) {
    const [from, to] = [word.start, word.end].map((time) => (Math.min(time, seconds) / seconds) * width);
    svg.append(element("rect", { class: "word", x: from, y: 112, width: Math.max(to - from, 2), height: 24, rx: 3 }));
    svg.append(element("text", { x: (from + to) / 2, y: 129, "text-anchor": "middle" }, word.text.trim()));
  }
  at("waves").replaceChildren(svg);
}

async function chooseRun() {
  requests += 1;
  const mine = requests;
  // Clears the results of the previous run.
  drawn = null;
  at("audio").removeAttribute("src");
  at("spoken").textContent = "";
  for (const part of ["waves", "transcripts", "name", "other"]) at(part).replaceChildren();
  const read = await ask(`/api/runs/${run()}/names`);
  if (!read || mine !== requests) return;
  spoken = read;
  const names = spoken.names.map((name, index) => [index, name]);
  fill(at("name"), names);
  fill(at("other"), names);
  at("other").value = String(Math.min(1, names.length - 1));
  at("other").disabled = spoken.frames === 0;
  await transcribe();
}

export function startSpeech(runs) {
  fill(at("speech-run"), runs.map(({ index, name }) => [index, name]));
  at("speech-run").addEventListener("change", chooseRun);
  at("speech-form").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["name", "take", "noise", "snr", "other"]) at(id).addEventListener("change", transcribe);
  at("snr").addEventListener("input", () => { at("snr-value").textContent = `${at("snr").value} dB`; });
  whenWidthChanges(at("waves"), () => drawn && drawWaveform(drawn));
  // Opens the run when the tab is first visible.
  const first = new IntersectionObserver(([seen]) => {
    if (!seen.isIntersecting) return;
    first.disconnect();
    chooseRun();
  });
  first.observe(at("speech-form"));
}
