// Elements, requests and texts. Text of a repository only ever goes through textContent.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  assign(element, properties);
  append(element, children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  append(element, children);
  return element;
}

function assign(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

// -- requests

export class Failure extends Error {
  constructor(message, kind = null) {
    super(message);
    this.kind = kind;
  }
}

// Whether answers have icefloe's own tables (.icefloe), too.
const wanted = { all: false };

export function wantAll(all) {
  wanted.all = all;
}

function address(path, parameters) {
  const query = new URLSearchParams(wanted.all ? { all: 1 } : {});
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null) query.set(name, value);
  }
  const text = query.toString();
  return text ? `/api/${path}?${text}` : `/api/${path}`;
}

async function request(path, parameters, signal) {
  let response;
  try {
    response = await fetch(address(path, parameters), { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server does not answer. Is `icefloe ui` still running?");
  }
  if (!response.ok) {
    let told = { error: `${response.status} ${response.statusText}` };
    try {
      told = await response.json();
    } catch { /* not JSON: the status has to do */ }
    throw new Failure(told.error, told.kind);
  }
  return response;
}

export async function get(path, parameters = {}, signal = undefined) {
  return (await request(path, parameters, signal)).json();
}

export async function getPicture(path, parameters, signal) {
  const response = await request(path, parameters, signal);
  const about = JSON.parse(response.headers.get("X-Icefloe-About"));
  return { about, blob: await response.blob() };
}

export function apiAddress(path, parameters) {
  return address(path, parameters);
}

// -- texts

const whole = new Intl.NumberFormat("en");

export function count(number, one, many = `${one}s`) {
  return `${whole.format(number)} ${number === 1 ? one : many}`;
}

export function number(value) {
  return whole.format(value);
}

export function size(bytes) {
  let value = bytes;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (value < 1000 || unit === "TB") return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
  return "";
}

// A number with so many digits; all those before the point, unless there are too many.
export function real(value, digits = 5) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const amount = Math.abs(value);
  if (amount < 1e15 && (Number.isInteger(value) || amount >= 10 ** digits)) return String(Math.round(value));
  const text = value.toPrecision(digits);
  return text.includes("e") ? text : String(Number(text));
}

const SPANS = [["d", 864e8], ["h", 36e8], ["min", 6e7], ["s", 1e6], ["ms", 1e3], ["µs", 1]];

// A value as the server tells it: a number, a text, or a time or a duration in microseconds.
export function shown(value, { kind = "number", units = null } = {}, digits = 5) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number" && kind === "time") {
    const moment = new Date(value / 1000);
    return Number.isNaN(moment.getTime()) ? `${value} µs` : moment.toISOString().replace("T", " ").replace(/(:00)?\.000Z$|0*Z$/, "");
  }
  if (typeof value === "number" && kind === "duration") {
    const [unit, length] = SPANS.find(([, each]) => Math.abs(value) >= each) ?? ["s", 1e6];
    return `${real(value / length, digits)} ${unit}`;
  }
  return units ? `${real(value, digits)} ${shortUnits(units)}` : real(value, digits);
}

export function shortUnits(units) {
  return { degrees_north: "°N", degrees_east: "°E", degrees: "°" }[units] ?? units;
}

export function time(text) {
  const moment = new Date(text);
  const two = (part) => String(part).padStart(2, "0");
  return `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())} ` +
    `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
}

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

export function ago(text) {
  const seconds = (new Date(text) - Date.now()) / 1000;
  for (const [unit, length] of [["year", 31557600], ["month", 2629800], ["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (Math.abs(seconds) >= length) return relative.format(Math.round(seconds / length), unit);
  }
  return "just now";
}

export function short(id) {
  return id.slice(0, 8);
}

export function firstLine(text) {
  return text.split("\n", 1)[0];
}

// -- parts that several views use

export function loading(text = "Loading …") {
  return h("p", { class: "loading", role: "status" }, h("span", { class: "spinner" }), text);
}

const HINTS = {
  "unauthorized-virtual-chunk-container": ["To see these chunks here, start the page with ", "icefloe ui REPOSITORY --allow-virtual PREFIX"],
};

export function failed(error, again) {
  const [hint, command] = HINTS[error.kind] ?? [];
  return h("div", { class: "failure", role: "alert" },
    h("strong", {}, "Could not read this."),
    h("p", {}, error.message),
    hint && h("p", {}, hint, h("code", {}, command)),
    again && h("button", { type: "button", onclick: again }, "Try again"));
}

export function empty(...children) {
  return h("div", { class: "empty" }, ...children);
}

// The switch for icefloe's own tables, where there are some.
export function allSwitch(app, internal) {
  if (!internal) return null;
  return h("label", { class: "check all", title: "Ledgers, problems and late rows, in groups named .icefloe" },
    h("input", { type: "checkbox", checked: wanted.all, onchange: (event) => { app.go({ all: event.target.checked ? 1 : null }, { keep: true }); app.reload(); } }), "icefloe's own tables");
}

export function badge(kind, name) {
  return h("span", { class: `badge ${kind}`, title: `${kind} ${name}` }, name);
}

export function badges(row) {
  return [...row.branches.map((name) => badge("branch", name)), ...row.tags.map((name) => badge("tag", name))];
}

export function facts(pairs) {
  const list = h("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value === null || value === undefined) continue;
    list.append(h("dt", {}, name), h("dd", {}, value));
  }
  return list;
}

export function copyable(text, shown = text) {
  return h("button", {
    class: "copy", type: "button", title: `Copy ${text}`,
    onclick: async (event) => {
      event.stopPropagation();
      try {
        await navigator.clipboard.writeText(text);
        toast("Copied.");
      } catch {
        toast("The browser does not allow copying here.");
      }
    },
  }, shown);
}

const MOST_MEMBERS = 200;

// A JSON value: members of the outermost object in lines of their own, long ones to open and close.
export function jsonTree(value) {
  return h("div", { class: "json" }, value !== null && typeof value === "object" ? members(value) : member(null, value));
}

function members(value) {
  const entries = Object.entries(value);
  const shown = entries.slice(0, MOST_MEMBERS).map(([name, each]) => member(name, each, entries.length < 12));
  const more = entries.length - shown.length;
  return more ? [...shown, h("div", { class: "leaf muted" }, `… ${count(more, "more", "more")}`)] : shown;
}

function member(name, value, open = true) {
  const label = name === null ? null : h("span", { class: "key" }, name, ": ");
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    return h("div", { class: "leaf" }, label, h("span", { class: `value ${kind}` }, kind === "string" ? value : JSON.stringify(value)));
  }
  const all = Object.values(value);
  const isList = Array.isArray(value);
  const flat = JSON.stringify(value);
  if (!all.length || (flat.length < 70 && all.every((each) => each === null || typeof each !== "object"))) {
    return h("div", { class: "leaf" }, label, h("span", { class: "value" }, flat));
  }
  return h("details", { open }, h("summary", {}, label, h("span", { class: "muted" }, count(all.length, isList ? "item" : "member"))), h("div", { class: "inside" }, members(value)));
}

let hiding = 0;

export function toast(text) {
  const box = document.getElementById("toast");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { box.hidden = true; }, 2500);
}
