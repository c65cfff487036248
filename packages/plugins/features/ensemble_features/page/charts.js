// The pictures of the last ten minutes: columns of ten seconds each, with axes.

import { make, ms } from "./common.js";

const PERIODS = 60, PERIOD_S = 10, MINUTES = 10;
const LEFT = 48, BELOW = 20, ABOVE = 12;

const sum = (period, pick) => period.reduce((total, each) => total + pick(each), 0);

/** How much of a period has passed; the last one goes on. */
const seconds = (period) => Math.max(...period.map((each) => each.seconds ?? PERIOD_S));

/** A number for an axis that is not below the largest value: 1, 2 or 5 and zeros. */
function round(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * size).find((step) => step >= value);
}

/** Draw columns of parts, each `[value, class]`, the first at the foot, with what a column says when it is pointed at. */
function draw(svg, stacks, unit, heights, texts) {
  const width = Math.max(svg.clientWidth, 200), height = heights, ground = height - BELOW;
  const top = round(Math.max(...stacks.map((parts) => parts.reduce((total, [value]) => total + value, 0)), 0.1));
  const step = (width - LEFT) / PERIODS, scale = (ground - ABOVE) / top;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const axes = [0, top / 2, top].flatMap((value) => [
    make("line", { x1: LEFT, x2: width, y1: ground - value * scale, y2: ground - value * scale }),
    make("text", { x: LEFT - 6, y: ground - value * scale + 4, "text-anchor": "end" }, `${+value.toPrecision(3)}${unit}`)]);
  const times = [[LEFT, `${MINUTES} min ago`, "start"], [LEFT + (width - LEFT) / 2, `${MINUTES / 2} min`, "middle"],
    [width, "now", "end"]].map(([x, text, anchor]) => make("text", { x, y: height - 4, "text-anchor": anchor }, text));
  const columns = stacks.flatMap((parts, number) => {
    let foot = ground;
    return parts.filter(([value]) => value > 0).map(([value, kind]) => {
      const tall = Math.max(value * scale, 1);
      foot -= tall;
      return make("rect", { x: LEFT + (PERIODS - stacks.length + number) * step, y: foot, width: Math.max(step - 1, 1),
        height: tall, class: kind }, make("title", {}, texts[number]));
    });
  });
  svg.replaceChildren(...axes, ...times, ...columns);
}

/** Requests per second, those that failed in red; `tens` has for each period the periods of all replicas. */
export function history(svg, tens) {
  const stacks = tens.map((period) => [[sum(period, (each) => each.answered ?? 0) / seconds(period), "fine"],
    [sum(period, (each) => each.failed ?? 0) / seconds(period), "bad"]]);
  const texts = stacks.map(([[fine], [bad]], number) => {
    const p99 = Math.max(...tens[number].map((each) => each.p99_ms ?? 0));
    return `${fine.toFixed(1)} answered and ${bad.toFixed(1)} failed per second${p99 ? `; 99 % within ${ms(p99)}` : ""}`;
  });
  draw(svg, stacks, "/s", 140, texts);
  svg.setAttribute("aria-label", `Requests per second in periods of ${PERIOD_S} s, the last: ${texts.at(-1) ?? "none"}`);
}

/** For each member the images per second that it answered, and in red those that were answered without it. */
export function columns(place, tens) {
  const all = tens.flat();
  const names = [...new Set(all.flatMap((each) => [...Object.keys(each.members ?? {}), ...Object.keys(each.missing ?? {})]))];
  if ([...place.children].map((each) => each.dataset.name).join() !== names.sort().join()) {
    place.replaceChildren(...names.map((name) => {
      const figure = make("figure", { "data-name": name }, make("figcaption", {}, name));
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("role", "img");
      figure.append(svg);
      return figure;
    }));
  }
  names.forEach((name, number) => {
    const stacks = tens.map((period) => [[sum(period, (each) => each.members?.[name] ?? 0) / seconds(period), `m${1 + (number % 5)}`],
      [sum(period, (each) => each.missing?.[name] ?? 0) / seconds(period), "bad"]]);
    const texts = stacks.map(([[here], [gone]]) => `${here.toFixed(1)} images per second with ${name}, ${gone.toFixed(1)} without it`);
    const svg = place.children[number].querySelector("svg");
    draw(svg, stacks, "/s", 84, texts);
    svg.setAttribute("aria-label", `Images per second in periods of ${PERIOD_S} s, the last: ${texts.at(-1)}`);
  });
}
