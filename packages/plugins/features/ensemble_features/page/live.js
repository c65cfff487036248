// The live view. Each answer of /stats is of one ingress replica; the figures of several are added up.

import { bar, byId, call, ms, pause, percent, rows } from "./common.js";
import { columns, history } from "./charts.js";

const KEPT_MS = 10_000;
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const seen = new Map();
let loop = 0, shown = false;

const add = (objects) => objects.reduce((sum, object) => {
  for (const [name, value] of Object.entries(object ?? {})) sum[name] = (sum[name] ?? 0) + value;
  return sum;
}, {});
const most = (values) => values.reduce((best, value) => (value === null ? best : Math.max(best ?? 0, value)), null);
const names = (objects) => [...new Set(objects.flatMap((each) => Object.keys(each ?? {})))].sort();
const total = (counts) => Object.values(counts).reduce((one, other) => one + other, 0);
/** A part of a whole with its share, or a dash for nothing. */
const part = (count, of) => (of ? `${percent(count / of)} of ${of}` : "–");

/** Counts as bars of their share. */
const spread = (counts, text = String) => Object.entries(counts).map(([name, count]) =>
  [name, bar(count / Math.max(total(counts), 1e-9), text(count))]);

/** Wilson's 95 % interval of a share, as text; the counts of several replicas, which may lack it, are added before. */
function proportion(each) {
  const { count, total: of } = add(each.filter(Boolean).map(({ count, total }) => ({ count, total })));
  if (!of) return "–";
  const z = 1.96, share = count / of, scale = 1 + z ** 2 / of;
  const middle = (share + z ** 2 / (2 * of)) / scale;
  const reach = (z * Math.sqrt((share * (1 - share)) / of + z ** 2 / (4 * of ** 2))) / scale;
  const [low, high] = [middle - reach, middle + reach].map((end) => (100 * Math.min(Math.max(end, 0), 1)).toFixed(1));
  return `${percent(share)} (${low} to ${high}) of ${of}`;
}

function figures(all, sum) {
  byId("rate").textContent = sum((each) => each.requests.per_second).toFixed(1);
  byId("p50").textContent = ms(most(all.map((each) => each.requests.p50_ms)));
  byId("p99").textContent = ms(most(all.map((each) => each.requests.p99_ms)));
  byId("waiting").textContent = sum((each) => each.queue.waiting);
  byId("flight").textContent = sum((each) => each.queue.in_flight);
  byId("wait").textContent = ms(most(all.map((each) => each.queue.longest_wait_ms)));
  byId("shed").textContent = sum((each) => (each.requests.outcomes.overloaded ?? 0) + (each.load_shed ?? 0));
  const cache = add(all.map((each) => each.cache));
  byId("hits").textContent = total(cache) ? part(cache.hit ?? 0, total(cache)) : "no cache";
}

function members(all) {
  return names(all.map((each) => each.members)).map((name) => {
    const { answered, agreed, missing } = add(all.map((each) => each.members[name]));
    const share = agreed / Math.max(answered, 1), { threads, streams } = all.at(-1).members[name] ?? {};
    return [name, answered ? bar(share, percent(share)) : "no answer", missing ? bar(missing / (answered + missing),
      `${missing} without it`, 0, "bad") : "", threads ? `${threads} threads, ${streams} at a time` : ""];
  });
}

function cascade(all) {
  const exits = add(all.map((each) => each.exits)), reports = all.map((each) => each.rollout?.cascade ?? {});
  return names([exits, ...reports]).map((name) => {
    const audits = reports.map((each) => each[name]).filter(Boolean);
    const below = audits.length ? `${Math.max(...audits.map((each) => each.exit_at)).toFixed(3)}` : "–";
    return [name, bar((exits[name] ?? 0) / Math.max(total(exits), 1), String(exits[name] ?? 0)), below,
      proportion(audits.map((each) => each.differs))];
  });
}

function contributions(all) {
  const reports = all.map((each) => each.rollout?.contributions).filter(Boolean);
  return names(reports).flatMap((name) => names(reports.map((each) => each[name] ?? {})).map((version) => {
    const found = reports.map((each) => each[name]?.[version]).filter(Boolean);
    const sum = add(found.map(({ labelled, mended, spoiled }) => ({ labelled, mended, spoiled })));
    return [`${name} ${version}`, proportion(found.map((each) => each.changed)),
      sum.labelled ? `mended ${sum.mended}, spoiled ${sum.spoiled} of ${sum.labelled}` : "no labels"];
  }));
}

function canaries(all) {
  const reports = all.map((each) => each.rollout?.canaries).filter(Boolean);
  return names(reports).flatMap((name) => {
    const each = reports.map((report) => report[name]).filter(Boolean);
    const verdict = each.map((one) => one.rolled_back).find(Boolean);
    return ["canary", "stable"].map((role) => {
      const sum = add(each.map(({ [role]: { images, failed } }) => ({ images, failed })));
      const share = role === "canary" ? percent(most(each.map((one) => one.share))) : "";
      return [`${name}, ${role}`, share, role === "stable" ? "" : verdict ? `rolled back: ${verdict}` : "goes on",
        part(sum.failed, sum.images), proportion(each.map((one) => one[role].agreed)),
        ms(most(each.map((one) => one[role].median_ms)))];
    });
  });
}

function shadows(all) {
  const reports = all.map((each) => each.rollout?.shadows).filter(Boolean);
  return names(reports).flatMap((name) => {
    const each = reports.map((report) => report[name]).filter(Boolean);
    const lost = add(each.map(({ failed, dropped }) => ({ failed, dropped })));
    return names(each.map((one) => one.agreed)).map((other) => {
      const pairs = add(each.map((one) => one.labelled[other]));
      const verdict = total(pairs) ? `it alone right ${pairs.shadow_only}, ${other} alone ${pairs.other_only}` : "no labels";
      return [`${name} and ${other}`, proportion(each.map((one) => one.agreed[other])), verdict,
        `${lost.failed} failed, ${lost.dropped} dropped`];
    });
  });
}

function feedback(all) {
  const reports = all.map((each) => each.rollout?.feedback).filter(Boolean);
  if (!reports.length) return [];
  const kinds = ["members", "exits", "shadows"].flatMap((kind) => names(reports.map((each) => each[kind])).map((name) =>
    [`${kind.slice(0, -1)} ${name}`, proportion(reports.map((each) => each[kind][name]))]));
  return [["ensemble", proportion(reports.map((each) => each.ensemble))], ...kinds];
}

/** Fill a table, or hide its section where the configuration has nothing of it. */
function section(id, lines, columnNames) {
  byId(id).parentElement.hidden = lines.length === 0;
  rows(byId(id), lines, columnNames);
}

function draw(all) {
  const sum = (pick) => all.reduce((result, each) => result + pick(each), 0), latest = all.at(-1);
  figures(all, sum);
  const past = all.map((each) => each.past ?? []), length = Math.max(...past.map((each) => each.length));
  const tens = Array.from({ length }, (_, number) => past.map((each) => each.at(number - length)).filter(Boolean));
  history(byId("history"), tens);
  columns(byId("columns"), tens);
  rows(byId("outcomes"), spread(add(all.map((each) => each.requests.outcomes))));
  rows(byId("nodes"), spread(add(all.map((each) => each.nodes_ms)), (spent) => ms(spent)));
  rows(byId("sizes"), spread(add(all.map((each) => each.batch_sizes))));
  const { at_a_time: most_at_once, waits, waited_ms: waited } = latest.batching ?? {};
  byId("batching").textContent = latest.batching ? `At most ${most_at_once} batches at a time; ${waits} batches waited for ` +
    `more images, ${ms(waited)} together.` : "";
  rows(byId("members"), members(all), ["member", "agrees", "missing", "computes with"]);
  section("contributions", contributions(all), ["member", "answers that it changes", "labelled answers"]);
  section("cascade", cascade(all), ["last member", "images", "exit at", "audited exits that differ"]);
  section("canaries", canaries(all), ["version", "share", "verdict", "failed", "agrees", "median"]);
  section("shadows", shadows(all), ["shadow and other", "agree", "with known labels", "no answer"]);
  section("feedback", feedback(all), ["who", "right, 95 % interval"]);
  const listed = (counts, word) => Object.entries(counts ?? {}).map(([each, count]) => `${count} ${word(each)}`);
  rows(byId("replicas"), Object.entries(latest.replicas).map(([name, states]) => [name,
    [...listed(states, (state) => state.toLowerCase()), ...listed(latest.machines?.[name], (at) => `at ${at}`)].join(", ")]));
}

async function poll() {
  for (const mine = ++loop; shown && mine === loop; ) {
    if (!document.hidden) {
      const problem = byId("state");
      try {
        const answer = await call("/stats").catch(() => { throw new Error("The server can't be reached; asking again."); });
        if (!answer.ok) throw new Error(`The server answers with status ${answer.status}.`);
        const stats = await answer.json(), now = Date.now();
        seen.delete(stats.replica);
        seen.set(stats.replica, [now, stats]);
        for (const [replica, [when]] of seen) if (now - when > KEPT_MS) seen.delete(replica);
        draw([...seen.values()].map(([, each]) => each));
        problem.hidden = true;
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
      }
    }
    // Who wants less motion sees a new picture every five seconds.
    await pause(calm.matches ? 5 : 1);
  }
}

/** Draw the figures from now on, or no more. */
export function follow(on) {
  if (on === shown) return;
  shown = on;
  if (shown) poll();
}
