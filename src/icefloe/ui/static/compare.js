// Two snapshots: which nodes differ, and one array before, after, and its difference.

import { badges, count, empty, failed, fill, firstLine, get, h, loading, number, real, short, svg } from "/static/dom.js";
import { PagedRows, VirtualList } from "/static/lists.js";
import { PlaneControls, PlaneImage } from "/static/pictures.js";

export async function compareView(box, app) {
  const head = h("div", { class: "versions-compared" });
  const panel = h("section", { class: "pane node" });
  const side = h("section", { class: "pane side" });
  fill(box, head, h("div", { class: "split data" }, side, panel));
  let shown = "";
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
      if (key !== shown) {
        shown = key;
        fill(side, loading());
        fill(panel, loading());
        first = await get("changes", { from, snapshot, offset: 0, limit: 200 });
        if (mine !== run) return;
        changed = { rows: first.rows, list: drawChanges(side, app, from, snapshot, first) };
      }
      const row = changed.list.rows.find((each) => each.path === app.state.path) ?? changed.rows.find((each) => each.chunks) ?? changed.rows[0];
      if (!row) { fill(panel, empty(h("h2", {}, "No difference"), h("p", {}, from === snapshot ? "Choose two different versions." : "Both snapshots have the same nodes, metadata and chunks."))); return; }
      changed.list.select(changed.list.rows.indexOf(row));
      kept = await drawArray(panel, app, before, after, row, kept, () => mine === run) ?? kept;
    } catch (error) {
      if (mine === run) { shown = ""; fill(panel, failed(error, show)); }
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
  fill(side, h("h2", { class: "bar" }, count(first.total, "change")), first.total ? list.element : empty("Nothing differs."));
  return list;
}

async function drawArray(panel, app, before, after, change, kept, isCurrent) {
  const title = h("h2", { class: "bar" }, h("span", { class: "path" }, change.path), h("span", { class: "muted" }, change.moved_from ? `was ${change.moved_from}` : change.changes.join(", ")));
  const only = change.changes.includes("added") ? after : change.changes.includes("removed") ? before : null;
  const both = [before, after];
  const nodes = await Promise.all(both.map((each) => (only && only !== each ? null : get("node", { snapshot: each.id, path: each === before && change.moved_from ? change.moved_from : change.path }))));
  if (!isCurrent()) return null;
  const metadata = metadataChanges(...nodes);
  const node = nodes[1];
  const numeric = node?.type === "array" && nodes[0]?.type === "array" && node.shape.length >= 2 && nodes[0].shape.length === node.shape.length && !change.moved_from && node.shape.every((size) => size > 0);
  if (!numeric || !change.chunks) {
    const word = only === after ? "Only the later snapshot has it." : only === before ? "Only the earlier snapshot had it." : change.moved_from ? "It moved, and its chunks moved with it." : change.chunks ? `${count(change.chunks, "chunk")} differ.` : "Its values are the same.";
    fill(panel, title, h("div", { class: "metadata" }, h("p", {}, word, " ", only !== before && h("a", { href: app.link({ view: "data", snapshot: after.id }) }, "Look at it")), metadata));
    return null;
  }
  const axes = await get("axes", { snapshot: after.id, path: change.path });
  const common = { ...node, shape: node.shape.map((size, axis) => Math.min(size, nodes[0].shape[axis])) };
  if (!isCurrent()) return null;
  const dims = node.shape.map((_, axis) => axis);
  const { cells: touched, total } = await get("changed-chunks", { from: before.id, snapshot: after.id, path: change.path, axes: dims.join(",") });
  if (!isCurrent()) return null;
  if (!kept.at && touched.length && node.chunk_shape) kept = { at: touched[0].map((cell, axis) => cell * node.chunk_shape[axis]) };
  const images = [];
  const controls = new PlaneControls(common, axes, () => { controls.window ??= null; images.forEach((image) => image.show(image.version)); }, kept);
  const whole = () => controls.window ?? controls.shown.flatMap((axis) => [0, common.shape[axis]]);
  const plain = (version) => new PlaneImage(controls, {
    address: "picture", title: version === before ? "Before" : "After",
    parameters: () => ({ ...controls.parameters(version.id), window: whole().join(","), scale: controls.scale, low: controls.low, high: controls.high }),
  });
  const difference = new PlaneImage(controls, {
    address: "difference", title: "Difference: after − before", scale: () => "difference",
    parameters: () => ({ ...controls.parameters(after.id), from: before.id, window: whole().join(","), high: null }),
    overlay: (image) => outlines(image, controls, node, touched),
  });
  images.push(Object.assign(difference, { version: after.id }), ...both.map((version) => Object.assign(plain(version), { version: version.id })));
  const told = h("p", { class: "plane-facts" });
  const draw = difference.draw.bind(difference);
  difference.draw = (about, blob) => {
    draw(about, blob);
    const parts = [about.changed ? `${number(about.changed)} of ${number(about.total)} values differ here, by up to ${real(about.largest)}` : "No value differs here"];
    if (about.appeared) parts.push(`${number(about.appeared)} appeared`);
    if (about.vanished) parts.push(`${number(about.vanished)} vanished`);
    told.textContent = `${parts.join("; ")}. ${count(total, "chunk")} of the array differ${total === 1 ? "s" : ""}, outlined.`;
  };
  fill(panel, title, h("div", { class: "compare-body" }, controls.bar, controls.sliders, told,
    h("div", { class: "triptych" }, images.map((image) => image.element)), metadata));
  images.forEach((image) => image.show(image.version));
  return controls.kept;
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
