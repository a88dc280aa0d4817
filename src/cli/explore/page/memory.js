// Memories: their description, and searches in them.

import { written } from "./chart.js";
import { ask, at, fill, keepingFocus, make, pictureField, waiting } from "./page.js";

let memories = [];
let picture;
/** Id of the entry whose neighbours are shown, if any. */
let nearTo;
/** Number of searches started; outdated responses are ignored. */
let asked = 0;

/** The selected memory. */
const chosen = () => memories.find((memory) => String(memory.place) === at("memories").value);

async function chooseMemory() {
  const memory = chosen();
  at("hits").replaceChildren();
  at("found").textContent = "";
  const models = memory.encoders?.map((encoder) => encoder.name).join(" and ");
  const made = models ? `, encoded by ${models}` : memory.run !== null ? ", encoded by its run's model" : "";
  at("about").textContent = `${memory.entries.toLocaleString("en")} entries, keys of dimension ${memory.width}` +
    (made || "; the model of the keys is unknown, so search by the neighbours of an entry");
  at("words").disabled = !memory.accepts.text;
  at("memory-picture").hidden = !memory.accepts.images;
  at("sources").replaceChildren(...memory.sources.map(([name, count]) => make("label", {},
    make("input", { type: "checkbox", checked: true, name: "source", value: name }),
    make("span", {}, `${name} (${count.toLocaleString("en")})`))));
  await search();
}

async function search(near) {
  const { place, accepts: by } = chosen();
  nearTo = near;
  const boxes = [...document.querySelectorAll("[name=source]")];
  const sources = boxes.filter((box) => box.checked).map((box) => box.value);
  if (sources.length === 0) {
    at("found").textContent = "Select at least one source.";
    at("hits").replaceChildren();
    return;
  }
  const wanted = {
    k: Math.min(Math.max(Math.round(Number(at("k").value)) || 10, 1), 200),
    sources: sources.length < boxes.length ? sources : [],
    containing: at("containing").value,
  };
  if (near !== undefined) wanted.near = near;
  else Object.assign(wanted, { text: by.text ? at("words").value : "", image: by.images ? picture.bytes() : "" });
  asked += 1;
  const mine = asked;
  const read = await waiting(at("hits"), () => ask(`/api/memories/${place}/search`, wanted));
  if (!read || mine !== asked) return;
  const [seconds, making] = read.seconds;
  const milliseconds = (time) => `${written(time * 1000)} ms`;
  const took = seconds === 0
    ? `encoded and searched in ${milliseconds(making)}`
    : `searched in ${milliseconds(seconds)}, query encoded in ${milliseconds(making)}`;
  const order = near !== undefined ? `nearest to entry ${near}` : wanted.text || wanted.image ? "nearest" : "first in the memory";
  const among = read.containing === null ? "" : ` of ${read.containing.toLocaleString("en")} that contain these words`;
  at("found").textContent = `${read.hits.length} entries, ${order}${among}; generation ${read.generation}; ${took}`;
  keepingFocus(() => at("hits").replaceChildren(...read.hits.map((hit) => shown(place, hit))));
}

/** The image of an entry, or its name if the file is missing. */
export function entryPicture(place, { id, image }) {
  if (!image || place === undefined) return null;
  const made = make("img", { alt: "", loading: "lazy", src: `/api/memories/${place}/images/${id}` });
  made.addEventListener("error", () => made.replaceWith(make("small", { className: "soft" }, image)));
  return made;
}

function shown(place, hit) {
  const about = [
    hit.score !== null && `score ${hit.score.toFixed(4)}`,
    hit.gate !== null && `gate ${hit.gate.toFixed(3)}`,
    `entry ${hit.id}`,
    hit.source,
    hit.document && `document ${hit.document}`,
  ].filter(Boolean).join(" · ");
  const like = make("button", { type: "button", ariaLabel: `Neighbours of entry ${hit.id}` }, "Neighbours");
  like.dataset.control = `neighbours ${hit.id}`;
  like.addEventListener("click", () => search(hit.id));
  return make("li", { className: "card entry" }, make("div", {}, entryPicture(place, hit)),
    make("div", {}, make("p", {}, hit.text || hit.image || "no text"), make("p", { className: "soft" }, about)), like);
}

export async function startMemory(found) {
  memories = found;
  picture = pictureField(at("memory-picture"), () => search());
  fill(at("memories"), memories.map((memory) => [memory.place, memory.name]));
  at("memories").addEventListener("change", chooseMemory);
  at("search").addEventListener("submit", (event) => {
    event.preventDefault();
    search(document.activeElement === at("containing") ? nearTo : undefined);
  });
  at("sources").addEventListener("change", () => search(nearTo));
  at("containing").addEventListener("change", () => search(nearTo));
  await chooseMemory();
}
