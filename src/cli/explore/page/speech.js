// AVFormer: a spoken name in noise, transcribed with and without images.

import { whenWidthChanges, widthOf, formatNumber } from "./chart.js";
import { ask, byId, fill, make, narrow, verdict, waiting } from "./page.js";

const run = () => byId("speech-run").value;
/** The run's names, and its numbers of views and frames. */
let spokenNames = null;
/** The response that is drawn. */
let drawnResponse = null;
/** Number of requests; outdated responses are ignored. */
let requests = 0;

function clipParameters() {
  const noise = byId("noise").value;
  return new URLSearchParams({
    name: byId("name").value,
    take: Math.max(Math.round(Number(byId("take").value)) || 0, 0),
    other: byId("other").value,
    ...(noise ? { noise, snr_db: byId("snr").value } : {}),
  });
}

async function transcribe() {
  if (!byId("name").value) return;
  byId("snr-value").textContent = byId("noise").value ? `${byId("snr").value} dB` : "no noise";
  byId("snr").disabled = !byId("noise").value;
  requests += 1;
  const requestNumber = requests;
  const clip = clipParameters();
  byId("audio").src = `/api/runs/${run()}/audio?${clip}`;
  const response = await waiting(byId("transcripts"), () => ask(`/api/runs/${run()}/transcribe?${clip}`));
  if (!response || requestNumber !== requests) return;
  byId("spoken").textContent = `Spoken by ${response.voice}, ${formatNumber(response.seconds)} s: ${response.text}`;
  drawnResponse = response;
  drawWaveform(response);
  showRescue(response);
  const systemLabels = { frozen: "frozen ASR model (word times above)", nothing: "adapters, no images" };
  const rows = response.transcripts.map(({ images, words, errors, text }, index) => {
    const views = make("div", { className: "images" });
    const nameIndex = index > 1 ? Number(byId(index === 2 ? "name" : "other").value) : -1;
    for (let view = 0; nameIndex >= 0 && view < Math.min(spokenNames.frames, 4); view += 1) {
      views.append(make("img", { alt: images, src: `/api/runs/${run()}/frames/${nameIndex}/${view}` }));
    }
    const label = systemLabels[images] ?? (index === 2 ? "adapters, images of the spoken name" : `adapters, images of ${images}`);
    // Rescued words are marked in the transcript with images of the spoken name.
    let position = -1;
    const aligned = make("span", {}, ...words.flatMap(([kind, reference, hypothesis]) => {
      position += kind === "insertion" ? 0 : 1;
      const isRescued = index === 2 && kind === "hit" && response.rescued.includes(position);
      return [isRescued ? make("mark", { title: "rescued by the images" }, hypothesis) : edit(kind, reference, hypothesis), " "];
    }));
    const plain = words.map(([, , hypothesis]) => hypothesis).filter(Boolean).join(" ");
    return make("tr", {}, make("th", { scope: "row" }, label, views), make("td", { className: "aligned" }, aligned,
      plain === text ? null : make("small", { className: "soft" }, ` ${text}`)),
      make("td", { className: "result" }, verdict(errors === 0, errors === 0 ? "right" : errors === 1 ? "1 error" : `${errors} errors`)));
  });
  const header = make("tr", {}, ...["system", "reference and hypothesis", "result"].map((title) =>
    make("th", { scope: "col" }, title)));
  byId("transcripts").replaceChildren(header, ...rows);
}

/** Names the words that images of the spoken name rescue in this clip. */
function showRescue({ transcripts, rescued }) {
  byId("rescue").hidden = rescued.length === 0;
  if (rescued.length === 0) return;
  const reference = transcripts[1].words.filter(([kind]) => kind !== "insertion");
  const parts = rescued.map((position) => {
    const [, word, hypothesis] = reference[position];
    return [" ", make("strong", {}, word), hypothesis ? ` (without images “${hypothesis}”)` : " (missing without images)"];
  });
  byId("rescue").replaceChildren("Rescued by images of the spoken name:", ...parts.flat());
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
    const node = document.createElementNS(namespace, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const [width, height] = [widthOf(byId("waves")), 140];
  const wordTimes = words.map((word) => `${word.text.trim()} ${word.start} to ${word.end} s`).join(", ");
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Waveform. ${wordTimes}` });
  const maxAmplitude = peaks.reduce((maximum, [low, high]) => Math.max(maximum, -low, high), 1e-6);
  const y = (sample) => 55 - (sample / maxAmplitude) * 50;
  const x = (index) => (index / Math.max(peaks.length - 1, 1)) * width;
  const upper = peaks.map(([, high], index) => `${x(index).toFixed(1)},${y(high).toFixed(1)}`);
  const lower = peaks.map(([low], index) => `${x(index).toFixed(1)},${y(low).toFixed(1)}`).reverse();
  svg.append(element("polygon", { class: "waveform", points: [...upper, ...lower].join(" ") }));
  for (const word of words) {
    const [left, right] = [word.start, word.end].map((time) => (Math.min(time, seconds) / seconds) * width);
    svg.append(element("rect", { class: "word", x: left, y: 112, width: Math.max(right - left, 2), height: 24, rx: 3 }));
    svg.append(element("text", { x: (left + right) / 2, y: 129, "text-anchor": "middle" }, word.text.trim()));
  }
  byId("waves").replaceChildren(svg);
}

async function chooseRun() {
  requests += 1;
  const requestNumber = requests;
  // Clears the results of the previous run.
  drawnResponse = null;
  byId("audio").removeAttribute("src");
  byId("spoken").textContent = "Choosing a clip in which images correct a word …";
  byId("rescue").hidden = true;
  for (const part of ["waves", "transcripts", "name", "other"]) byId(part).replaceChildren();
  const response = await ask(`/api/runs/${run()}/names`);
  if (!response || requestNumber !== requests) return;
  spokenNames = response;
  const names = spokenNames.names.map((name, index) => [index, name]);
  fill(byId("name"), names);
  fill(byId("other"), names);
  byId("other").value = String(Math.min(1, names.length - 1));
  byId("other").disabled = spokenNames.frames === 0;
  const search = spokenNames.frames === 0 ? null : await waiting(byId("speech-result"), () => ask(`/api/runs/${run()}/rescue`));
  if (requestNumber !== requests) return;
  if (search?.clip) showClip(search.clip);
  await transcribe();
  if (search && !search.clip && requests === requestNumber + 1) {
    byId("rescue").textContent = `No word is rescued by images in ${search.tried} clips of the run's test. Choose another clip.`;
    byId("rescue").hidden = false;
  }
}

/** Selects a clip in the form. */
function showClip({ name, take, noise, snr_db, other }) {
  Object.entries({ name, take, noise: noise ?? "", snr: snr_db, other }).forEach(([id, value]) => { byId(id).value = String(value); });
}

export function startSpeech(runs) {
  fill(byId("speech-run"), runs.map(({ index, name }) => [index, name]));
  byId("speech-run").addEventListener("change", chooseRun);
  byId("speech-form").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["name", "take", "noise", "snr", "other"]) {
    byId(id).addEventListener("change", async () => {
      await transcribe();
      // In one column, the form covers the screen.
      if (narrow.matches) byId("speech-result").scrollIntoView({ block: "nearest" });
    });
  }
  byId("snr").addEventListener("input", () => { byId("snr-value").textContent = `${byId("snr").value} dB`; });
  whenWidthChanges(byId("waves"), () => drawnResponse && drawWaveform(drawnResponse));
  // Opens the run when the tab is first visible.
  const observer = new IntersectionObserver(([form]) => {
    if (!form.isIntersecting) return;
    observer.disconnect();
    chooseRun();
  });
  observer.observe(byId("speech-form"));
}
