// Explanations of technical terms: tooltips, and descriptions of metrics.

import { byId } from "./page.js";

export const TERMS = {
  shapley: "The entry's share of what the retrieved entries add to the log-probability of the answer, in nats: the gain when it joins the entries before it, averaged over all orders.",
  attribution: "How much less likely the answer is without this entry, in nats. An attribution of 2.3 nats means 10 times less likely.",
  score: "The similarity of the query and the entry's key (their cosine, from -1 to 1), times the gate. The entries with the highest scores are retrieved.",
  gate: "The weight from 0 to 1 that the model gives to the entry's source for this query. It multiplies the score.",
  prior: "The weight of the entry when the model reads all retrieved entries; 1 on average.",
  key: "A vector that represents an entry. Entries are found by the similarity of their keys to the query's vector.",
  frozen: "A speech recogniser (automatic speech recognition) that was trained before and is not changed.",
  adapters: "Small layers that AVFormer adds to the frozen ASR model and trains, together with a projection of images into it.",
  snr: "Signal-to-noise ratio in decibels: 0 dB means equal power of speech and noise; at -12 dB the noise has 16 times the power of the speech.",
};

/** Descriptions of metrics, by the first pattern that matches the metric's name. */
const METRICS = [
  [/exact_match/, "The fraction of questions whose answer equals a correct answer. Higher is better."],
  [/recall_at_(\d+)/, "The fraction of questions whose own entry is among the retrieved entries of the best ranks. Higher is better."],
  [/memory_staleness/, "Steps since the keys of the memory were computed."],
  [/wer\b/, "Word error rate: wrong, missing and extra words per reference word. Lower is better."],
  [/pearson|spearman/, "Correlation of predicted and true similarity. Higher is better."],
  [/loss/, "The value that training minimises. Lower is better."],
  [/learning_rate/, "The size of the optimiser's steps."],
  [/accuracy/, "The fraction of correct predictions. Higher is better."],
  [/count/, "The number of examples that the metrics of this evaluation are about."],
];

/** A description of a metric; an empty string if it is unknown. */
export const describeMetric = (name) => METRICS.find(([pattern]) => pattern.test(name))?.[1] ?? "";

/** Shows the tooltip of a term below it, within the width of the window. */
function show(term) {
  const tooltip = byId("tooltip");
  tooltip.textContent = TERMS[term.dataset.term];
  tooltip.hidden = false;
  const box = term.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - tooltip.offsetWidth - 8);
  tooltip.style.left = `${Math.max(left, 8) + scrollX}px`;
  tooltip.style.top = `${box.bottom + 4 + scrollY}px`;
}

const hide = () => { byId("tooltip").hidden = true; };

/** Gives each element with `data-term` its tooltip: at the pointer, on keyboard focus and on a tap. */
export function startTerms() {
  for (const term of document.querySelectorAll("[data-term]")) {
    term.classList.add("term");
    term.setAttribute("aria-describedby", "tooltip");
    for (const event of ["pointerenter", "focus", "click"]) term.addEventListener(event, () => show(term));
    for (const event of ["pointerleave", "blur"]) term.addEventListener(event, hide);
  }
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
}
