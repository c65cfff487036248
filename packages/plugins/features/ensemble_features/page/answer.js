// An answer as a person reads it: the probabilities by class and member, where the time went, and what else was reported.

import { bar, make, ms, percent } from "./common.js";

const { jaeger } = document.documentElement.dataset;
const COLOURS = 6;
const WORDS = {
  unsupported_media_type: "This file is no image.",
  invalid_image: "This is no image that can be read, or only part of one.",
  image_too_large: "This image is too large.",
  overloaded: "The server has too much to do just now. Try again in a moment.",
  not_ready: "The server has only just started and is not ready yet. Try again in a moment.",
  deadline_exceeded: "The server did not answer in time. Try again.",
  inference_failed: "A model failed on this image.",
  rate_limited: "This key has sent too many requests. Try again in a moment.",
  unauthenticated: "Without a valid API key the server does not answer.",
};

function shares(answer) {
  const members = Object.entries(answer.members ?? {});
  const share = (member, entry, row) =>
    member.probabilities?.[row] ?? (member.index === entry.index ? member.probability : null);
  // As in the live view, a member's colour is by its name's place among all.
  const order = [...members.map(([name]) => name), ...Object.keys(answer.missing ?? {})].sort();
  const names = ["ensemble", ...members.map(([name]) => name)];
  const head = make("tr", {}, make("th", { scope: "col" }, "class"));
  head.append(...names.map((name) => make("th", { scope: "col" }, name)));
  const lines = answer.top.map((entry, row) => {
    const line = make("tr", {}, make("th", { scope: "row" }, entry.label));
    line.append(make("td", { class: "own", "data-name": "ensemble" },
      bar(entry.probability, percent(entry.probability), 0, "m0")));
    members.forEach(([name, member]) => {
      const value = share(member, entry, row);
      line.append(make("td", { "data-name": name },
        value === null ? "–" : bar(value, percent(value), 0, `m${1 + (order.indexOf(name) % (COLOURS - 1))}`)));
    });
    return line;
  });
  return make("table", { class: "shares stacked" }, make("thead", {}, head), make("tbody", {}, ...lines));
}

function waterfall(timings, took) {
  const end = Math.max(...timings.map((step) => step.start_ms + step.duration_ms), 0.001);
  const lines = timings.map((step) => make("tr", {}, make("th", { scope: "row" }, step.stage),
    make("td", {}, bar(step.duration_ms / end, ms(step.duration_ms), step.start_ms / end))));
  const rest = `In the graph ${ms(end)}; with the way there and back ${ms(took)}.`;
  return make("details", { open: "" }, make("summary", {}, "Where the time went"),
    make("table", { class: "waterfall" }, make("tbody", {}, ...lines)), make("p", { class: "quiet" }, rest));
}

function reported(answer, about) {
  const list = make("dl", { class: "told" });
  const say = (term, value) => value && list.append(make("dt", {}, term), make("dd", {}, value));
  const pairs = (object, between) => Object.entries(object ?? {}).map((pair) => pair.join(between)).join(", ");
  const disagree = Object.entries(answer.members ?? {}).filter(([, member]) => member.index !== answer.index);
  const missing = Object.keys(answer.missing ?? {});
  // A cascade names those that it asked; otherwise all were, those without an answer too.
  const asked = answer.asked ?? [...new Set([...Object.keys(answer.model_versions), ...missing])];
  say("Disagree", disagree.map(([name, member]) => `${name}: ${member.label}`).join(", "));
  say("Missing", pairs(answer.missing, ": "));
  say("Asked", asked.join(", "));
  say("Load", answer.load_shed && "fewer members were asked, because of the load");
  say("File", answer.warning);
  say("Strategy", about?.strategy);
  say("Versions", pairs(answer.model_versions, " "));
  say("Cache", answer.cache && (answer.cache.hit ? `remembered for ${answer.cache.age_s.toFixed(1)} s` : "not remembered"));
  const link = jaeger && make("a", { href: `${jaeger.replace(/\/$/, "")}/trace/${answer.trace_id}`, target: "_blank",
    rel: "noopener" }, answer.trace_id);
  say("Trace", link || answer.trace_id);
  return list;
}

/** The parts of an answer, which took so many milliseconds; `about` is the server's description, or null. */
export function answered(body, took, about) {
  const label = make("p", { class: "label" }, body.label, " ", make("small", {}, percent(body.probability)));
  return [label, shares(body), ...(body.timings ? [waterfall(body.timings, took)] : []), reported(body, about)];
}

/** Draw an error in words; the words. */
export function problem(place, body) {
  const { code = "", message = String(body.error) } = body.error ?? {};
  place.replaceChildren(make("div", { class: "error" }, make("strong", {}, WORDS[code] ?? "This did not work."),
    make("br"), `The server says: ${message}`));
  return WORDS[code] ?? message;
}
