// REVEAL's answers, and the entries retrieved for them.

import { lookOf, written } from "./chart.js";
import { ask, at, fill, keepingFocus, load, make, pictureField, waiting } from "./page.js";
import { entryPicture } from "./memory.js";

/** Minimum attribution, in nats, for a token to take the colour of an entry. */
const EARNED = 0.05;

let picture;
/** Entries that are switched off, by id. */
let off = new Map();
/** The answer with all entries. */
let whole = null;
let asked = 0;
/** Number of requests for the question list; outdated responses are ignored. */
let listings = 0;
/** Index of each run's memory, by index of the run. */
const memoryOf = new Map();

const total = (entry) => (entry.credit ?? []).reduce((sum, one) => sum + one, 0);
const run = () => at("answering").value;

async function listQuestions() {
  listings += 1;
  const mine = listings;
  const words = new URLSearchParams({ words: at("question-words").value });
  const read = await ask(`/api/runs/${run()}/questions?${words}`);
  if (!read || mine !== listings) return;
  at("examples").hidden = !read.world;
  at("listed").textContent = `${read.questions.length} of ${read.found.toLocaleString("en")} test questions`;
  at("questions").replaceChildren(...read.questions.map((one) => {
    const chosen = make("button", { type: "button" }, one.text, " ",
      make("small", { className: "soft" }, `${one.answers.join(", ")} · ${one.image} · ${one.part.replace("_", " ")} · ${one.source}`));
    chosen.addEventListener("click", () => take(one));
    return make("li", {}, chosen);
  }));
}

/** Asks a test question about its view of the image. */
async function take(one) {
  asked += 1;
  const mine = asked;
  const seen = await load(`/api/runs/${run()}/views/${encodeURIComponent(one.image)}/${one.view}`);
  // Another question may have been chosen meanwhile.
  if (!seen || mine !== asked) return;
  await picture.take(seen);
  if (mine !== asked) return;
  at("asked").value = one.text;
  at("gold").textContent = `Correct answer: ${one.answers.join(", ")}; it is in entry ${one.entry} (${one.source}).`;
  await start();
}

/** Asks a new question, with all entries switched on. */
async function start() {
  off = new Map();
  whole = null;
  await answer();
}

async function answer() {
  if (!picture.bytes()) {
    at("answer-about").textContent = "Choose an image or a test question first.";
    return;
  }
  asked += 1;
  const mine = asked;
  const wanted = { question: at("asked").value, image: picture.bytes(), without: [...off.keys()] };
  const read = await waiting(at("answer"), () => ask(`/api/runs/${run()}/answer`, wanted));
  if (!read || mine !== asked) return;
  if (wanted.without.length === 0) whole = read;
  keepingFocus(() => draw(read));
}

function draw(read) {
  const credits = read.evidence.map(total);
  // Entries with the highest attribution get the first colours.
  const ranked = read.evidence.map((_, place) => place).sort((a, b) => credits[b] - credits[a]);
  const look = (place) => lookOf(ranked.indexOf(place));
  const tokens = (read.tokens ?? []).map((token, column) => {
    const of = read.evidence.map((entry) => entry.credit[column]);
    const best = of.reduce((a, _, place) => (of[place] > of[a] ? place : a), 0);
    const earned = of[best] >= EARNED;
    const text = token === "</s>" ? "end" : token.replaceAll("▁", " ").trim() || token;
    const shown = make("button", { type: "button", className: earned ? `token ${look(best)}` : "token" }, text);
    const told = earned
      ? `${text}: ${written(of[best])} nats from entry ${read.evidence[best].id}, ${read.evidence[best].text}`
      : `${text}: no single entry contributes ${EARNED} nats`;
    const tell = () => {
      at("token").textContent = told;
      for (const [place, item] of [...at("evidence").children].entries()) {
        item.classList.toggle("chosen", earned && place === best);
      }
    };
    shown.title = told;
    for (const event of ["click", "focus", "pointerenter"]) shown.addEventListener(event, tell);
    return shown;
  });
  const text = make("strong", { id: "answer-text" }, read.answer || "no answer");
  const changed = off.size > 0 && whole ? ` With all entries: ${whole.answer || "no answer"} (${written(whole.log_probability)}).` : "";
  at("answer-about").replaceChildren("Answer: ", text,
    ` (log-probability ${written(read.log_probability)} nats).${changed}`);
  at("tokens").replaceChildren(...tokens);
  at("token").textContent = tokens.length > 0 ? "Each token has the colour of the entry with the highest attribution." : "";
  at("evidence").replaceChildren(...read.evidence.map((entry, place) => shown(entry, credits[place], look(place), true)));
  at("off").replaceChildren(...[...off.values()].map((entry) => shown(entry, null, null, false)));
  at("off-title").hidden = off.size === 0;
  at("evidence-title").hidden = read.evidence.length === 0;
  const head = ["entry", ...(read.tokens ?? []), "total"].map((title) => make("th", { scope: "col" }, title));
  const rows = ranked.map((place) => make("tr", {}, make("th", { scope: "row" }, String(read.evidence[place].id)),
    ...(read.evidence[place].credit ?? []).map((one) => make("td", {}, written(one))),
    make("td", {}, written(credits[place]))));
  at("credits").replaceChildren(make("tr", {}, ...head), ...rows);
}

/** An entry with its checkbox. */
function shown(entry, credit, look, on) {
  const box = make("input", { type: "checkbox", checked: on, ariaLabel: `Use entry ${entry.id}` });
  box.dataset.control = `entry ${entry.id}`;
  box.addEventListener("change", () => {
    if (box.checked) off.delete(entry.id);
    else off.set(entry.id, entry);
    answer();
  });
  const about = [
    credit !== null && `attribution ${written(credit)} nats`,
    `score ${entry.score.toFixed(4)}`,
    `gate ${entry.gate.toFixed(3)}`,
    entry.prior !== undefined && `prior ${entry.prior.toFixed(2)}`,
    `entry ${entry.id}`,
    entry.source,
  ].filter(Boolean).join(" · ");
  const swatch = look && credit >= EARNED ? make("span", { className: `swatch ${look}` }) : null;
  return make("li", { className: "card entry" }, make("div", {}, entryPicture(memoryOf.get(Number(run())), entry)),
    make("div", {}, make("p", {}, swatch, " ", entry.text || entry.image || "no text"), make("p", { className: "soft" }, about)),
    make("label", {}, box, " use"));
}

async function chooseRun() {
  asked += 1;
  whole = null;
  off = new Map();
  for (const id of ["answer-about", "token", "gold"]) at(id).textContent = "";
  for (const id of ["tokens", "evidence", "off", "credits", "questions"]) at(id).replaceChildren();
  at("off-title").hidden = at("evidence-title").hidden = true;
  await listQuestions();
}

export async function startAnswers(runs, memories) {
  memories.forEach((memory) => memoryOf.set(memory.run, memory.place));
  picture = pictureField(at("asked-picture"), () => picture.bytes() && start());
  fill(at("answering"), runs.map(({ place, name }) => [place, name]));
  at("answering").addEventListener("change", chooseRun);
  at("question-words").addEventListener("input", listQuestions);
  at("asking").addEventListener("submit", (event) => {
    event.preventDefault();
    at("gold").textContent = "";
    start();
  });
  // Opens the run when the tab is first visible.
  const first = new IntersectionObserver(([seen]) => {
    if (!seen.isIntersecting) return;
    first.disconnect();
    chooseRun();
  });
  first.observe(at("asking"));
}
