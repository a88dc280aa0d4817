// REVEAL's answers, and the entries retrieved for them.

import { seriesClass, formatNumber } from "./chart.js";
import { ask, byId, fill, imageField, keepingFocus, load, make, narrow, verdict, waiting } from "./page.js";
import { entryImage, entryRecording } from "./memory.js";

/** Minimum attribution, in nats, for a token to take the colour of an entry. */
const MIN_ATTRIBUTION = 0.05;

let questionImage;
/** Entries that are switched off, by id. */
let switchedOff = new Map();
/** The test question that is asked; null for the user's own question. */
let testQuestion = null;
/** The list item of the test question that was chosen; null for other questions. */
let chosenItem = null;
/** The answer with all entries switched on. */
let fullAnswer = null;
/** Number of requests for an answer or a view; outdated responses are ignored. */
let requests = 0;
/** Number of requests for the list of test questions; outdated responses are ignored. */
let questionListRequests = 0;
/** Index of each run's memory, by index of the run. */
const memoryOf = new Map();

/** The sum over the tokens of an answer. */
const total = (values) => (values ?? []).reduce((sum, value) => sum + value, 0);
const run = () => byId("answer-run").value;

/** Puts the answer beside the form; in one column, below the form or below the chosen test question. */
function placeAnswer() {
  const place = !narrow.matches ? byId("answer-beside") : chosenItem?.isConnected ? chosenItem : byId("answer-below");
  place.append(byId("answer"));
}

async function listQuestions() {
  questionListRequests += 1;
  const requestNumber = questionListRequests;
  const words = new URLSearchParams({ words: byId("question-words").value });
  const response = await ask(`/api/runs/${run()}/questions?${words}`);
  if (!response || requestNumber !== questionListRequests) return;
  byId("examples").hidden = response.found === 0 && byId("question-words").value === "";
  chosenItem = null;
  placeAnswer();
  byId("listed").textContent = `${response.questions.length} of ${response.found.toLocaleString("en")} test questions`;
  byId("questions").replaceChildren(...response.questions.map((question) => {
    const details = [question.answers.join(", "), question.image, question.part.replace("_", " "), question.source];
    const button = make("button", { type: "button" }, question.text || "Describe the image", " ",
      make("small", { className: "soft" }, details.filter(Boolean).join(" · ")));
    const item = make("li", {}, button);
    button.addEventListener("click", () => {
      chosenItem = item;
      placeAnswer();
      if (narrow.matches) item.scrollIntoView({ block: "start" });
      askTestQuestion(question);
    });
    return item;
  }));
}

/** Asks a test question about its image. */
async function askTestQuestion(question) {
  requests += 1;
  const requestNumber = requests;
  const image = await load(`/api/runs/${run()}/questions/${question.id}/image`);
  // The user may have chosen another question meanwhile.
  if (!image || requestNumber !== requests) return;
  await questionImage.setFile(image);
  if (requestNumber !== requests) return;
  byId("question").value = question.text;
  await start(question);
}

/** Shows a test question that the model answers correctly, with its evidence. */
async function showExample() {
  requests += 1;
  const requestNumber = requests;
  byId("answer-about").textContent = "Choosing a test question that this model answers correctly …";
  const example = await waiting(byId("answer"), () => ask(`/api/runs/${run()}/example`));
  if (requestNumber !== requests) return;
  byId("answer-about").textContent = "";
  if (example?.question) await askTestQuestion(example.question);
  else if (example) {
    const tried = example.tried === 0 ? "The run has no suitable test question." : `The model answers none of ${example.tried} test questions correctly from a retrieved entry.`;
    byId("answer-about").textContent = `${tried} Ask a question about an image.`;
  }
}

/** Asks a new question, with all entries switched on: a test question, or the user's own question (null). */
async function start(question) {
  testQuestion = question;
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
  const request = {
    question: byId("question").value,
    image: questionImage.asBase64(),
    without: [...switchedOff.keys()],
    shapley: byId("shapley").checked,
    test_question: testQuestion?.id ?? null,
  };
  const response = await waiting(byId("answer"), () => ask(`/api/runs/${run()}/answer`, request));
  if (!response || requestNumber !== requests) return;
  if (request.without.length === 0) fullAnswer = response;
  byId("asked").textContent = request.question || "Describe the image";
  byId("asked-image").src = questionImage.address();
  byId("asked-image").hidden = false;
  keepingFocus(() => draw(response));
}

function draw(response) {
  const totals = response.evidence.map((entry) => total(entry.attribution));
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
  const changed = switchedOff.size > 0 && fullAnswer ? ` With all entries: ${fullAnswer.answer || "no answer"} (${formatNumber(Math.exp(fullAnswer.log_probability))}).` : "";
  const mark = response.correct === null ? null : verdict(response.correct, response.correct ? "right" : "wrong");
  const probability = `probability ${formatNumber(Math.exp(response.log_probability))}.${changed}`;
  byId("answer-about").replaceChildren(...["Answer: ", text, " ", mark, mark && " ", probability].filter(Boolean));
  byId("gold").textContent = testQuestion ? `Correct answer: ${testQuestion.answers.join(", ")}${whereabouts(response)}` : "";
  byId("tokens").replaceChildren(...tokens);
  byId("token").textContent = tokens.length > 0 ? "Each token has the colour of the entry with the highest attribution." : "";
  byId("evidence").replaceChildren(...response.evidence.map((entry, index) => entryCard(entry, totals[index], colour(index), true)));
  byId("off").replaceChildren(...[...switchedOff.values()].map((entry) => entryCard(entry, null, null, false)));
  byId("off-title").hidden = switchedOff.size === 0;
  byId("evidence-title").hidden = byId("attribution-table").hidden = response.evidence.length === 0;
  const header = ["entry", ...(response.tokens ?? []), "total"].map((title) => make("th", { scope: "col" }, title));
  const rows = ranked.map((index) => make("tr", {}, make("th", { scope: "row" }, String(response.evidence[index].id)),
    ...(response.evidence[index].attribution ?? []).map((value) => make("td", {}, formatNumber(value))),
    make("td", {}, formatNumber(totals[index]))));
  byId("attributions").replaceChildren(make("tr", {}, ...header), ...rows);
}

/** Says whether the entry with the correct answer is retrieved. */
function whereabouts({ evidence }) {
  const { entry, source } = testQuestion;
  if (entry === null) return ".";
  const rank = evidence.findIndex(({ id }) => id === entry) + 1;
  const state = switchedOff.has(entry) ? "is switched off" : rank > 0 ? `is retrieved at rank ${rank}` : "is not retrieved";
  return `. Its entry ${entry} (${source}) ${state}.`;
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
    entry.shapley && `Shapley value ${formatNumber(total(entry.shapley))} nats`,
    `score ${entry.score.toFixed(4)}`,
    `gate ${entry.gate.toFixed(3)}`,
    entry.prior !== undefined && `prior ${entry.prior.toFixed(2)}`,
    `entry ${entry.id}`,
    entry.source,
  ].filter(Boolean).join(" · ");
  const swatch = colour && attribution >= MIN_ATTRIBUTION ? make("span", { className: `swatch ${colour}` }) : null;
  const holdsAnswer = testQuestion?.entry === entry.id;
  return make("li", { className: holdsAnswer ? "card entry truth" : "card entry" },
    make("div", {}, entryImage(memoryOf.get(Number(run())), entry)),
    make("div", {}, make("p", {}, swatch, " ", entry.text || entry.image || "no text"),
      entryRecording(memoryOf.get(Number(run())), entry),
      holdsAnswer ? make("p", {}, make("span", { className: "verdict right" }, "holds the correct answer")) : null,
      make("p", { className: "soft" }, details)),
    make("label", { className: "check" }, checkbox, " use"));
}

async function chooseRun() {
  requests += 1;
  fullAnswer = null;
  switchedOff = new Map();
  chosenItem = null;
  placeAnswer();
  for (const id of ["answer-about", "asked", "token", "gold"]) byId(id).textContent = "";
  for (const id of ["tokens", "evidence", "off", "attributions", "questions"]) byId(id).replaceChildren();
  for (const id of ["off-title", "evidence-title", "attribution-table", "asked-image"]) byId(id).hidden = true;
  await Promise.all([listQuestions(), showExample()]);
}

export async function startAnswers(runs, memories) {
  memories.forEach((memory) => memoryOf.set(memory.run, memory.index));
  const askOwn = () => {
    chosenItem = null;
    placeAnswer();
    start(null);
  };
  questionImage = imageField(byId("question-image"), () => questionImage.asBase64() && askOwn());
  fill(byId("answer-run"), runs.map(({ index, name }) => [index, name]));
  byId("answer-run").addEventListener("change", chooseRun);
  byId("question-words").addEventListener("input", listQuestions);
  byId("question-form").addEventListener("submit", (event) => {
    event.preventDefault();
    askOwn();
  });
  byId("all-on").addEventListener("click", () => {
    switchedOff = new Map();
    answer();
  });
  narrow.addEventListener("change", placeAnswer);
  // Opens the run when the tab is first visible.
  const observer = new IntersectionObserver(([form]) => {
    if (!form.isIntersecting) return;
    observer.disconnect();
    chooseRun();
  });
  observer.observe(byId("question-form"));
}
