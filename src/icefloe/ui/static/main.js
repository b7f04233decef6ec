// The frame of the page: which view is shown, for which snapshot, and the keys.

import { badge, count, empty, failed, fill, firstLine, get, h, loading, short, toast, wantAll } from "/static/dom.js";
import { compareView } from "/static/compare.js";
import { dataView } from "/static/data.js";
import { historyView } from "/static/history.js";
import { operationsView } from "/static/operations.js";
import { sizesView } from "/static/sizes.js";
import { neighbour } from "/static/versions.js";

const VIEWS = [
  ["history", "History", historyView],
  ["data", "Data", dataView],
  ["compare", "Compare", compareView],
  ["sizes", "Sizes", sizesView],
  ["operations", "Operations", operationsView],
];
const KEEP = ["snapshot", "path", "from", "tab", "all"];

const element = (id) => document.getElementById(id);
const app = { state: {}, repository: null, go, link, reload };
let current = { name: null, view: {} };
let drawing = 0;

// -- the address holds the state, so that it can be reloaded, shared and stepped back through

function read() {
  const [name, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const state = Object.fromEntries(new URLSearchParams(query));
  state.view = VIEWS.some(([known]) => known === name) ? name : "history";
  state.snapshot ??= app.repository.main;
  return state;
}

function write(state) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (name !== "view" && value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  return `#/${state.view}?${query}`;
}

function link(changes) {
  const kept = {};
  for (const name of KEEP) if (app.state[name] !== undefined) kept[name] = app.state[name];
  const next = changes.view && changes.view !== app.state.view ? kept : { ...app.state };
  return write({ ...next, view: app.state.view, ...changes });
}

function go(changes, { keep = false } = {}) {
  const next = link(changes);
  if (next === location.hash) return;
  if (keep) history.replaceState(null, "", next);
  else history.pushState(null, "", next);
  show();
}

async function show() {
  app.state = read();
  wantAll(Boolean(app.state.all));
  const [name, title, open] = VIEWS.find(([known]) => known === app.state.view);
  for (const tab of element("tabs").children) tab.setAttribute("aria-current", tab.dataset.view === name ? "page" : "false");
  document.title = `${title} · ${app.repository.name} · icefloe`;
  showVersion();
  if (current.name === name && current.view.update) {
    current.view.update();
    return;
  }
  drawing += 1;
  const mine = drawing;
  const box = h("div", { class: `view ${name}` });
  current = { name, view: {} };
  const wait = setTimeout(() => { if (mine === drawing && !box.isConnected) fill(element("main"), loading()); }, 120);
  try {
    const view = await open(box, app);
    if (mine !== drawing) return;
    fill(element("main"), box);
    current = { name, view: view ?? {} };
    box.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  } catch (error) {
    if (mine === drawing) fill(element("main"), failed(error, reload));
    if (!(error instanceof Error) || error.constructor === TypeError) console.error(error);
  } finally {
    clearTimeout(wait);
  }
}

async function showVersion() {
  const { snapshot } = app.state;
  const button = element("version");
  button.dataset.snapshot = snapshot;
  if (button.dataset.shown === snapshot) return;
  button.dataset.shown = snapshot;
  fill(button, h("code", {}, short(snapshot)));
  try {
    const found = await get("snapshot", { snapshot });
    if (app.state.snapshot !== snapshot) return;
    const name = found.branches.length ? badge("branch", found.branches[0]) : found.tags.length ? badge("tag", found.tags[0]) : null;
    fill(button, name, h("code", {}, short(snapshot)), h("span", { class: "message" }, firstLine(found.message)), h("span", { class: "muted" }, "▾"));
  } catch { /* the view says what is wrong with the snapshot */ }
}

// -- choosing a version

function chooseVersion(done = (snapshot) => go({ snapshot })) {
  const rows = h("div", { class: "choices", role: "listbox" });
  const input = h("input", { type: "search", placeholder: "Branch, tag or snapshot id", "aria-label": "Branch, tag or snapshot id" });
  const dialog = h("dialog", { class: "picker" }, h("form", { method: "dialog" }, input, rows));
  const take = (snapshot) => { dialog.close(); done(snapshot); };

  async function search() {
    const wanted = input.value.trim();
    try {
      const { rows: found, total } = await get("refs", { q: wanted, limit: 100 });
      if (wanted !== input.value.trim()) return;
      const choices = found.map((row) => h("button", { type: "button", role: "option", class: "choice", onclick: () => take(row.snapshot) },
        badge(row.kind, row.name), h("code", {}, short(row.snapshot))));
      if (/^[0-9A-Za-z]{20}$/.test(wanted)) choices.unshift(h("button", { type: "button", class: "choice", onclick: () => take(wanted.toUpperCase()) }, "Snapshot ", h("code", {}, wanted)));
      fill(rows, choices.length ? choices : empty("No branch or tag has this name."), total > found.length && h("p", { class: "muted" }, `… ${total - found.length} more: type a part of the name`));
    } catch (error) {
      fill(rows, failed(error));
    }
  }

  input.addEventListener("input", search);
  dialog.addEventListener("keydown", (event) => {
    const choices = [...rows.querySelectorAll(".choice")];
    const at = choices.indexOf(document.activeElement);
    if (event.key === "ArrowDown") choices[Math.min(at + 1, choices.length - 1)]?.focus();
    else if (event.key === "ArrowUp") (at > 0 ? choices[at - 1] : input).focus();
    else if (event.key === "Enter" && document.activeElement === input) choices[0]?.click();
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  search();
}
app.chooseVersion = chooseVersion;

// -- theme, keys, start

function theme(next) {
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("theme", next); } catch { /* it is forgotten, then */ }
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  theme(dark ? "light" : "dark");
}

const KEYS = [
  ["1 … 5", "the views"], ["v", "choose a version"], ["/", "filter the tree"], ["↑ ↓", "move in a list"], ["← →", "close and open a group"],
  ["Enter", "open what is marked"], ["[ ]", "older and newer snapshot"], ["r", "read the repository again"], ["t", "light or dark"], ["?", "these keys"],
];

function showHelp() {
  const dialog = h("dialog", { class: "help" }, h("form", { method: "dialog" }, h("h2", {}, "Keys"),
    h("dl", { class: "facts" }, KEYS.flatMap(([key, meaning]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, meaning)])),
    h("button", { class: "primary" }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

async function step(offset) {
  try {
    const next = await neighbour(app.state.snapshot, offset);
    if (next) go({ snapshot: next }, { keep: true });
    else toast(offset > 0 ? "This is the oldest snapshot." : "This is the newest snapshot of its line.");
  } catch (error) {
    toast(error.message);
  }
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches?.("input:not([type=range]):not([type=checkbox]):not([type=radio]), select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const number = Number(event.key);
  const actions = {
    v: () => chooseVersion(), r: reload, t: switchTheme, "?": showHelp, "[": () => step(1), "]": () => step(-1),
    "/": () => { const filter = element("filter"); if (filter) filter.focus(); else go({ view: "data" }); },
  };
  if (number >= 1 && number <= VIEWS.length) go({ view: VIEWS[number - 1][0] });
  else if (event.key in actions) actions[event.key]();
  else return;
  event.preventDefault();
}

async function reload() {
  try {
    app.repository = await get("repository");
  } catch (error) {
    fill(element("main"), failed(error, reload));
    return;
  }
  const { name, spec_version: version, generation, snapshots, branches, tags, status } = app.repository;
  element("name").textContent = name;
  element("name").title = name;
  element("facts").textContent = [version ? `spec ${version}` : generation, count(snapshots, "snapshot"), count(branches, "branch", "branches"), count(tags, "tag"), status === "online" ? "" : status].filter(Boolean).join(" · ");
  delete element("version").dataset.shown;
  current = { name: null, view: {} };
  await show();
}

async function start() {
  try { const kept = localStorage.getItem("theme"); if (kept) theme(kept); } catch { /* no storage: the system's theme */ }
  fill(element("tabs"), VIEWS.map(([name, title], at) => h("a", { href: `#/${name}`, data: { view: name }, title: `${title} (${at + 1})`, onclick: (event) => { event.preventDefault(); go({ view: name }); } }, title)));
  element("version").addEventListener("click", () => chooseVersion());
  element("refresh").addEventListener("click", () => reload().then(() => toast("Read again.")));
  element("theme").addEventListener("click", switchTheme);
  element("help").addEventListener("click", showHelp);
  addEventListener("popstate", () => show());
  addEventListener("hashchange", () => show());
  addEventListener("keydown", press);
  fill(element("main"), loading());
  await reload();
}

start();
