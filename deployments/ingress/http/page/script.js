// The page of an ensemble: asks /classify for each photograph and draws the answer; draws /stats. Nothing is kept.
"use strict";

const byId = (id) => document.getElementById(id);
const { jaeger, strategy } = document.documentElement.dataset;
const AT_ONCE = 3, MOST_CARDS = 24, TRIES = 4;
const WORDS = {
  unsupported_media_type: "This file is no image.",
  invalid_image: "This is no image that can be read, or only part of one.",
  image_too_large: "This image is too large.",
  overloaded: "The server has too much to do just now. Try again in a moment.",
  not_ready: "The server has only just started and is not ready yet. Try again in a moment.",
  deadline_exceeded: "The server did not answer in time. Try again.",
  inference_failed: "A model failed on this image.",
  rate_limited: "This key has asked too often. Try again in a moment.",
  unauthenticated: "Without a valid API key the server does not answer.",
};

/** An element with attributes and children; text children are text, never markup. */
function make(name, attributes = {}, ...children) {
  const svg = ["rect", "line"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const ms = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(value < 10 ? 2 : 0)} ms`);
const pause = (seconds) => new Promise((go) => setTimeout(go, 1000 * seconds));

/** A bar of a share from 0 to 1 that begins at another, and what it says. */
function bar(share, said, begin = 0, kind = "") {
  const fill = make("b");
  fill.style.left = `${100 * begin}%`;
  fill.style.width = `${100 * Math.min(share, 1 - begin)}%`;
  return make("div", { class: `bar ${kind}` }, make("i", { "aria-hidden": "true" }, fill), make("span", {}, said));
}

/* The key, where the server asks for one: in memory, and asked for once however many calls are refused. */
let key = "", asking = null;

function askForKey() {
  asking ??= new Promise((done) => {
    const dialog = byId("keys");
    dialog.addEventListener("close", () => {
      key = dialog.returnValue === "use" ? byId("key").value.trim() : "";
      byId("key").value = "";
      asking = null;
      done(key !== "");
    }, { once: true });
    dialog.returnValue = "";
    dialog.showModal();
  });
  return asking;
}

async function call(path, options = {}) {
  for (;;) {
    const used = key;
    const headers = { ...options.headers, ...(used ? { Authorization: `Bearer ${used}` } : {}) };
    const answer = await fetch(path, { ...options, headers, cache: "no-store" });
    // Another call may have got a key meanwhile.
    if (answer.status !== 401 || (key === used && !(await askForKey()))) return answer;
  }
}

/* Photographs */

async function classify(file) {
  const query = new URLSearchParams({ top_k: byId("top").value || "1", members: "true", timings: "true" });
  for (let attempt = 1; ; attempt += 1) {
    const headers = file.type ? { "Content-Type": file.type } : {};
    const began = performance.now();
    const answer = await call(`/classify?${query}`, { method: "POST", body: file, headers });
    const took = performance.now() - began;
    const body = await answer.json().catch(() => ({ error: { code: "", message: `status ${answer.status}` } }));
    if (answer.status !== 503 || attempt === TRIES) return { ok: answer.ok, body, took };
    await pause(Number(answer.headers.get("Retry-After")) || 1);
  }
}

function shares(answer) {
  const members = Object.entries(answer.members ?? {});
  const share = (member, entry, row) =>
    member.probabilities?.[row] ?? (member.index === entry.index ? member.probability : null);
  const names = ["ensemble", ...members.map(([name]) => name)];
  const head = make("tr", {}, make("th", { scope: "col" }, "class"));
  head.append(...names.map((name) => make("th", { scope: "col" }, name)));
  const rows = answer.top.map((entry, row) => {
    const line = make("tr", {}, make("th", { scope: "row" }, entry.label));
    line.append(make("td", { class: "own" }, bar(entry.probability, percent(entry.probability), 0, "m0")));
    members.forEach(([, member], number) => {
      const value = share(member, entry, row);
      line.append(make("td", {}, value === null ? "" : bar(value, percent(value), 0, `m${1 + (number % 4)}`)));
    });
    return line;
  });
  return make("table", { class: "shares" }, make("thead", {}, head), make("tbody", {}, ...rows));
}

function waterfall(timings, took) {
  const end = Math.max(...timings.map((stage) => stage.start_ms + stage.duration_ms), 0.001);
  const rows = timings.map((stage) => make("tr", {}, make("th", { scope: "row" }, stage.stage),
    make("td", {}, bar(stage.duration_ms / end, ms(stage.duration_ms), stage.start_ms / end))));
  const rest = `In the graph ${ms(end)}; with the way there and back ${ms(took)}.`;
  return make("details", { open: "" }, make("summary", {}, "Where the time went"),
    make("table", { class: "waterfall" }, make("tbody", {}, ...rows)), make("p", { class: "quiet" }, rest));
}

function told(answer) {
  const list = make("dl", { class: "told" });
  const say = (term, value) => value && list.append(make("dt", {}, term), make("dd", {}, value));
  const pairs = (object, between) => Object.entries(object ?? {}).map((pair) => pair.join(between)).join(", ");
  const disagree = Object.entries(answer.members ?? {}).filter(([, member]) => member.index !== answer.index);
  say("Disagree", disagree.map(([name, member]) => `${name} says ${member.label}`).join(", "));
  say("Missing", pairs(answer.missing, ": "));
  say("Asked", (answer.asked ?? Object.keys(answer.model_versions)).join(", "));
  say("Strategy", strategy);
  say("Versions", pairs(answer.model_versions, " "));
  say("Cache", answer.cache && (answer.cache.hit ? `remembered for ${answer.cache.age_s} s` : "not remembered"));
  const link = jaeger && make("a", { href: `${jaeger.replace(/\/$/, "")}/trace/${answer.trace_id}`, target: "_blank",
    rel: "noopener" }, answer.trace_id);
  say("Trace", link || answer.trace_id);
  return list;
}

function draw(card, { ok, body, took }) {
  const place = card.querySelector(".answer");
  if (!ok) {
    const { code = "", message = String(body.error) } = body.error ?? {};
    place.replaceChildren(make("div", { class: "error" }, make("strong", {}, WORDS[code] ?? "This did not work."),
      make("br"), `The server says: ${message}`));
    return `${card.dataset.name}: ${WORDS[code] ?? message}`;
  }
  place.replaceChildren(make("p", { class: "label" }, body.label, " ", make("small", {}, percent(body.probability))),
    shares(body), ...(body.timings ? [waterfall(body.timings, took)] : []), told(body));
  return `${card.dataset.name}: ${body.label}, ${percent(body.probability)}`;
}

function addCard(file) {
  const url = URL.createObjectURL(file);
  const image = make("img", { alt: "" });
  image.addEventListener("error", () => image.remove());
  image.src = url;
  const name = file.name || "pasted image";
  const figure = make("figure", {}, image, make("figcaption", {}, `${name}, ${(file.size / 1024).toFixed(1)} KiB`));
  const card = make("li", { class: "card", "data-name": name, "aria-busy": "true" }, figure,
    make("div", { class: "answer" }, make("p", { class: "quiet" }, "Asking …")));
  card.forget = () => { URL.revokeObjectURL(url); card.remove(); };
  byId("results").prepend(card);
  byId("clear").hidden = false;
  [...byId("results").children].slice(MOST_CARDS).forEach((old) => old.forget());
  return card;
}

const waiting = [];
let running = 0;

async function work() {
  if (running >= AT_ONCE) return;
  running += 1;
  for (let next; (next = waiting.shift()); ) {
    const [file, card] = next;
    const outcome = await classify(file).catch(() => ({
      ok: false, body: { error: { code: "", message: "nothing; it can't be reached. Is it still running?" } } }));
    byId("said").textContent = draw(card, outcome);
    card.removeAttribute("aria-busy");
  }
  running -= 1;
}

function take(files) {
  for (const file of [...files].slice(0, MOST_CARDS)) {
    waiting.push([file, addCard(file)]);
    work();
  }
}

for (const id of ["pick", "camera"]) {
  byId(id).addEventListener("change", (event) => { take(event.target.files); event.target.value = ""; });
}
for (const type of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(type, (event) => {
    event.preventDefault();
    byId("drop").classList.toggle("over", type === "dragover");
    if (type === "drop") { show("classify"); take(event.dataTransfer.files); }
  });
}
document.addEventListener("paste", (event) => take(event.clipboardData.files));
byId("clear").addEventListener("click", () => {
  [...byId("results").children].forEach((card) => card.forget());
  byId("clear").hidden = true;
  byId("pick").focus();
});

/* Live: each answer is of one ingress replica; what several of them say is added up. */

const seen = new Map();
let shown = "classify", loop = 0;

function rows(table, entries) {
  const lines = entries.map(([name, ...cells]) => make("tr", {}, make("th", { scope: "row" }, name),
    ...cells.map((cell) => make("td", {}, cell))));
  table.replaceChildren(make("tbody", {}, ...(lines.length ? lines : [make("tr", {}, make("td", {}, "nothing yet"))])));
}

const add = (objects) => objects.reduce((sum, object) => {
  for (const [name, value] of Object.entries(object)) sum[name] = (sum[name] ?? 0) + value;
  return sum;
}, {});
const most = (values) => values.reduce((best, value) => (value === null ? best : Math.max(best ?? 0, value)), null);

function chart(history) {
  const top = Math.max(...history, 1), width = 600 / 60;
  const bars = history.map((count, second) => make("rect", { x: (60 - history.length + second) * width,
    y: 110 - (100 * count) / top, width: width - 1, height: (100 * count) / top }));
  byId("history").setAttribute("aria-label", `answered in each of the last seconds: ${history.slice(-10).join(", ")}`);
  byId("history").replaceChildren(make("line", { x1: 0, x2: 600, y1: 110, y2: 110 }), ...bars);
  byId("peak").textContent = `A second of this minute had ${Math.max(...history, 0)} at most.`;
}

function drawLive(all) {
  const latest = all.at(-1), sum = (pick) => all.reduce((total, each) => total + pick(each), 0);
  byId("rate").textContent = sum((each) => each.requests.per_second).toFixed(1);
  byId("p50").textContent = ms(most(all.map((each) => each.requests.p50_ms)));
  byId("p99").textContent = ms(most(all.map((each) => each.requests.p99_ms)));
  byId("waiting").textContent = sum((each) => each.queue.waiting);
  byId("flight").textContent = sum((each) => each.queue.in_flight);
  byId("wait").textContent = ms(most(all.map((each) => each.queue.longest_wait_ms)));
  const length = Math.max(...all.map((each) => each.requests.history.length));
  chart(Array.from({ length }, (_, second) => sum((each) => each.requests.history.at(second - length) ?? 0)));
  const spread = (counts) => {
    const total = Math.max(Object.values(counts).reduce((a, b) => a + b, 0), 1);
    return Object.entries(counts).map(([name, count]) => [name, bar(count / total, String(count))]);
  };
  rows(byId("outcomes"), spread(add(all.map((each) => each.requests.outcomes))));
  rows(byId("sizes"), spread(add(all.map((each) => each.batch_sizes))));
  const members = [...new Set(all.flatMap((each) => Object.keys(each.members)))].sort().map((name) => {
    const of = (what) => sum((each) => each.members[name]?.[what] ?? 0), share = of("agreed") / Math.max(of("answered"), 1);
    return [name, bar(share, percent(share)), of("missing") ? `${of("missing")} without it` : ""];
  });
  rows(byId("members"), members);
  rows(byId("replicas"), Object.entries(latest.replicas).map(([name, states]) =>
    [name, Object.entries(states).map(([state, count]) => `${count} ${state.toLowerCase()}`).join(", ")]));
}

async function poll() {
  for (const mine = ++loop; shown === "live" && mine === loop; ) {
    if (!document.hidden) {
      const problem = byId("state");
      try {
        const answer = await call("/stats");
        if (!answer.ok) throw new Error(`The server answers with status ${answer.status}.`);
        const stats = await answer.json(), now = Date.now();
        seen.delete(stats.replica);
        seen.set(stats.replica, [now, stats]);
        for (const [replica, [when]] of seen) if (now - when > 10_000) seen.delete(replica);
        drawLive([...seen.values()].map(([, each]) => each));
        problem.hidden = true;
      } catch (error) {
        problem.textContent = error instanceof TypeError ? "The server can't be reached; asking again." : error.message;
        problem.hidden = false;
      }
    }
    await pause(1);
  }
}

function show(name) {
  if (shown === name) return;
  shown = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const on = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", on);
    tab.tabIndex = on ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !on;
  }
  if (name === "live") poll();
}

for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => show(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    const tabs = [...document.querySelectorAll("[role=tab]")];
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const to = step ? tabs.at((tabs.indexOf(tab) + step) % tabs.length) : tabs.at(event.key === "Home" ? 0 : -1);
    to.focus();
    show(to.getAttribute("aria-controls"));
  });
}
