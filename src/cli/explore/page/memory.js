// Memories: their description, and searches in them.

import { formatNumber } from "./chart.js";
import { ask, at, fill, keepingFocus, make, imageField, waiting } from "./page.js";

let memories = [];
let queryImage;
/** Id of the entry whose neighbours are listed, if any. */
let nearTo;
/** Number of searches started; outdated responses are ignored. */
let searches = 0;

/** The selected memory. */
const chosen = () => memories.find((memory) => String(memory.index) === at("memories").value);

async function chooseMemory() {
  const memory = chosen();
  at("hits").replaceChildren();
  at("found").textContent = "";
  const models = memory.encoders?.map((encoder) => encoder.name).join(" and ");
  const encodedBy = models ? `, encoded by ${models}` : memory.run !== null ? ", encoded by its run's model" : "";
  at("about").textContent = `${memory.entries.toLocaleString("en")} entries, keys of dimension ${memory.width}` +
    (encodedBy || "; the encoder of the keys is unknown, so only searches for neighbours of an entry are possible");
  at("words").disabled = !memory.accepts.text;
  at("query-image").hidden = !memory.accepts.images;
  at("sources").replaceChildren(...memory.sources.map(([name, count]) => make("label", {},
    make("input", { type: "checkbox", checked: true, name: "source", value: name }),
    make("span", {}, `${name} (${count.toLocaleString("en")})`))));
  await search();
}

async function search(near) {
  const { index, accepts } = chosen();
  nearTo = near;
  const boxes = [...document.querySelectorAll("[name=source]")];
  const sources = boxes.filter((box) => box.checked).map((box) => box.value);
  if (sources.length === 0) {
    at("found").textContent = "Select at least one source.";
    at("hits").replaceChildren();
    return;
  }
  const request = {
    k: Math.min(Math.max(Math.round(Number(at("k").value)) || 10, 1), 200),
    sources: sources.length < boxes.length ? sources : [],
    containing: at("containing").value,
  };
  if (near !== undefined) request.near = near;
  else Object.assign(request, { text: accepts.text ? at("words").value : "", image: accepts.images ? queryImage.bytes() : "" });
  searches += 1;
  const mine = searches;
  const read = await waiting(at("hits"), () => ask(`/api/memories/${index}/search`, request));
  if (!read || mine !== searches) return;
  const [seconds, encoding] = read.seconds;
  const milliseconds = (time) => `${formatNumber(time * 1000)} ms`;
  const took = seconds === 0
    ? `encoded and searched in ${milliseconds(encoding)}`
    : `searched in ${milliseconds(seconds)}, query encoded in ${milliseconds(encoding)}`;
  const order = near !== undefined ? `nearest to entry ${near}` : request.text || request.image ? "nearest to the query" : "the first in the memory";
  const among = read.containing === null ? "" : ` of ${read.containing.toLocaleString("en")} that contain these words`;
  at("found").textContent = `${read.hits.length} entries, ${order}${among}; generation ${read.generation}; ${took}`;
  keepingFocus(() => at("hits").replaceChildren(...read.hits.map((hit) => hitCard(index, hit))));
}

/** The image of an entry, or its name if the file is missing. */
export function entryImage(memory, { id, image }) {
  if (!image || memory === undefined) return null;
  const view = make("img", { alt: "", loading: "lazy", src: `/api/memories/${memory}/images/${id}` });
  view.addEventListener("error", () => view.replaceWith(make("small", { className: "soft" }, image)));
  return view;
}

function hitCard(memory, hit) {
  const about = [
    hit.score !== null && `score ${hit.score.toFixed(4)}`,
    hit.gate !== null && `gate ${hit.gate.toFixed(3)}`,
    `entry ${hit.id}`,
    hit.source,
    hit.document && `document ${hit.document}`,
  ].filter(Boolean).join(" · ");
  const button = make("button", { type: "button", ariaLabel: `Neighbours of entry ${hit.id}` }, "Neighbours");
  button.dataset.control = `neighbours ${hit.id}`;
  button.addEventListener("click", () => search(hit.id));
  return make("li", { className: "card entry" }, make("div", {}, entryImage(memory, hit)),
    make("div", {}, make("p", {}, hit.text || hit.image || "no text"), make("p", { className: "soft" }, about)), button);
}

export async function startMemory(allMemories) {
  memories = allMemories;
  queryImage = imageField(at("query-image"), () => search());
  fill(at("memories"), memories.map((memory) => [memory.index, memory.name]));
  at("memories").addEventListener("change", chooseMemory);
  at("search").addEventListener("submit", (event) => {
    event.preventDefault();
    search(document.activeElement === at("containing") ? nearTo : undefined);
  });
  at("sources").addEventListener("change", () => search(nearTo));
  at("containing").addEventListener("change", () => search(nearTo));
  await chooseMemory();
}
