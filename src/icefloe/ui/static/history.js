// The graph of all snapshots, and one of them.

import { ago, badges, copyable, count, empty, facts, failed, fill, firstLine, get, h, jsonTree, loading, short, size, svg, time } from "/static/dom.js";
import { PagedRows, VirtualList } from "/static/lists.js";

const HEIGHT = 30;
const LANE = 14;
const MOST_LANES = 24;

export async function historyView(box, app) {
  const first = await get("history", { offset: 0, limit: 200 });
  const rows = new PagedRows("history", {}, first);
  const detail = h("aside", { class: "detail", "aria-label": "Snapshot" });
  let width = 1;
  for (const row of first.rows) width = Math.max(width, lanes(row));
  const list = new VirtualList({
    rows, height: HEIGHT, label: "Snapshots, newest first",
    draw: (row) => drawRow(row, Math.min(width, MOST_LANES)),
    choose: (row) => { if (row) app.go({ snapshot: row.id }, { keep: true }); },
    key: (event, row) => {
      if (event.key === "Enter" && row) { app.go({ view: "data", snapshot: row.id }); return true; }
      return false;
    },
  });
  fill(box, h("div", { class: "split" },
    h("section", { class: "pane wide" },
      h("h2", { class: "bar" }, "History", h("span", { class: "muted" }, count(first.total, "snapshot"))),
      list.element),
    detail));
  let shownId = null;
  let asked = 0;

  async function show(snapshot) {
    if (snapshot === shownId) return;
    shownId = snapshot;
    asked += 1;
    const mine = asked;
    const scrolled = list.element.scrollTop;
    if (!detail.firstChild) fill(detail, loading());
    try {
      const found = await get("snapshot", { snapshot });
      if (mine !== asked) return;
      fill(detail, drawSnapshot(found, app));
      list.select(found.row);
      // Somebody who scrolled while the answer was on its way stays where they are.
      if (list.element.scrollTop === scrolled) list.reveal(found.row);
    } catch (error) {
      if (mine === asked) fill(detail, failed(error));
    }
  }

  list.element.focus({ preventScroll: true });
  await show(app.state.snapshot);
  return { update: () => show(app.state.snapshot) };
}

function lanes(row) {
  return Math.max(row.lane, ...row.passing, ...row.joining, 0) + 1;
}

function drawRow(row, width) {
  return h("div", { class: "commit" },
    drawLanes(row, width),
    h("code", { class: "id" }, short(row.id)),
    badges(row),
    h("span", { class: "message" }, firstLine(row.message) || "(no message)"),
    h("time", { title: time(row.time) }, ago(row.time)));
}

function drawLanes(row, width) {
  const middle = HEIGHT / 2;
  const centre = (lane) => Math.min(lane, MOST_LANES) * LANE + LANE / 2;
  const picture = svg("svg", { class: "lanes", width: width * LANE, height: HEIGHT, "aria-hidden": "true" });
  const line = (path, lane) => picture.append(svg("path", { d: path, class: `lane lane${lane % 8}` }));
  const x = centre(row.lane);
  for (const lane of row.passing) line(`M${centre(lane)} 0V${HEIGHT}`, lane);
  for (const lane of row.joining) line(`M${centre(lane)} 0C${centre(lane)} ${middle} ${centre(lane)} ${middle} ${x} ${middle}`, lane);
  if (row.child) line(`M${x} 0V${middle}`, row.lane);
  if (row.parent) line(`M${x} ${middle}V${HEIGHT}`, row.lane);
  picture.append(svg("circle", { cx: x, cy: middle, r: row.branches.length ? 5 : 4, class: `dot lane${row.lane % 8}` }));
  return picture;
}

function drawSnapshot(found, app) {
  const metadata = Object.keys(found.metadata).length ? found.metadata : null;
  const lines = found.message.split("\n");
  return h("div", { class: "snapshot" },
    h("h2", {}, lines[0] || "(no message)"),
    lines.length > 1 && h("pre", { class: "text" }, lines.slice(1).join("\n").trim()),
    h("p", { class: "row-of-badges" }, badges(found)),
    h("p", { class: "actions" },
      h("button", { type: "button", class: "primary", onclick: () => app.go({ view: "data", snapshot: found.id }) }, "Look at the data"),
      found.parent && h("button", { type: "button", onclick: () => app.go({ view: "compare", from: found.parent, snapshot: found.id }) }, "What changed")),
    facts([
      ["Snapshot", copyable(found.id)],
      ["Parent", found.parent && h("a", { href: app.link({ snapshot: found.parent }) }, found.parent)],
      ["Written", `${time(found.time)} (${ago(found.time)})`],
      ["Nodes", `${count(found.groups, "group")}, ${count(found.arrays, "array")}`],
      ["Chunks", `${count(found.chunk_refs, "reference")} in ${count(found.manifests, "manifest")} (${size(found.manifest_bytes)})`],
    ]),
    found.arrays === 0 && empty("This snapshot has no arrays yet."),
    metadata && h("section", {}, h("h3", {}, "Metadata"), jsonTree(metadata)));
}
