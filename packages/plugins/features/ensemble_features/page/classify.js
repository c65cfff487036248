// The view that classifies: what the ensemble recognizes, the files that were dropped, and their answers. Nothing is kept.

import { answered, problem } from "./answer.js";
import { byId, call, make, pause } from "./common.js";

const AT_ONCE = 3, MOST_CARDS = 24, TRIES = 4;
const waiting = [];
let running = 0;
/** What the server reports of itself at /page/about: classes, members, strategy, and the names of the features' figures. */
let about = null;

async function describe(quietly) {
  const answer = await call("/page/about", {}, quietly).catch(() => null);
  byId("ask-about").hidden = answer?.status !== 401;
  if (!answer?.ok) return;
  about = await answer.json();
  const members = about.members.map(({ name, weight, version, kind }) => make("tr", {},
    make("th", { scope: "row" }, name), make("td", {}, String(weight)), make("td", {}, version || "–"),
    make("td", {}, kind)));
  byId("of-members").replaceChildren(...members);
  byId("strategy").textContent = `Answers: ${about.strategy}.`;
  byId("class-count").textContent = `${about.classes.length} classes`;
  const names = [...about.classes].sort((one, other) => one.localeCompare(other));
  byId("class-names").replaceChildren(...names.map((name) => make("li", {}, name)));
  byId("labels").replaceChildren(...names.map((name) => make("option", { value: name })));
  byId("about").hidden = false;
}

async function classify(file) {
  const query = new URLSearchParams({ top_k: byId("top").value || "1", members: "true", timings: "true" });
  for (let attempt = 1; ; attempt += 1) {
    const headers = file.type ? { "Content-Type": file.type } : {};
    const began = performance.now();
    const answer = await call(`/classify?${query}`, { method: "POST", body: file, headers });
    const took = performance.now() - began;
    const body = await answer.json().catch(() => ({ error: { code: "", message: `status ${answer.status}` } }));
    if (answer.status !== 503 || attempt === TRIES) {
      if (answer.ok && about === null) describe(true);
      return { ok: answer.ok, body, took, request: answer.headers.get("X-Request-Id") };
    }
    await pause(Number(answer.headers.get("Retry-After")) || 1);
  }
}

/** "Is this right?", where the server takes feedback: sends the true label of the answer. */
function question(request, label) {
  const status = make("span", { role: "status" }), form = make("form", { class: "question" });
  const right = make("button", { type: "button" }, "Right"), wrong = make("button", { type: "button" }, "Wrong");
  const input = make("input", { list: "labels", required: "", "aria-label": "What is it?", placeholder: "What is it?" });
  const send = make("button", {}, "Send");
  const tell = async (truth) => {
    const body = JSON.stringify({ request_id: request, label: truth });
    const answer = await call("/feedback", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    const refused = answer.ok ? null : await answer.json().catch(() => ({}));
    status.textContent = refused ? ` Not taken: ${refused.error?.message ?? answer.status}` : ` Noted as ${truth}. Thank you.`;
    if (answer.ok) form.replaceChildren(status);
  };
  right.addEventListener("click", () => tell(label));
  wrong.addEventListener("click", () => { wrong.replaceWith(input, send); input.focus(); });
  form.addEventListener("submit", (event) => { event.preventDefault(); tell(input.value); });
  form.append("Is this right? ", right, wrong, status);
  return form;
}

function draw(card, { ok, body, took, request }) {
  const place = card.querySelector(".answer");
  const said = ok ? `${body.label}, ${(100 * body.probability).toFixed(1)} %` : problem(place, body);
  if (ok) place.replaceChildren(...answered(body, took, about));
  if (ok && request && about?.reports.includes("feedback")) place.children[0].after(question(request, body.label));
  return `${card.dataset.name}: ${said}`;
}

function addCard(file) {
  const url = URL.createObjectURL(file);
  const image = make("img", { alt: "" });
  image.addEventListener("error", () => image.remove());
  image.src = url;
  const name = file.name || "pasted image";
  const figure = make("figure", {}, image, make("figcaption", {}, `${name}, ${(file.size / 1024).toFixed(1)} KiB`));
  const card = make("li", { class: "card", "data-name": name, "aria-busy": "true" }, figure,
    make("div", { class: "answer" }, make("p", { class: "quiet" }, "Waiting for the answer …")));
  card.forget = () => { URL.revokeObjectURL(url); card.remove(); };
  byId("results").prepend(card);
  // On a telephone the description of the server would hide the answer.
  byId("about").open = false;
  card.scrollIntoView({ block: "nearest" });
  byId("clear").hidden = false;
  [...byId("results").children].slice(MOST_CARDS).forEach((old) => old.forget());
  return card;
}

async function work() {
  if (running >= AT_ONCE) return;
  running += 1;
  for (let next; (next = waiting.shift()); ) {
    const [file, card] = next;
    const outcome = await classify(file).catch(() => ({
      ok: false, body: { error: { code: "", message: "nothing; it can't be reached. Is it still running?" } } }));
    byId("said").textContent = draw(card, outcome);
    card.removeAttribute("aria-busy");
    if (!waiting.length) card.scrollIntoView({ block: "start" });
  }
  running -= 1;
}

function take(files) {
  for (const file of [...files].slice(0, MOST_CARDS)) {
    waiting.push([file, addCard(file)]);
    work();
  }
}

/** Take files that are dropped anywhere, pasted or picked; `show` brings this view to the front. */
export function drop(show) {
  for (const id of ["pick", "camera"]) {
    byId(id).addEventListener("change", (event) => { take(event.target.files); event.target.value = ""; });
  }
  for (const type of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(type, (event) => {
      event.preventDefault();
      byId("drop").classList.toggle("over", type === "dragover");
      if (type === "drop") { show(); take(event.dataTransfer.files); }
    });
  }
  document.addEventListener("paste", (event) => take(event.clipboardData.files));
  for (const sample of document.querySelectorAll(".sample")) {
    sample.addEventListener("click", async () => {
      const { src } = sample.firstElementChild;
      take([new File([await (await fetch(src)).blob()], src.split("/").pop(), { type: "image/jpeg" })]);
    });
  }
  byId("clear").addEventListener("click", () => {
    [...byId("results").children].forEach((card) => card.forget());
    byId("clear").hidden = true;
    byId("pick").focus();
  });
  byId("ask-about").querySelector("button").addEventListener("click", () => describe(false));
  describe(true);
}
