// The page and its tabs.

import { ask, at } from "./page.js";
import { startAnswers } from "./answers.js";
import { startCurves } from "./curves.js";
import { startMemory } from "./memory.js";
import { startSpeech } from "./speech.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const shownBy = (tab) => tab.getAttribute("aria-controls");

function show(tab) {
  for (const one of tabs) {
    const chosen = one === tab;
    one.setAttribute("aria-selected", chosen);
    one.tabIndex = chosen ? 0 : -1;
    at(shownBy(one)).hidden = !chosen;
  }
  // Removes the token from the address; the cookie holds it now.
  history.replaceState(null, "", `${location.pathname}#${shownBy(tab)}`);
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const there = tabs.filter((one) => !one.hidden);
    const next = there[(there.indexOf(tab) + step + there.length) % there.length];
    show(next);
    next.focus();
  });
}

/** Starts a tab, or hides it if it has nothing to show. */
function start(name, begin, things) {
  const tab = at(`tab-${name}`);
  tab.hidden = things.length === 0;
  if (things.length > 0) begin(things);
  return tab.hidden ? [] : [tab];
}

const [runs, memories] = await Promise.all([ask("/api/runs"), ask("/api/memories")]);
if (runs && memories) {
  // The index of a run identifies it in requests.
  const all = runs.map((run, place) => ({ ...run, place }));
  const finished = (study) => all.filter((run) => run.study === study && run.finished);
  const there = [
    start("curves", startCurves, all),
    start("memory", startMemory, memories),
    start("answers", (found) => startAnswers(found, memories), finished("reveal").filter((run) => run.has_memory)),
    start("speech", startSpeech, finished("avformer").filter((run) => run.is_world)),
  ].flat();
  show(there.find((tab) => location.hash === `#${shownBy(tab)}`) ?? there[0]);
}
