// The page of an ensemble: its two views, by tabs.

import { drop } from "./classify.js";
import { follow } from "./live.js";
import { byId } from "./common.js";

const tabs = [...document.querySelectorAll("[role=tab]")];

function show(name) {
  for (const tab of tabs) {
    const shown = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", shown);
    tab.tabIndex = shown ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !shown;
  }
  follow(name === "live");
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const to = step ? tabs.at((tabs.indexOf(tab) + step) % tabs.length) : tabs.at(event.key === "Home" ? 0 : -1);
    to.focus();
    show(to.getAttribute("aria-controls"));
  });
}
drop(() => show("classify"));
