// The page and its tabs.

import { ask, at } from "./page.js";
import { startAnswers } from "./answers.js";
import { startCurves } from "./curves.js";
import { startMemory } from "./memory.js";
import { startSpeech } from "./speech.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const panelOf = (tab) => tab.getAttribute("aria-controls");

function show(tab) {
  for (const one of tabs) {
    const chosen = one === tab;
    one.setAttribute("aria-selected", chosen);
    one.tabIndex = chosen ? 0 : -1;
    at(panelOf(one)).hidden = !chosen;
  }
  // Removes the token from the address; the cookie holds it now.
  history.replaceState(null, "", `${location.pathname}#${panelOf(tab)}`);
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const visible = tabs.filter((one) => !one.hidden);
    const next = visible[(visible.indexOf(tab) + step + visible.length) % visible.length];
    show(next);
    next.focus();
  });
}

/** Starts a tab, or hides it if it has nothing to show. */
function start(name, startTab, items) {
  const tab = at(`tab-${name}`);
  tab.hidden = items.length === 0;
  if (items.length > 0) startTab(items);
  return tab.hidden ? [] : [tab];
}

const [runs, memories] = await Promise.all([ask("/api/runs"), ask("/api/memories")]);
if (runs && memories) {
  // The index of a run identifies it in requests.
  const all = runs.map((run, index) => ({ ...run, index }));
  const finished = (tab) => all.filter((run) => run.tabs.includes(tab) && run.finished);
  const started = [
    start("curves", startCurves, all),
    start("memory", startMemory, memories),
    start("answers", (all) => startAnswers(all, memories), finished("answers").filter((run) => run.has_memory)),
    start("speech", startSpeech, finished("speech").filter((run) => run.is_world)),
  ].flat();
  show(started.find((tab) => location.hash === `#${panelOf(tab)}`) ?? started[0]);
}
