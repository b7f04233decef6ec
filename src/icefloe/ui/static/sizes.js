// Bytes of every array of a snapshot. Arrays come page by page; the largest is shown first.

import { allSwitch, count, empty, failed, fill, get, h, number, size } from "/static/dom.js";
import { VirtualList } from "/static/lists.js";

const PAGE = 400;
const KINDS = ["native", "inline", "virtual"];

export async function sizesView(box, app) {
  const summary = h("div", { class: "cards" });
  const progress = h("progress", { max: 1, value: 0, "aria-label": "Arrays counted" });
  let rows = [];
  let largest = 1;
  let run = 0;
  const list = new VirtualList({
    rows: { total: 0, row: (at) => rows[at] }, height: 32, label: "Arrays, largest first",
    draw: (row) => drawRow(row, largest),
    choose: () => {},
    key: (event, row) => {
      if (event.key === "Enter") { app.go({ view: "data", path: row.path, tab: "chunks" }); return true; }
      return false;
    },
  });
  const all = h("span");
  const body = h("section", { class: "pane wide" }, h("h2", { class: "bar" }, "Arrays by size", all, progress), list.element);
  fill(box, summary, body);

  async function show() {
    run += 1;
    const mine = run;
    const { snapshot } = app.state;
    const about = await get("snapshot", { snapshot });
    fill(all, allSwitch(app, about.internal));
    const without = about.internal && !app.state.all ? ", without icefloe's own tables" : "";
    rows = [];
    largest = 1;
    const sums = { native: 0, inline: 0, virtual: 0, chunks: 0 };
    const totals = () => fill(summary,
      card("Chunks in this snapshot", number(sums.chunks), `${count(about.manifests, "manifest")}, ${size(about.manifest_bytes)}${without}`),
      ...KINDS.map((kind) => card({ native: "Native", inline: "Inline", virtual: "Virtual" }[kind], size(sums[kind]), { native: "in objects of the repository", inline: "inside manifests", virtual: "in files elsewhere" }[kind], kind)),
      exclusive, history);
    const exclusive = counted("Only in this snapshot", "no other snapshot needs it", async () => [size((await get("exclusive", { snapshot })).bytes), "freed if it expires"]);
    const history = counted("All branches and tags", "every chunk once", async () => {
      const found = await get("totals");
      return [size(found.native + found.inline), `stored here; ${size(found.virtual)} virtual`];
    });
    totals();
    list.rows.total = 0;
    list.refresh();
    if (!about.arrays) { fill(list.space, empty("This snapshot has no arrays.")); progress.hidden = true; return; }
    progress.hidden = false;
    for (let offset = 0; offset < about.arrays; offset += PAGE) {
      let page;
      try {
        page = await get("sizes", { snapshot, offset, limit: PAGE });
      } catch (error) {
        if (mine === run) { fill(list.space, failed(error, show)); progress.hidden = true; }
        return;
      }
      if (mine !== run || !box.isConnected && offset) return;
      for (const row of page.rows) {
        row.bytes = row.native + row.inline + row.virtual;
        for (const name of Object.keys(sums)) sums[name] += row[name];
        largest = Math.max(largest, row.bytes);
        rows.push(row);
      }
      rows.sort((one, other) => other.bytes - one.bytes || (one.path < other.path ? -1 : 1));
      progress.value = Math.min(1, (offset + PAGE) / page.total);
      list.rows.total = rows.length;
      totals();
      list.refresh();
    }
    progress.hidden = true;
    box.dataset.done = snapshot;
  }

  show();
  return { update: show };
}

function card(title, value, note, kind = "") {
  return h("div", { class: `card ${kind}` }, h("span", { class: "muted" }, title), h("strong", {}, value), h("span", { class: "muted small" }, note));
}

// A number that takes long: it is counted on request.
function counted(title, note, count_) {
  const box = card(title, "", note);
  const [, value, said] = box.children;
  const start = async () => {
    fill(value, h("span", { class: "spinner" }));
    try {
      [value.textContent, said.textContent] = await count_();
    } catch (error) {
      fill(value, h("button", { type: "button", onclick: start }, "Count"));
      said.textContent = error.message;
    }
  };
  fill(value, h("button", { type: "button", onclick: start }, "Count"));
  return box;
}

function drawRow(row, largest) {
  return h("div", { class: "size-row" },
    h("span", { class: "name", title: row.path }, row.path),
    h("span", { class: "bars" }, KINDS.map((kind) => row[kind] > 0 && h("span", { class: `bar-of ${kind}`, style: { width: `${Math.max(0.3, 100 * row[kind] / largest)}%` }, title: `${kind}: ${size(row[kind])}` }))),
    h("span", { class: "amount" }, size(row.bytes)),
    h("span", { class: "amount muted" }, `${number(row.chunks)} of ${number(row.grid)} chunks`));
}
