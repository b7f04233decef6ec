// Two snapshots: which nodes differ, and one array before, after, and its difference.

import { allSwitch, badges, count, empty, failed, fill, firstLine, get, h, loading, number, short, shortUnits, shown, svg } from "/static/dom.js";
import { PagedRows, VirtualList } from "/static/lists.js";
import { PlaneControls, PlaneImage, valueText } from "/static/pictures.js";

export async function compareView(box, app) {
  const head = h("div", { class: "versions-compared" });
  const panel = h("section", { class: "pane node" });
  const side = h("section", { class: "pane side" });
  fill(box, head, h("div", { class: "split data" }, side, panel));
  let compared = "";
  let run = 0;
  let kept = {};
  let changed = { rows: [], list: null };

  async function show() {
    const { snapshot } = app.state;
    run += 1;
    const mine = run;
    try {
      const after = await get("snapshot", { snapshot });
      const from = app.state.from ?? after.parent ?? snapshot;
      const before = await get("snapshot", { snapshot: from });
      if (mine !== run) return;
      drawHead(head, app, before, after);
      const key = `${from} ${snapshot}`;
      let first = null;
      if (key !== compared) {
        compared = key;
        fill(side, loading());
        fill(panel, loading());
        first = await get("changes", { from, snapshot, offset: 0, limit: 200 });
        if (mine !== run) return;
        changed = { rows: first.rows, internal: first.internal, list: drawChanges(side, app, from, snapshot, first) };
      }
      const row = changed.list.rows.find((each) => each.path === app.state.path) ?? changed.rows.find((each) => each.chunks) ?? changed.rows[0];
      if (!row) { fill(panel, empty(h("h2", {}, "No difference"), h("p", {}, from === snapshot ? "Choose two different versions." : changed.internal ? "Only icefloe's own tables differ." : "Both snapshots have the same nodes, metadata and chunks."))); return; }
      changed.list.select(changed.list.rows.indexOf(row));
      kept = await drawArray(panel, app, before, after, row, kept, () => mine === run) ?? kept;
    } catch (error) {
      if (mine === run) { compared = ""; fill(panel, failed(error, show)); }
    }
  }

  show();
  return { update: show };
}

function drawHead(head, app, before, after) {
  const choice = (label, found, name) => h("div", { class: "compared" }, h("span", { class: "muted" }, label),
    h("button", { type: "button", class: "version", onclick: () => app.chooseVersion((snapshot) => app.go({ [name]: snapshot })) },
      badges({ branches: found.branches.slice(0, 1), tags: found.tags.slice(0, 1) }), h("code", {}, short(found.id)), h("span", { class: "message" }, firstLine(found.message)), h("span", { class: "muted" }, "▾")));
  fill(head, choice("From", before, "from"),
    h("button", { type: "button", class: "icon", title: "Swap", "aria-label": "Swap", onclick: () => app.go({ from: after.id, snapshot: before.id }) }, "⇄"),
    choice("To", after, "snapshot"));
}

function drawChanges(side, app, from, snapshot, first) {
  const list = new VirtualList({
    rows: new PagedRows("changes", { from, snapshot }, first), height: 44, label: "Nodes that differ",
    draw: (row) => h("div", { class: "change", title: row.moved_from ? `${row.path}, was ${row.moved_from}` : row.path },
      h("span", { class: "name" }, row.path),
      h("span", { class: "small" }, row.changes.map((word) => h("span", { class: `word ${word}` }, word === "chunks" ? count(row.chunks, "chunk") : word)))),
    choose: (row) => { if (row) app.go({ path: row.path }, { keep: true }); },
  });
  fill(side, h("h2", { class: "bar" }, count(first.total, "change")), first.total ? list.element : empty("Nothing differs."), h("div", { class: "under" }, allSwitch(app, first.internal)));
  return list;
}

async function drawArray(panel, app, before, after, change, kept, isCurrent) {
  const title = h("h2", { class: "bar" }, h("span", { class: "path" }, change.path), h("span", { class: "muted" }, change.moved_from ? `was ${change.moved_from}` : change.changes.join(", ")));
  const only = change.changes.includes("added") ? after : change.changes.includes("removed") ? before : null;
  const both = [before, after];
  const nodes = await Promise.all(both.map((each) => (only && only !== each ? null : get("node", { snapshot: each.id, path: each === before && change.moved_from ? change.moved_from : change.path }))));
  if (!isCurrent()) return null;
  const metadata = metadataChanges(...nodes);
  const [old, node] = nodes;
  const say = (...words) => fill(panel, title, h("div", { class: "metadata" }, h("p", {}, ...words, " ", only !== before && h("a", { href: app.link({ view: "data", snapshot: after.id, path: change.path }) }, "Look at it")), metadata));
  if (only) { say(only === after ? "Only the later snapshot has it." : "Only the earlier snapshot had it."); return null; }
  if (change.moved_from) { say(change.chunks ? `It moved, and ${count(change.chunks, "chunk")} differ${change.chunks === 1 ? "s" : ""}.` : "It moved, and its chunks moved with it."); return null; }
  if (node.type !== "array") { say("Its metadata differ."); return null; }
  if (old.type !== "array" || old.shape.length !== node.shape.length) { say("It has other dimensions, so that values have no counterpart."); return null; }

  const shape = node.shape.map((size, axis) => Math.max(size, old.shape[axis]));
  const larger = { ...node, shape };
  const ids = { from: before.id, snapshot: after.id, path: change.path };
  const [axes, ofOld] = await Promise.all([after, before].map((each) => get("axes", { snapshot: each.id, path: change.path })));
  if (!isCurrent()) return null;
  // Labels of the longer one: what was appended has its own, what was cut off has the old ones.
  axes.forEach((axis, at) => { if (old.shape[at] > node.shape[at]) axes[at] = ofOld[at]; });
  const isPlane = shape.length >= 2 && shape.every((size) => size > 0);
  const shownAxes = isPlane ? kept.shown?.every((axis) => axis < shape.length) ? kept.shown : [shape.length - 2, shape.length - 1] : [];
  const steps = new ChangedSteps(ids, larger, axes, shownAxes);
  fill(panel, title, loading("Looking for values that differ …"));
  await steps.more();
  if (!isCurrent()) return null;
  if (!steps.found.size && steps.next === null) {
    say(change.chunks ? `${count(change.chunks, "chunk")} ${change.chunks === 1 ? "was" : "were"} written again, with the same values.` : "Its values are the same.");
    return null;
  }
  if (!isPlane) {
    fill(panel, title, h("div", { class: "compare-body" }, steps.element, metadata));
    return null;
  }
  const { cells: touched, total } = await get("changed-chunks", { ...ids, axes: shape.map((_, axis) => axis).join(",") });
  if (!isCurrent()) return null;
  const [first] = steps.sorted();
  const images = [];
  const change_ = () => {
    if (String(steps.shown) !== String(controls.shown)) steps.turn([...controls.shown]);
    steps.mark(controls.at);
    images.forEach((image) => image.show(image.version));
  };
  const controls = new PlaneControls(larger, axes, change_, { ...kept, shown: [...shownAxes], at: first?.at ?? touched[0]?.map((cell, axis) => cell * (node.chunk_shape?.[axis] ?? 1)) });
  // A plane that is sampled may leave out what differs: then its chunk is shown.
  const focus = (at) => {
    const isSampled = node.chunk_shape && controls.shown.some((axis) => shape[axis] > PIXELS);
    if (isSampled) controls.window = windowOf(at, controls.shown, node.chunk_shape, shape);
    controls.whole.hidden = controls.window === null;
  };
  if (first) focus(first.at);
  steps.onchoose = (at) => { controls.at = [...at]; controls.draw(); focus(at); change_(); };
  const whole = () => controls.window ?? controls.shown.flatMap((axis) => [0, shape[axis]]);
  const value = (version, at) => get("values", { snapshot: version.id, path: change.path, at: at.join(","), shape: shape.join(",") });
  const readOut = async (at) => {
    const [old_, now] = await Promise.all(both.map((version) => value(version, at)));
    return `${valueText(old_)} → ${valueText(now)}`;
  };
  const plain = (version) => new PlaneImage(controls, {
    readOut: async (at) => valueText(await value(version, at)),
    address: "picture", title: version === before ? "Before" : "After",
    parameters: () => ({ ...controls.parameters(version.id), shape: shape.join(","), window: whole().join(","), scale: controls.scale, low: controls.low, high: controls.high }),
  });
  const difference = new PlaneImage(controls, {
    address: "difference", title: "Difference: after − before", scale: () => "difference", readOut,
    parameters: () => ({ ...controls.parameters(after.id), from: before.id, window: whole().join(","), high: null }),
    overlay: (image) => outlines(image, controls, node, touched),
  });
  images.push(Object.assign(difference, { version: after.id }), ...both.map((version) => Object.assign(plain(version), { version: version.id })));
  const told = h("p", { class: "plane-facts" });
  const draw = difference.draw.bind(difference);
  difference.draw = (about, blob) => {
    draw(about, blob);
    const parts = [];
    if (about.changed) parts.push(`${number(about.changed)} of ${number(about.total)} values differ here, by up to ${shown(about.largest, about)}`);
    if (about.appeared) parts.push(`${number(about.appeared)} of ${number(about.total)} values appeared here`);
    if (about.vanished) parts.push(`${number(about.vanished)} of ${number(about.total)} values vanished here`);
    if (!about.values) fill(difference.facts);
    for (const [word, some] of [["appeared", about.appeared], ["vanished", about.vanished]]) if (some) difference.bar.append(h("span", { class: `swatch ${word}` }), word);
    const chunks = total ? ` ${count(total, "chunk")} of the array differ${total === 1 ? "s" : ""}, outlined.` : "";
    told.textContent = `${parts.length ? parts.join("; ") : "No value differs here"}.${chunks}`;
  };
  fill(panel, title, h("div", { class: "compare-body" }, controls.bar, controls.sliders, steps.element, told,
    h("div", { class: "triptych" }, images.map((image) => image.element)), metadata));
  steps.mark(controls.at);
  images.forEach((image) => image.show(image.version));
  return controls.kept;
}

const PIXELS = 768;
const MOST_ROUNDS = 8;

function windowOf(at, axes, chunk, shape) {
  return axes.flatMap((axis) => {
    const start = Math.floor(at[axis] / chunk[axis]) * chunk[axis];
    return [start, Math.min(start + chunk[axis], shape[axis])];
  });
}

// Where values differ: each position along the dimensions that no picture shows, found part by part.
class ChangedSteps {
  constructor(ids, node, axes, shown_) {
    Object.assign(this, { ids, node, axes, shown: shown_, found: new Map(), next: 0, current: "" });
    this.element = h("section", { class: "steps", "aria-label": "Where values differ" });
    this.onchoose = () => {};
  }

  get others() {
    return this.node.shape.map((_, axis) => axis).filter((axis) => !this.shown.includes(axis));
  }

  key(at) {
    return this.others.map((axis) => at[axis]).join(",");
  }

  async turn(shown_) {
    Object.assign(this, { shown: shown_, found: new Map(), next: 0 });
    await this.more();
  }

  // Compare further chunks, until some differ or there were many.
  async more() {
    const asked = this.shown;
    let rounds = 0;
    do {
      rounds += 1;
      const answer = await get("changed-steps", { ...this.ids, axes: asked.join(","), offset: this.next });
      if (asked !== this.shown) return;
      Object.assign(this, { next: answer.next, compared: answer.compared, total: answer.total, about: answer });
      for (const step of answer.steps) {
        const known = this.found.get(this.key(step.at));
        if (known) known.changed += step.changed;
        else this.found.set(this.key(step.at), step);
      }
    } while (this.next !== null && !this.found.size && rounds < MOST_ROUNDS);
    this.draw();
  }

  sorted() {
    const differ = (one, other) => this.others.map((axis) => one.at[axis] - other.at[axis]).find((by) => by !== 0) ?? 0;
    return [...this.found.values()].sort(differ);
  }

  mark(at) {
    this.current = this.key(at);
    for (const chip of this.element.querySelectorAll(".step")) chip.setAttribute("aria-pressed", String(chip.dataset.key === this.current));
  }

  label(at, axes = this.others) {
    return axes.map((axis) => {
      const { name, labels, units } = this.axes[axis];
      const label = labels?.[at[axis]];
      return `${name ?? `dimension ${axis}`} ${label ?? number(at[axis])}${label && units ? ` ${shortUnits(units)}` : ""}`;
    }).join(", ");
  }

  draw() {
    const steps = this.sorted();
    const further = this.next !== null && h("p", { class: "muted" }, `${number(this.compared)} of ${number(this.total)} chunks compared. `,
      h("button", { type: "button", onclick: () => this.more().catch((error) => this.element.append(failed(error))) }, "Compare further"));
    const value = (one) => h("strong", {}, shown(one, this.about, 7));
    if (!this.shown.length) {
      fill(this.element, h("h3", {}, count(steps.length, "value differs", "values differ")), h("div", { class: "table-box" }, h("table", { class: "values" },
        h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", {}, "before"), h("th", {}, "after"))),
        h("tbody", {}, steps.map(({ at, before, after }) => h("tr", {}, h("td", {}, this.label(at), h("span", { class: "muted" }, ` [${at.join(", ")}]`)), h("td", { class: "was" }, value(before)), h("td", { class: "is" }, value(after))))))), further);
      return;
    }
    const [first] = steps;
    const chips = this.others.length > 0 && [
      h("h3", {}, `${count(steps.length, "step differs", "steps differ")}${this.next === null ? "" : " so far"}`),
      h("div", { class: "chips" }, steps.map((step) => h("button", {
        type: "button", class: "step", data: { key: this.key(step.at) }, "aria-pressed": String(this.key(step.at) === this.current),
        title: `${count(step.changed, "value")}, first at [${step.at.join(", ")}]`, onclick: () => this.onchoose(step.at),
      }, this.label(step.at), h("span", { class: "muted" }, ` ${number(step.changed)}`)))),
    ];
    fill(this.element, chips, first && h("p", { class: "plane-facts" }, "First: ", value(first.before), " → ", value(first.after), ` at ${this.label(first.at, this.axes.map((_, axis) => axis))}`, h("span", { class: "muted" }, ` [${first.at.join(", ")}]`)), further);
  }
}

// Frames around the chunks that differ, as far as they are in the plane.
function outlines(image, controls, node, touched) {
  if (!node.chunk_shape) return [];
  const [down, across] = controls.shown;
  const [[top, bottom], [left]] = [controls.extent(0), controls.extent(1)];
  const seen = new Set();
  const marks = [];
  for (const cell of touched) {
    if (!cell.every((number_, axis) => axis === down || axis === across || Math.floor(controls.at[axis] / node.chunk_shape[axis]) === number_)) continue;
    const key = `${cell[down]} ${cell[across]}`;
    if (seen.has(key) || seen.size > 2000) continue;
    seen.add(key);
    const height = node.chunk_shape[down];
    const y = cell[down] * height;
    marks.push(svg("rect", {
      x: cell[across] * node.chunk_shape[across] - left, y: controls.flip ? bottom - y - height : y - top,
      width: node.chunk_shape[across], height, class: "changed", "vector-effect": "non-scaling-stroke",
    }));
  }
  return marks;
}

function metadataChanges(before, after) {
  if (!before || !after) return null;
  const rows = [];
  for (const part of ["attributes", "document"]) {
    for (const name of new Set([...Object.keys(before[part] ?? {}), ...Object.keys(after[part] ?? {})])) {
      const [old, now] = [before[part]?.[name], after[part]?.[name]].map((value) => (value === undefined ? "–" : JSON.stringify(value)));
      if (old !== now) rows.push(h("tr", {}, h("td", {}, part === "attributes" ? name : h("em", {}, name)), h("td", { class: "was" }, old), h("td", { class: "is" }, now)));
    }
  }
  if (!rows.length) return null;
  return h("section", {}, h("h3", {}, "Metadata"), h("table", { class: "values" }, h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", {}, "before"), h("th", {}, "after"))), h("tbody", {}, rows)));
}
