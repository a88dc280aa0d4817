// Memories: their description, and searches in them.

import { formatNumber } from "./chart.js";
import { ask, byId, fill, keepingFocus, make, imageField, narrow, waiting } from "./page.js";

let memories = [];
let queryImage;
/** Id of the entry whose neighbours are listed; undefined for other searches. */
let nearTo;
/** Number of searches started; outdated responses are ignored. */
let searches = 0;

const sourceCheckboxes = () => [...document.querySelectorAll("[name=source]")];

/** The selected memory. */
const selectedMemory = () => memories.find((memory) => String(memory.index) === byId("memories").value);

async function chooseMemory() {
  const memory = selectedMemory();
  byId("hits").replaceChildren();
  byId("found").textContent = "";
  const models = memory.encoders?.map((encoder) => encoder.name).join(" and ");
  const encodedBy = models ? `, encoded by ${models}` : memory.run !== null ? ", encoded by its run's model" : "";
  byId("about").textContent = `${memory.entries.toLocaleString("en")} entries, keys of dimension ${memory.width}` +
    (encodedBy || "; the encoder of the keys is unknown, so only searches for neighbours of an entry are possible");
  byId("words").disabled = !memory.accepts.text;
  byId("query-image").hidden = !memory.accepts.images;
  byId("sources").replaceChildren(...memory.sources.map(([name, count]) => make("label", {},
    make("input", { type: "checkbox", checked: true, name: "source", value: name }),
    make("span", {}, `${name} (${count.toLocaleString("en")})`))));
  await search();
}

/** Searches by the query, or for the neighbours of the entry `near`. */
async function search(near) {
  const { index, accepts } = selectedMemory();
  nearTo = near;
  const checkboxes = sourceCheckboxes();
  const sources = checkboxes.filter((checkbox) => checkbox.checked).map((checkbox) => checkbox.value);
  byId("all-sources").hidden = sources.length === checkboxes.length;
  if (sources.length === 0) {
    byId("found").textContent = "Select at least one source.";
    byId("hits").replaceChildren();
    return;
  }
  const request = {
    k: Math.min(Math.max(Math.round(Number(byId("k").value)) || 10, 1), 200),
    sources: sources.length < checkboxes.length ? sources : [],
    containing: byId("containing").value,
  };
  if (near !== undefined) request.near = near;
  else Object.assign(request, { text: accepts.text ? byId("words").value : "", image: accepts.images ? queryImage.asBase64() : "" });
  searches += 1;
  const searchNumber = searches;
  const response = await waiting(byId("hits"), () => ask(`/api/memories/${index}/search`, request));
  if (!response || searchNumber !== searches) return;
  const [seconds, encoding] = response.seconds;
  const milliseconds = (time) => `${formatNumber(time * 1000)} ms`;
  const duration = seconds === 0
    ? `encoded and searched in ${milliseconds(encoding)}`
    : `searched in ${milliseconds(seconds)}, query encoded in ${milliseconds(encoding)}`;
  const order = near !== undefined ? `nearest to entry ${near}` : request.text || request.image ? "nearest to the query" : "the first in the memory";
  const matches = response.containing === null ? "" : ` of ${response.containing.toLocaleString("en")} that contain these words`;
  byId("found").textContent = `${response.hits.length} entries, ${order}${matches}; generation ${response.generation}; ${duration}`;
  byId("hit-terms").hidden = response.hits.every((hit) => hit.score === null);
  byId("gate-term").hidden = response.hits.every((hit) => hit.gate === null);
  keepingFocus(() => byId("hits").replaceChildren(...response.hits.map((hit) => hitCard(index, hit))));
}

/** Searches, and scrolls to the entries: on a phone, the form covers the screen. */
async function searchAndShow(near) {
  await search(near);
  if (narrow.matches) byId("found-title").scrollIntoView({ block: "start" });
}

/** The image of an entry, or its name if the file is missing. */
export function entryImage(memory, { id, image }) {
  if (!image || memory === undefined) return null;
  const element = make("img", { alt: "", loading: "lazy", src: `/api/memories/${memory}/images/${id}` });
  element.addEventListener("error", () => element.replaceWith(make("small", { className: "soft" }, image)));
  return element;
}

/** A player for the recording of an entry's words; null without one. */
export function entryRecording(memory, { id, recording }) {
  if (!recording || memory === undefined) return null;
  return make("audio", { controls: true, preload: "none", src: `/api/memories/${memory}/recordings/${id}` });
}

function hitCard(memory, hit) {
  const details = [
    hit.score !== null && `score ${hit.score.toFixed(4)}`,
    hit.gate !== null && `gate ${hit.gate.toFixed(3)}`,
    `entry ${hit.id}`,
    hit.source,
    hit.document && `document ${hit.document}`,
  ].filter(Boolean).join(" · ");
  const button = make("button", { type: "button", ariaLabel: `Neighbours of entry ${hit.id}` }, "Neighbours");
  button.dataset.control = `neighbours ${hit.id}`;
  button.addEventListener("click", () => searchAndShow(hit.id));
  return make("li", { className: "card entry" }, make("div", {}, entryImage(memory, hit)),
    make("div", {}, make("p", {}, hit.text || hit.image || "no text"), entryRecording(memory, hit), make("p", { className: "soft" }, details)), button);
}

export async function startMemory(allMemories) {
  memories = allMemories;
  queryImage = imageField(byId("query-image"), () => search());
  fill(byId("memories"), memories.map((memory) => [memory.index, memory.name]));
  byId("memories").addEventListener("change", chooseMemory);
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    searchAndShow(document.activeElement === byId("containing") ? nearTo : undefined);
  });
  byId("sources").addEventListener("change", () => search(nearTo));
  byId("all-sources").addEventListener("click", () => {
    sourceCheckboxes().forEach((checkbox) => { checkbox.checked = true; });
    search(nearTo);
  });
  byId("containing").addEventListener("change", () => search(nearTo));
  await chooseMemory();
}
