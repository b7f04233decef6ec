// The chunk map of an array: every chunk one cell, coloured by where its bytes are or who wrote it.

import { apiAddress, failed, fill, get, h, loading, number, size } from "/static/dom.js";

export class ChunkMapView {
  constructor(node, axes, app) {
    Object.assign(this, { node, axes, app });
    const ndim = node.shape.length;
    this.shown = ndim > 1 ? [ndim - 2, ndim - 1] : ndim ? [0] : [];
    if (ndim > 2) {
      // Along time, what appends added is seen best. A dimension with one chunk shows nothing.
      const several = [...node.num_chunks.keys()].filter((axis) => node.num_chunks[axis] > 1);
      const [first, last] = [several[0] ?? 0, several.at(-1) ?? ndim - 1];
      this.shown = first < last ? [first, last] : [0, first || ndim - 1];
    }
    this.at = node.num_chunks.map(() => 0);
    this.by = "kind";
    this.canvas = h("canvas", { class: "cells", role: "img", "aria-label": `Chunks of ${node.path}` });
    this.legend = h("ul", { class: "legend" });
    this.said = h("p", { class: "pointed" });
    this.note = h("p", { class: "plane-facts muted" });
    this.toolbar = h("div", { class: "toolbar" });
    this.sliders = h("div", { class: "sliders" });
    this.problem = h("div");
    this.element = h("div", { class: "chunk-view" }, this.toolbar, this.sliders, this.problem,
      h("div", { class: "chunk-plot" }, h("div", {}, this.note, this.canvas, this.said), this.legend));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.pointed = null; this.paint(); });
    this.draw();
  }

  name(axis) {
    return this.axes[axis].name ?? `dimension ${axis}`;
  }

  draw() {
    const choose = (which, label) => h("label", {}, label, h("select", { "aria-label": label, onchange: (event) => this.choose(which, Number(event.target.value)) },
      this.node.shape.map((_, axis) => h("option", { value: axis, selected: axis === this.shown[which] }, this.name(axis)))));
    const by = (value, label) => h("label", { class: "check" }, h("input", { type: "radio", name: "by", value, checked: this.by === value, onchange: () => { this.by = value; this.show(this.snapshot); } }), label);
    fill(this.toolbar,
      h("fieldset", { class: "choice-of" }, h("legend", {}, "Colour by"), by("kind", "storage type"), by("commit", "commit")),
      this.shown.length === 2 && [choose(0, "Y axis"), choose(1, "X axis")],
      this.save = h("a", { class: "button", download: "chunks.svg" }, "Save as SVG"));
    fill(this.sliders, this.node.num_chunks.map((length, axis) => {
      if (this.shown.includes(axis) || length < 2) return null;
      const value = h("span", { class: "slider-value" }, `chunk ${this.at[axis] + 1} of ${number(length)}`);
      return h("label", { class: "slider" }, h("span", { class: "slider-name" }, this.name(axis)),
        h("input", { type: "range", min: 0, max: length - 1, value: this.at[axis], "aria-label": this.name(axis), oninput: (event) => { this.at[axis] = Number(event.target.value); value.textContent = `chunk ${this.at[axis] + 1} of ${number(length)}`; this.show(this.snapshot); } }), value);
    }));
  }

  choose(which, axis) {
    if (this.shown[1 - which] === axis) this.shown[1 - which] = this.shown[which];
    this.shown[which] = axis;
    this.draw();
    this.show(this.snapshot);
  }

  async show(snapshot) {
    this.snapshot = snapshot;
    this.asked = (this.asked ?? 0) + 1;
    const mine = this.asked;
    const wait = setTimeout(() => fill(this.problem, loading(this.by === "commit" ? "Reading the history …" : "Loading …")), 200);
    const parameters = { snapshot, path: this.node.path, axes: this.shown.join(","), at: this.at.join(","), by: this.by };
    try {
      const found = await get("chunk-map", parameters);
      if (mine !== this.asked) return;
      this.map = found;
      this.save.href = apiAddress("chunk-map.svg", parameters);
      fill(this.problem);
      this.describe();
      this.paint();
    } catch (error) {
      if (mine === this.asked) { this.map = null; fill(this.problem, failed(error)); fill(this.legend); this.paint(); }
    } finally {
      clearTimeout(wait);
    }
  }

  describe() {
    const { grid, factors, dimensions, legend, missing } = this.map;
    const cell = factors[0] * factors[1] > 1 ? `; one cell is ${factors.join(" × ")} chunks` : "";
    this.note.textContent = `${dimensions.join(" × ") || "a single chunk"}: ${grid.map(number).join(" × ")} chunks${cell}`;
    const line = (entry) => h("li", { class: "legend-line" },
      h("span", { class: "swatch", style: { background: this.colour(entry.cell) } }),
      entry.snapshot_id ? h("a", { href: this.app.link({ view: "history", snapshot: entry.snapshot_id }) }, entry.label) : h("span", {}, entry.label),
      h("span", { class: "muted" }, number(entry.num_chunks)));
    fill(this.legend, legend.filter((entry) => entry.num_chunks || this.by === "kind").map(line), line({ cell: 0, label: "missing", num_chunks: missing }));
    this.canvas.dataset.drawn = String(Number(this.canvas.dataset.drawn ?? 0) + 1);
  }

  colour(cell) {
    if (cell === 0) return getComputedStyle(document.documentElement).getPropertyValue("--missing");
    return this.map.legend.find((entry) => entry.cell === cell).colour;
  }

  paint() {
    const pen = this.canvas.getContext("2d");
    if (!this.map) { this.canvas.width = this.canvas.height = 0; return; }
    const { cells } = this.map;
    const rows = cells.length;
    const columns = cells[0].length;
    this.wide = Math.max(1, Math.min(44, Math.floor(760 / columns)));
    this.high = Math.max(1, Math.min(26, Math.floor(560 / rows)));
    this.canvas.width = columns * this.wide;
    this.canvas.height = rows * this.high;
    const gap = Math.min(this.wide, this.high) > 4 ? 1 : 0;
    const colours = new Map([[0, this.colour(0)], ...this.map.legend.map((entry) => [entry.cell, entry.colour])]);
    cells.forEach((row, y) => row.forEach((cell, x) => {
      pen.fillStyle = colours.get(cell);
      pen.fillRect(x * this.wide, y * this.high, this.wide - gap, this.high - gap);
    }));
    if (this.pointed) {
      pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(this.pointed[1] * this.wide, this.pointed[0] * this.high, this.wide - gap, this.high - gap);
    }
  }

  point(event) {
    if (!this.map) return;
    const box = this.canvas.getBoundingClientRect();
    const cell = [Math.floor((event.clientY - box.top) / this.high), Math.floor((event.clientX - box.left) / this.wide)];
    if (cell[0] < 0 || cell[0] >= this.map.cells.length || cell[1] < 0 || cell[1] >= this.map.cells[0].length) return;
    if (String(cell) === String(this.pointed)) return;
    this.pointed = cell;
    this.paint();
    const index = [...this.at];
    const places = this.shown.length === 2 ? cell : [cell[1]];
    this.shown.forEach((axis, which) => { index[axis] = places[which] * this.map.factors[this.shown.length === 2 ? which : 1]; });
    clearTimeout(this.waiting);
    this.waiting = setTimeout(async () => {
      try {
        const found = await get("chunk", { snapshot: this.snapshot, path: this.node.path, index: index.join(",") });
        fill(this.said, h("strong", {}, `Chunk ${index.join(", ")}`), ` ${found.kind}`, found.length !== undefined && `, ${size(found.length)}`, found.object && [" in ", h("code", {}, found.object), found.offset ? ` from byte ${number(found.offset)}` : ""]);
      } catch (error) {
        fill(this.said, error.message);
      }
    }, 60);
  }
}
