// REVEAL's answers, and the entries retrieved for them.

import { seriesClass, formatNumber } from "./chart.js";
import { ask, byId, fill, keepingFocus, load, make, imageField, waiting } from "./page.js";
import { entryImage } from "./memory.js";

/** Minimum attribution, in nats, for a token to take the colour of an entry. */
const MIN_ATTRIBUTION = 0.05;

let questionImage;
/** Entries that are switched off, by id. */
let switchedOff = new Map();
/** The answer with all entries switched on. */
let fullAnswer = null;
/** Number of requests for an answer or a view; outdated responses are ignored. */
let requests = 0;
/** Number of requests for the list of test questions; outdated responses are ignored. */
let questionListRequests = 0;
/** Index of each run's memory, by index of the run. */
const memoryOf = new Map();

/** The attribution of the whole answer to an entry, in nats. */
const totalAttribution = (entry) => (entry.attribution ?? []).reduce((sum, value) => sum + value, 0);
const run = () => byId("answer-run").value;

async function listQuestions() {
  questionListRequests += 1;
  const requestNumber = questionListRequests;
  const words = new URLSearchParams({ words: byId("question-words").value });
  const response = await ask(`/api/runs/${run()}/questions?${words}`);
  if (!response || requestNumber !== questionListRequests) return;
  byId("examples").hidden = !response.world;
  byId("listed").textContent = `${response.questions.length} of ${response.found.toLocaleString("en")} test questions`;
  byId("questions").replaceChildren(...response.questions.map((question) => {
    const button = make("button", { type: "button" }, question.text, " ",
      make("small", { className: "soft" }, `${question.answers.join(", ")} · ${question.image} · ${question.part.replace("_", " ")} · ${question.source}`));
    button.addEventListener("click", () => askTestQuestion(question));
    return make("li", {}, button);
  }));
}

/** Asks a test question about its view of the image. */
async function askTestQuestion(question) {
  requests += 1;
  const requestNumber = requests;
  const view = await load(`/api/runs/${run()}/views/${encodeURIComponent(question.image)}/${question.view}`);
  // The user may have chosen another question meanwhile.
  if (!view || requestNumber !== requests) return;
  await questionImage.setFile(view);
  if (requestNumber !== requests) return;
  byId("question").value = question.text;
  byId("gold").textContent = `Correct answer: ${question.answers.join(", ")}; it is in entry ${question.entry} (${question.source}).`;
  await start();
}

/** Asks a new question, with all entries switched on. */
async function start() {
  switchedOff = new Map();
  fullAnswer = null;
  await answer();
}

async function answer() {
  if (!questionImage.asBase64()) {
    byId("answer-about").textContent = "Choose an image or a test question first.";
    return;
  }
  requests += 1;
  const requestNumber = requests;
  const request = { question: byId("question").value, image: questionImage.asBase64(), without: [...switchedOff.keys()] };
  const response = await waiting(byId("answer"), () => ask(`/api/runs/${run()}/answer`, request));
  if (!response || requestNumber !== requests) return;
  if (request.without.length === 0) fullAnswer = response;
  keepingFocus(() => draw(response));
}

function draw(response) {
  const totals = response.evidence.map(totalAttribution);
  // Entries with the highest attribution get the first colours.
  const ranked = response.evidence.map((_, index) => index).sort((a, b) => totals[b] - totals[a]);
  const colour = (index) => seriesClass(ranked.indexOf(index));
  const tokens = (response.tokens ?? []).map((token, column) => {
    const attributions = response.evidence.map((entry) => entry.attribution[column]);
    const strongest = attributions.reduce((best, _, index) => (attributions[index] > attributions[best] ? index : best), 0);
    const isAttributed = attributions[strongest] >= MIN_ATTRIBUTION;
    const text = token === "</s>" ? "end" : token.replaceAll("▁", " ").trim() || token;
    const tokenButton = make("button", { type: "button", className: isAttributed ? `token ${colour(strongest)}` : "token" }, text);
    const description = isAttributed
      ? `${text}: ${formatNumber(attributions[strongest])} nats from entry ${response.evidence[strongest].id}, ${response.evidence[strongest].text}`
      : `${text}: no entry has an attribution of ${MIN_ATTRIBUTION} nats or more`;
    const highlight = () => {
      byId("token").textContent = description;
      for (const [index, item] of [...byId("evidence").children].entries()) {
        item.classList.toggle("chosen", isAttributed && index === strongest);
      }
    };
    tokenButton.title = description;
    for (const event of ["click", "focus", "pointerenter"]) tokenButton.addEventListener(event, highlight);
    return tokenButton;
  });
  const text = make("strong", { id: "answer-text" }, response.answer || "no answer");
  const changed = switchedOff.size > 0 && fullAnswer ? ` With all entries: ${fullAnswer.answer || "no answer"} (${formatNumber(fullAnswer.log_probability)}).` : "";
  byId("answer-about").replaceChildren("Answer: ", text,
    ` (log-probability ${formatNumber(response.log_probability)} nats).${changed}`);
  byId("tokens").replaceChildren(...tokens);
  byId("token").textContent = tokens.length > 0 ? "Each token has the colour of the entry with the highest attribution." : "";
  byId("evidence").replaceChildren(...response.evidence.map((entry, index) => entryCard(entry, totals[index], colour(index), true)));
  byId("off").replaceChildren(...[...switchedOff.values()].map((entry) => entryCard(entry, null, null, false)));
  byId("off-title").hidden = switchedOff.size === 0;
  byId("evidence-title").hidden = response.evidence.length === 0;
  const header = ["entry", ...(response.tokens ?? []), "total"].map((title) => make("th", { scope: "col" }, title));
  const rows = ranked.map((index) => make("tr", {}, make("th", { scope: "row" }, String(response.evidence[index].id)),
    ...(response.evidence[index].attribution ?? []).map((value) => make("td", {}, formatNumber(value))),
    make("td", {}, formatNumber(totals[index]))));
  byId("attributions").replaceChildren(make("tr", {}, ...header), ...rows);
}

/** An entry with its checkbox. `attribution` is in nats; null for an entry that was not retrieved. */
function entryCard(entry, attribution, colour, isOn) {
  const checkbox = make("input", { type: "checkbox", checked: isOn, ariaLabel: `Use entry ${entry.id}` });
  checkbox.dataset.control = `entry ${entry.id}`;
  checkbox.addEventListener("change", () => {
    if (checkbox.checked) switchedOff.delete(entry.id);
    else switchedOff.set(entry.id, entry);
    answer();
  });
  const details = [
    attribution !== null && `attribution ${formatNumber(attribution)} nats`,
    `score ${entry.score.toFixed(4)}`,
    `gate ${entry.gate.toFixed(3)}`,
    entry.prior !== undefined && `prior ${entry.prior.toFixed(2)}`,
    `entry ${entry.id}`,
    entry.source,
  ].filter(Boolean).join(" · ");
  const swatch = colour && attribution >= MIN_ATTRIBUTION ? make("span", { className: `swatch ${colour}` }) : null;
  return make("li", { className: "card entry" }, make("div", {}, entryImage(memoryOf.get(Number(run())), entry)),
    make("div", {}, make("p", {}, swatch, " ", entry.text || entry.image || "no text"), make("p", { className: "soft" }, details)),
    make("label", {}, checkbox, " use"));
}

async function chooseRun() {
  requests += 1;
  fullAnswer = null;
  switchedOff = new Map();
  for (const id of ["answer-about", "token", "gold"]) byId(id).textContent = "";
  for (const id of ["tokens", "evidence", "off", "attributions", "questions"]) byId(id).replaceChildren();
  byId("off-title").hidden = byId("evidence-title").hidden = true;
  await listQuestions();
}

export async function startAnswers(runs, memories) {
  memories.forEach((memory) => memoryOf.set(memory.run, memory.index));
  questionImage = imageField(byId("question-image"), () => questionImage.asBase64() && start());
  fill(byId("answer-run"), runs.map(({ index, name }) => [index, name]));
  byId("answer-run").addEventListener("change", chooseRun);
  byId("question-words").addEventListener("input", listQuestions);
  byId("question-form").addEventListener("submit", (event) => {
    event.preventDefault();
    byId("gold").textContent = "";
    start();
  });
  // Opens the run when the tab is first visible.
  const observer = new IntersectionObserver(([form]) => {
    if (!form.isIntersecting) return;
    observer.disconnect();
    chooseRun();
  });
  observer.observe(byId("question-form"));
}
