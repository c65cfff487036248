// What both views share: elements, numbers in words, and requests, with the key that the server may want.

export const byId = (id) => document.getElementById(id);
export const percent = (share) => `${(100 * share).toFixed(1)} %`;
export const ms = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(value < 10 ? 2 : 0)} ms`);
export const pause = (seconds) => new Promise((go) => setTimeout(go, 1000 * seconds));

const SVG = ["rect", "line", "text", "polyline", "title"];

/** An element with attributes and children; text children are text, never markup. */
export function make(name, attributes = {}, ...children) {
  const element = SVG.includes(name) ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** A bar of a share from 0 to 1 that begins at another, and its text. */
export function bar(share, text, begin = 0, kind = "") {
  const fill = make("b");
  fill.style.left = `${100 * begin}%`;
  fill.style.width = `${100 * Math.min(share, 1 - begin)}%`;
  return make("div", { class: `bar ${kind}` }, make("i", { "aria-hidden": "true" }, fill), make("span", {}, text));
}

/** Fill a table with lines, each a heading and cells, below the headings of the columns, if there are any. */
export function rows(table, lines, columns = []) {
  const body = lines.map(([name, ...cells]) => make("tr", {}, make("th", { scope: "row" }, name),
    ...cells.map((cell, number) => make("td", { "data-name": columns[number + 1] ?? "" }, cell))));
  const head = make("thead", {}, make("tr", {}, ...columns.map((column) => make("th", { scope: "col" }, column))));
  const empty = make("tr", {}, make("td", {}, "nothing yet"));
  table.replaceChildren(...(columns.length && lines.length ? [head] : []),
    make("tbody", {}, ...(lines.length ? body : [empty])));
}

/* The key, where the server wants one: in memory, and one dialog however many calls are refused. */
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

/** Fetch a path; where a key is wanted and none is known, the dialog opens unless `quietly` is set. */
export async function call(path, options = {}, quietly = false) {
  for (;;) {
    const used = key;
    const headers = { ...options.headers, ...(used ? { Authorization: `Bearer ${used}` } : {}) };
    const answer = await fetch(path, { ...options, headers });
    // Another call may have got a key meanwhile.
    if (answer.status !== 401 || quietly || (key === used && !(await askForKey()))) return answer;
  }
}
