// The page and its tabs.

import { ask, byId } from "./page.js";
import { startAnswers } from "./answers.js";
import { startCurves } from "./curves.js";
import { startMemory } from "./memory.js";
import { startSpeech } from "./speech.js";
import { startTerms } from "./terms.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const panelOf = (tab) => tab.getAttribute("aria-controls");

function show(tab) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", chosen);
    other.tabIndex = chosen ? 0 : -1;
    byId(panelOf(other)).hidden = !chosen;
  }
  // Removes the token from the address; the cookie holds it now.
  history.replaceState(null, "", `${location.pathname}#${panelOf(tab)}`);
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const visible = tabs.filter((other) => !other.hidden);
    const next = visible[(visible.indexOf(tab) + step + visible.length) % visible.length];
    show(next);
    next.focus();
  });
}

/** Starts a tab, or hides it if it has nothing to show. Returns an array with the tab, or an empty one. */
function startOrHide(name, startTab, items) {
  const tab = byId(`tab-${name}`);
  tab.hidden = items.length === 0;
  if (items.length > 0) startTab(items);
  return tab.hidden ? [] : [tab];
}

startTerms();
const [runs, memories] = await Promise.all([ask("/api/runs"), ask("/api/memories")]);
if (runs && memories) {
  // The index of a run identifies it in requests.
  const indexedRuns = runs.map((run, index) => ({ ...run, index }));
  const finishedRuns = (tab) => indexedRuns.filter((run) => run.tabs.includes(tab) && run.finished);
  const visibleTabs = [
    startOrHide("answers", (answerRuns) => startAnswers(answerRuns, memories), finishedRuns("answers").filter((run) => run.has_memory)),
    startOrHide("speech", startSpeech, finishedRuns("speech").filter((run) => run.is_world)),
    startOrHide("memory", startMemory, memories),
    startOrHide("curves", startCurves, indexedRuns),
  ].flat();
  show(visibleTabs.find((tab) => location.hash === `#${panelOf(tab)}`) ?? visibleTabs[0]);
}
