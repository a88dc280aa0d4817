// REVEAL's answers, and the entries retrieved for them.

import { seriesClass, formatNumber } from "./chart.js";
import { ask, at, fill, keepingFocus, load, make, imageField, waiting } from "./page.js";
import { entryImage } from "./memory.js";

/** Minimum attribution, in nats, for a token to take the colour of an entry. */
const MIN_ATTRIBUTION = 0.05;

let questionImage;
/** Entries that are switched off, by id. */
let off = new Map();
/** The answer with all entries switched on. */
let fullAnswer = null;
let requests = 0;
/** Number of requests for the question list; outdated responses are ignored. */
let listings = 0;
/** Index of each run's memory, by index of the run. */
const memoryOf = new Map();

const total = (entry) => (entry.credit ?? []).reduce((sum, one) => sum + one, 0);
const run = () => at("answer-run").value;

async function listQuestions() {
  listings += 1;
  const mine = listings;
  const words = new URLSearchParams({ words: at("question-words").value });
  const read = await ask(`/api/runs/${run()}/questions?${words}`);
  if (!read || mine !== listings) return;
  at("examples").hidden = !read.world;
  at("listed").textContent = `${read.questions.length} of ${read.found.toLocaleString("en")} test questions`;
  at("questions").replaceChildren(...read.questions.map((one) => {
    const button = make("button", { type: "button" }, one.text, " ",
      make("small", { className: "soft" }, `${one.answers.join(", ")} · ${one.image} · ${one.part.replace("_", " ")} · ${one.source}`));
    button.addEventListener("click", () => askTestQuestion(one));
    return make("li", {}, button);
  }));
}

/** Asks a test question about its view of the image. */
async function askTestQuestion(one) {
  requests += 1;
  const mine = requests;
  const view = await load(`/api/runs/${run()}/views/${encodeURIComponent(one.image)}/${one.view}`);
  // The user may have chosen another question meanwhile.
  if (!view || mine !== requests) return;
  await questionImage.take(view);
  if (mine !== requests) return;
  at("question").value = one.text;
  at("gold").textContent = `Correct answer: ${one.answers.join(", ")}; it is in entry ${one.entry} (${one.source}).`;
  await start();
}

/** Asks a new question, with all entries switched on. */
async function start() {
  off = new Map();
  fullAnswer = null;
  await answer();
}

async function answer() {
  if (!questionImage.bytes()) {
    at("answer-about").textContent = "Choose an image or a test question first.";
    return;
  }
  requests += 1;
  const mine = requests;
  const request = { question: at("question").value, image: questionImage.bytes(), without: [...off.keys()] };
  const read = await waiting(at("answer"), () => ask(`/api/runs/${run()}/answer`, request));
  if (!read || mine !== requests) return;
  if (request.without.length === 0) fullAnswer = read;
  keepingFocus(() => draw(read));
}

function draw(read) {
  const totals = read.evidence.map(total);
  // Entries with the highest attribution get the first colours.
  const ranked = read.evidence.map((_, index) => index).sort((a, b) => totals[b] - totals[a]);
  const colour = (index) => seriesClass(ranked.indexOf(index));
  const tokens = (read.tokens ?? []).map((token, column) => {
    const of = read.evidence.map((entry) => entry.credit[column]);
    const best = of.reduce((a, _, index) => (of[index] > of[a] ? index : a), 0);
    const isAttributed = of[best] >= MIN_ATTRIBUTION;
    const text = token === "</s>" ? "end" : token.replaceAll("▁", " ").trim() || token;
    const tokenButton = make("button", { type: "button", className: isAttributed ? `token ${colour(best)}` : "token" }, text);
    const description = isAttributed
      ? `${text}: ${formatNumber(of[best])} nats from entry ${read.evidence[best].id}, ${read.evidence[best].text}`
      : `${text}: no entry has an attribution of ${MIN_ATTRIBUTION} nats or more`;
    const highlight = () => {
      at("token").textContent = description;
      for (const [index, item] of [...at("evidence").children].entries()) {
        item.classList.toggle("chosen", isAttributed && index === best);
      }
    };
    tokenButton.title = description;
    for (const event of ["click", "focus", "pointerenter"]) tokenButton.addEventListener(event, highlight);
    return tokenButton;
  });
  const text = make("strong", { id: "answer-text" }, read.answer || "no answer");
  const changed = off.size > 0 && fullAnswer ? ` With all entries: ${fullAnswer.answer || "no answer"} (${formatNumber(fullAnswer.log_probability)}).` : "";
  at("answer-about").replaceChildren("Answer: ", text,
    ` (log-probability ${formatNumber(read.log_probability)} nats).${changed}`);
  at("tokens").replaceChildren(...tokens);
  at("token").textContent = tokens.length > 0 ? "Each token has the colour of the entry with the highest attribution." : "";
  at("evidence").replaceChildren(...read.evidence.map((entry, index) => entryCard(entry, totals[index], colour(index), true)));
  at("off").replaceChildren(...[...off.values()].map((entry) => entryCard(entry, null, null, false)));
  at("off-title").hidden = off.size === 0;
  at("evidence-title").hidden = read.evidence.length === 0;
  const head = ["entry", ...(read.tokens ?? []), "total"].map((title) => make("th", { scope: "col" }, title));
  const rows = ranked.map((index) => make("tr", {}, make("th", { scope: "row" }, String(read.evidence[index].id)),
    ...(read.evidence[index].credit ?? []).map((one) => make("td", {}, formatNumber(one))),
    make("td", {}, formatNumber(totals[index]))));
  at("credits").replaceChildren(make("tr", {}, ...head), ...rows);
}

/** An entry with its checkbox. */
function entryCard(entry, credit, colour, on) {
  const box = make("input", { type: "checkbox", checked: on, ariaLabel: `Use entry ${entry.id}` });
  box.dataset.control = `entry ${entry.id}`;
  box.addEventListener("change", () => {
    if (box.checked) off.delete(entry.id);
    else off.set(entry.id, entry);
    answer();
  });
  const about = [
    credit !== null && `attribution ${formatNumber(credit)} nats`,
    `score ${entry.score.toFixed(4)}`,
    `gate ${entry.gate.toFixed(3)}`,
    entry.prior !== undefined && `prior ${entry.prior.toFixed(2)}`,
    `entry ${entry.id}`,
    entry.source,
  ].filter(Boolean).join(" · ");
  const swatch = colour && credit >= MIN_ATTRIBUTION ? make("span", { className: `swatch ${colour}` }) : null;
  return make("li", { className: "card entry" }, make("div", {}, entryImage(memoryOf.get(Number(run())), entry)),
    make("div", {}, make("p", {}, swatch, " ", entry.text || entry.image || "no text"), make("p", { className: "soft" }, about)),
    make("label", {}, box, " use"));
}

async function chooseRun() {
  requests += 1;
  fullAnswer = null;
  off = new Map();
  for (const id of ["answer-about", "token", "gold"]) at(id).textContent = "";
  for (const id of ["tokens", "evidence", "off", "credits", "questions"]) at(id).replaceChildren();
  at("off-title").hidden = at("evidence-title").hidden = true;
  await listQuestions();
}

export async function startAnswers(runs, memories) {
  memories.forEach((memory) => memoryOf.set(memory.run, memory.index));
  questionImage = imageField(at("question-image"), () => questionImage.bytes() && start());
  fill(at("answer-run"), runs.map(({ index, name }) => [index, name]));
  at("answer-run").addEventListener("change", chooseRun);
  at("question-words").addEventListener("input", listQuestions);
  at("question-form").addEventListener("submit", (event) => {
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
  first.observe(at("question-form"));
}
