// The tree of a snapshot, and one node of it.

import { allSwitch, copyable, count, empty, facts, failed, fill, get, h, jsonTree, loading, number } from "/static/dom.js";
import { ChunkMapView } from "/static/chunks.js";
import { VirtualList } from "/static/lists.js";
import { PlaneControls, PlaneImage } from "/static/pictures.js";
import { LinePlot } from "/static/plots.js";
import { VersionSlider } from "/static/versions.js";

const PAGE = 200;

export async function dataView(box, app) {
  const panel = h("section", { class: "pane node", "aria-label": "Node" });
  const tree = new TreeList(app);
  const all = h("div", { class: "under" });
  fill(box, h("div", { class: "split data" },
    h("section", { class: "pane side" }, tree.filter, tree.list.element, all), panel));
  const kept = {};
  let shown = null;
  let node = null;
  let asked = 0;
  let settling = 0;

  // A slider moves fast: the picture follows at once, tree and metadata when it rests.
  function update() {
    const { snapshot, path } = app.state;
    if (node && (path ?? shown.path) === shown.path) {
      node.show(snapshot);
      if (snapshot === shown.snapshot) return;
      clearTimeout(settling);
      settling = setTimeout(show, 250);
    } else show();
  }

  async function show() {
    const { snapshot } = app.state;
    asked += 1;
    const mine = asked;
    try {
      await tree.open(snapshot);
      const about = await get("snapshot", { snapshot });
      fill(all, allSwitch(app, about.internal));
      if (about.groups + about.arrays === 0) {
        node = null;
        fill(panel, empty(h("h2", {}, "Nothing here yet"), h("p", {}, "This snapshot has no groups and no arrays. Write with Zarr or xarray, commit, and read it again with ", h("kbd", {}, "r"), ".")));
        return;
      }
      const path = app.state.path ?? about.first_array ?? "/";
      await tree.openTo(path);
      const found = await get("node", { snapshot, path });
      const axes = found.type === "array" ? await get("axes", { snapshot, path }) : [];
      if (mine !== asked) return;
      tree.mark(path);
      const key = JSON.stringify([found, axes]);
      if (!node || shown.key !== key) node = new NodePanel(panel, found, axes, app, kept);
      shown = { path, snapshot, key };
    } catch (error) {
      if (mine !== asked) return;
      node = null;
      shown = null;
      fill(panel, failed(error), h("p", { class: "empty" }, h("a", { href: app.link({ path: "/" }) }, "Go to the root group"), " or choose another version ", h("kbd", {}, "v"), "."));
    }
  }

  fill(panel, loading());
  await show();
  return { update };
}

// Entries of the flat list: {path, name, depth, children, shape, open, kids}, or {parent, at} until fetched.
class TreeList {
  constructor(app) {
    this.app = app;
    this.flat = [];
    this.snapshot = null;
    this.opened = new Set(["/"]);
    this.list = new VirtualList({
      rows: { total: 0, row: (at) => this.row(at) }, height: 26, label: "Groups and arrays",
      draw: (entry) => this.draw(entry),
      choose: (entry) => { if (entry?.path) this.app.go({ path: entry.path }, { keep: true }); },
      key: (event, entry, at) => this.press(event, entry, at),
    });
    this.filter = h("input", {
      type: "search", class: "filter", placeholder: "Filter by name ( / )", "aria-label": "Filter nodes by name",
      oninput: () => this.search(), id: "filter",
    });
  }

  async open(snapshot) {
    if (this.snapshot === snapshot) return;
    this.snapshot = snapshot;
    this.root = { path: "/", name: "/", depth: 0, children: null, open: true };
    await this.expand(this.root);
    if (this.filter.value) await this.search();
    else this.rebuild();
  }

  async expand(entry) {
    const answer = await get("children", { snapshot: this.snapshot, path: entry.path, offset: 0, limit: PAGE });
    entry.children = answer.total;
    entry.kids = Array.from({ length: answer.total }, (_, at) => ({ parent: entry, at }));
    this.take(entry, answer);
    entry.open = true;
    this.opened.add(entry.path);
    // Groups that were open in the snapshot shown before stay open.
    await Promise.all(entry.kids.filter((kid) => kid.children && this.opened.has(kid.path)).map((kid) => this.expand(kid)));
  }

  // Open the groups above a path, as far as they are among the first of their group.
  async openTo(path) {
    if (this.filter.value) return;
    let changed = false;
    let entry = this.root;
    while (entry && entry.path !== path) {
      if (!entry.open) { if (entry.kids) entry.open = true; else await this.expand(entry); changed = true; }
      entry = entry.kids.find((kid) => kid.path === path || (kid.path && path.startsWith(`${kid.path}/`)));
    }
    if (changed) this.rebuild();
  }

  take(entry, answer) {
    answer.rows.forEach((row, at) => Object.assign(entry.kids[answer.offset + at], row, { depth: entry.depth + 1 }));
  }

  row(at) {
    const entry = this.flat[at];
    if (entry.path === undefined) this.fetch(entry);
    return entry.path === undefined ? undefined : entry;
  }

  async fetch({ parent, at }) {
    const offset = Math.floor(at / PAGE) * PAGE;
    parent.asked ??= new Set();
    if (parent.asked.has(offset)) return;
    parent.asked.add(offset);
    this.take(parent, await get("children", { snapshot: this.snapshot, path: parent.path, offset, limit: PAGE }));
    this.list.refresh();
  }

  rebuild() {
    this.flat = [];
    const walk = (entry) => {
      this.flat.push(entry);
      if (entry.open) entry.kids?.forEach(walk);
    };
    walk(this.root);
    this.show();
  }

  show() {
    this.list.rows.total = this.flat.length;
    this.list.refresh();
    this.mark(this.marked, false);
  }

  async search() {
    const wanted = this.filter.value.trim();
    if (!wanted) { this.rebuild(); return; }
    const { rows, total } = await get("search", { snapshot: this.snapshot, q: wanted });
    if (this.filter.value.trim() !== wanted) return;
    this.flat = rows.map((row) => ({ ...row, name: row.path, depth: 0, found: true }));
    if (total > rows.length) this.flat.push({ name: `… ${number(total - rows.length)} more`, path: null, depth: 0, found: true });
    this.show();
  }

  async toggle(entry) {
    if (entry.open) { entry.open = false; this.opened.delete(entry.path); } else if (entry.kids) { entry.open = true; this.opened.add(entry.path); } else await this.expand(entry);
    this.rebuild();
  }

  mark(path, reveal = true) {
    this.marked = path;
    const at = this.flat.findIndex((entry) => entry.path === path);
    this.list.select(at);
    if (at >= 0 && reveal) this.list.reveal(at);
  }

  draw(entry) {
    const isArray = entry.shape !== undefined;
    const twist = !isArray && !entry.found && entry.children !== 0;
    return h("div", { class: `entry ${isArray ? "array" : "group"}`, style: { paddingLeft: `${8 + entry.depth * 16}px` }, title: entry.path ?? "" },
      h("button", {
        class: "twist", type: "button", tabIndex: -1, "aria-label": entry.open ? "Close" : "Open",
        style: { visibility: twist ? "visible" : "hidden" },
        onclick: (event) => { event.stopPropagation(); this.toggle(entry); },
      }, entry.open ? "▾" : "▸"),
      h("span", { class: "glyph", "aria-hidden": "true" }, isArray ? "▦" : "▢"),
      h("span", { class: "name" }, entry.name),
      isArray && h("span", { class: "shape" }, entry.shape.length ? entry.shape.map(number).join(" × ") : "scalar"));
  }

  press(event, entry) {
    if (!entry || entry.shape !== undefined || entry.found) return false;
    const wants = { ArrowRight: true, ArrowLeft: false, Enter: !entry.open }[event.key];
    if (wants === undefined) return false;
    if (Boolean(entry.open) !== wants && entry.children !== 0) this.toggle(entry);
    return true;
  }
}

const TABS = [["picture", "Picture"], ["chunks", "Chunks"], ["metadata", "Metadata"]];

// One node. `show(snapshot)` brings it to another snapshot without drawing everything again.
class NodePanel {
  constructor(panel, node, axes, app, kept) {
    Object.assign(this, { panel, node, axes, app, kept });
    const isArray = node.type === "array";
    this.body = h("div", { class: "node-body" });
    this.tabs = h("div", { class: "tabs", role: "tablist" }, isArray && TABS.map(([name, title]) => h("button", {
      type: "button", role: "tab", data: { tab: name }, onclick: () => app.go({ tab: name }, { keep: true }),
    }, title)));
    this.slider = new VersionSlider(app);
    fill(panel,
      h("h2", { class: "bar" }, h("span", { class: "path" }, node.path),
        h("span", { class: "muted" }, isArray ? `${typeText(node.data_type)} · ${shapeText(node)}` : "group"), this.tabs),
      h("div", { class: "history-slider" }, this.slider.element), this.body);
    this.show(app.state.snapshot);
  }

  get tab() {
    return this.node.type === "array" ? this.app.state.tab ?? "picture" : "metadata";
  }

  show(snapshot) {
    if (this.drawn !== this.tab) {
      this.drawn = this.tab;
      for (const tab of this.tabs.children) tab.setAttribute("aria-selected", String(tab.dataset.tab === this.tab));
      this.view = this.make();
      fill(this.body, this.view.element);
    }
    this.view.show(snapshot);
    if (this.slid !== snapshot) {
      this.slid = snapshot;
      this.slider.show(snapshot).catch(() => { /* the view tells what is wrong with the snapshot */ });
    }
  }

  make() {
    const { node, axes } = this;
    if (this.tab === "metadata") return { element: drawMetadata(node), show: () => {} };
    if (this.tab === "chunks") return new ChunkMapView(node, axes, this.app);
    if (node.shape.length < 2) return new LinePlot(node, axes);
    const profile = h("div", { class: "profile" });
    const changed = () => { this.kept.plane = controls.kept; close(); image.show(image.snapshot); };
    const controls = new PlaneControls(node, axes, changed, this.kept.plane);
    const image = new PlaneImage(controls, {
      address: "picture", title: "",
      parameters: (snapshot) => ({ ...controls.parameters(snapshot), scale: controls.scale, low: controls.low, high: controls.high }),
    });
    this.kept.plane = controls.kept;
    let line = null;
    const close = () => { line = null; fill(profile); };
    // A click shows the values behind it: along the first dimension that the picture does not show.
    image.onpick = (at) => {
      const axis = node.shape.findIndex((length, each) => length > 1 && !controls.shown.includes(each));
      if (axis < 0) return;
      line = new LinePlot(node, axes, axis, at);
      fill(profile, h("h3", {}, `${controls.name(axis)} at ${image.where(at)}`, h("button", { type: "button", class: "icon", "aria-label": "Close", onclick: close }, "×")), line.element);
      line.show(image.snapshot).then(() => profile.scrollIntoView({ block: "nearest" }));
    };
    return {
      element: h("div", { class: "picture-view" }, controls.bar, controls.sliders, image.element, profile),
      show: (snapshot) => { image.show(snapshot); line?.show(snapshot); },
    };
  }
}

function typeText(type) {
  return typeof type === "string" ? type : type?.name ?? JSON.stringify(type);
}

function drawMetadata(node) {
  const isArray = node.type === "array";
  const attributes = node.attributes ?? {};
  const some = Object.keys(attributes).length;
  return h("div", { class: "metadata" },
    facts([
      ["Path", copyable(node.path)],
      ["Node id", h("code", {}, node.id)],
      ...(isArray ? [
        ["Data type", typeText(node.data_type)],
        ["Shape", shapeText(node)],
        ["Chunks", node.chunk_shape ? `${node.chunk_shape.map(number).join(" × ")}, a grid of ${node.num_chunks.map(number).join(" × ")}` : null],
        ["Fill value", JSON.stringify(node.fill_value)],
        ["Stored in", count(node.num_manifests, "manifest")],
      ] : []),
    ]),
    h("section", {}, h("h3", {}, "Attributes"), some ? jsonTree(attributes) : empty("No attributes.")),
    h("section", {}, h("h3", {}, "zarr.json"), jsonTree(node.document)));
}

export function shapeText(node) {
  if (!node.shape.length) return "scalar";
  return node.shape.map((length, at) => `${node.dimension_names[at] ? `${node.dimension_names[at]} ` : ""}${number(length)}`).join(" × ");
}
