// Arrays that have no plane: one dimension as a curve, texts as a table, a single value.

import { empty, failed, fill, get, h, number, shown, svg } from "/static/dom.js";
import { statistics, valueText } from "/static/pictures.js";

const WIDTH = 900;
const HEIGHT = 320;

// `at` has the position along all dimensions; that of `axis`, along which values are shown, does not count.
export class LinePlot {
  constructor(node, axes, axis = 0, at = node.shape.map(() => 0)) {
    Object.assign(this, { node, axes, axis, at });
    this.element = h("div", { class: "line-plot" });
  }

  async show(snapshot) {
    this.asked = (this.asked ?? 0) + 1;
    const mine = this.asked;
    try {
      const found = await get("values", { snapshot, path: this.node.path, axes: this.node.shape.length ? this.axis : null, at: this.at.join(",") });
      if (mine !== this.asked) return;
      if (!this.node.shape.length) fill(this.element, h("p", { class: "scalar" }, valueText(found)));
      else if (!found.list.length) fill(this.element, empty("This array is empty."));
      else if (found.is_number && found.min !== null) fill(this.element, ...this.curve(found));
      else fill(this.element, this.table(found));
    } catch (error) {
      if (mine === this.asked) fill(this.element, failed(error));
    }
  }

  label(at) {
    return this.axes[this.axis]?.labels?.[at] ?? number(at);
  }

  curve(found) {
    const { list, min, max, steps, kind, units } = found;
    // Halves, because the distance of two large numbers may be infinite.
    const span = max / 2 - min / 2 || 1;
    const x = (at) => (list.length < 2 ? WIDTH / 2 : at / (list.length - 1) * WIDTH);
    const y = (value) => 8 + (HEIGHT - 16) * (1 - (value / 2 - min / 2) / span);
    let path = "";
    let pen = "M";
    list.forEach((value, at) => {
      if (typeof value !== "number") { pen = "M"; return; }
      path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    });
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "curve", role: "img", "aria-label": `Values of ${this.node.path}` },
      ...[0, 0.25, 0.5, 0.75, 1].map((part) => svg("path", { d: `M0 ${8 + (HEIGHT - 16) * part}H${WIDTH}`, class: "grid" })),
      svg("path", { d: path, class: "trace" }),
      list.length <= 80 ? svg("path", { d: list.map((value, at) => (typeof value === "number" ? `M${x(at)} ${y(value)}h0` : "")).join(""), class: "points" }) : "");
    const said = h("p", { class: "pointed" });
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const at = Math.round((event.clientX - box.left) / box.width * (list.length - 1));
      const index = Math.max(0, Math.min(list.length - 1, at)) * steps[0];
      fill(said, h("strong", {}, shown(list[Math.max(0, Math.min(list.length - 1, at))], found, 7)), ` at ${this.label(index)}`, h("span", { class: "muted" }, ` [${index}]`));
    });
    const last = (list.length - 1) * steps[0];
    return [
      h("div", { class: "curve-box" },
        h("div", { class: "ruler down" }, h("div", { class: "ends" }, [max, min / 2 + max / 2, min].map((value) => h("span", {}, shown(value, { kind }))))),
        picture,
        h("div", { class: "ruler across" }, h("div", { class: "ends" }, [0, Math.floor(last / 2), last].map((at) => h("span", {}, this.label(at)))))),
      h("p", { class: "plane-facts muted" }, `${statistics(found)}${units ? ` · ${units}` : ""}${steps[0] > 1 ? ` · every ${number(steps[0])}th value` : ""}`),
      said,
    ];
  }

  table({ list, total }) {
    const rows = list.map((value, at) => h("tr", {}, h("td", { class: "muted" }, number(at)), h("td", {}, value === null ? "–" : String(value))));
    return h("div", { class: "table-box" }, h("table", { class: "values" }, h("tbody", {}, rows)), total > list.length && h("p", { class: "muted" }, `… ${number(total - list.length)} more`));
  }
}
