// A picture of a plane of an array: which dimensions, where along the others, in which colours.

import { apiAddress, failed, fill, get, getPicture, h, number, shortUnits, shown, svg } from "/static/dom.js";

const SCALES = ["ice", "ember", "grey"];

// What pictures side by side share: axes, position, window, colours. `onchange` is called on each.
export class PlaneControls {
  constructor(node, axes, onchange, kept = {}) {
    this.node = node;
    this.axes = axes;
    this.onchange = onchange;
    const ndim = node.shape.length;
    this.shown = kept.shown?.every((axis) => axis < ndim) ? kept.shown : defaultAxes(axes);
    this.at = node.shape.map((length, axis) => Math.min(kept.at?.[axis] ?? 0, Math.max(0, length - 1)));
    this.window = null;
    this.scale = kept.scale ?? "ice";
    this.low = this.high = null;
    this.flip = Boolean(axes[this.shown[0]].upside_down);
    this.bar = h("div", { class: "toolbar" });
    this.sliders = h("div", { class: "sliders" });
    this.draw();
  }

  get kept() {
    return { shown: this.shown, at: this.at, scale: this.scale };
  }

  parameters(snapshot) {
    return {
      snapshot, path: this.node.path, axes: this.shown.join(","), at: this.at.join(","),
      window: this.window?.join(","), most: 768, flip: this.flip ? 1 : null,
    };
  }

  name(axis) {
    return this.axes[axis].name ?? `dimension ${axis}`;
  }

  label(axis, at) {
    const { labels, units } = this.axes[axis];
    if (!labels?.[at]) return number(at);
    return units ? `${labels[at]} ${shortUnits(units)}` : labels[at];
  }

  // First and last index that the picture shows along its down (0) or across (1) axis.
  extent(which) {
    return this.window ? [this.window[2 * which], this.window[2 * which + 1]] : [0, this.node.shape[this.shown[which]]];
  }

  draw() {
    const choose = (which, label) => h("label", {}, label, h("select", {
      "aria-label": label,
      onchange: (event) => this.choose(which, Number(event.target.value)),
    }, this.axes.map((_, axis) => h("option", { value: axis, selected: axis === this.shown[which] }, this.name(axis)))));
    const limit = (which, label) => h("input", {
      type: "number", step: "any", placeholder: label, title: `${label} of the colours; empty for that of the picture`, "aria-label": label,
      onchange: (event) => { this[which] = event.target.value === "" ? null : Number(event.target.value); this.onchange(); },
    });
    fill(this.bar,
      choose(0, "Y axis"), choose(1, "X axis"),
      h("label", {}, "Colours", h("select", { "aria-label": "Colours", onchange: (event) => { this.scale = event.target.value; this.onchange(); } },
        SCALES.map((name) => h("option", { value: name, selected: name === this.scale }, name)))),
      limit("low", "lowest"), limit("high", "highest"),
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: this.flip, onchange: (event) => { this.flip = event.target.checked; this.onchange(); } }), "Flip"),
      this.whole = h("button", { type: "button", hidden: true, onclick: () => this.zoom(null) }, "Whole plane"));
    fill(this.sliders, this.node.shape.map((length, axis) => (this.shown.includes(axis) || length < 2 ? null : this.slider(axis, length))));
  }

  slider(axis, length) {
    const value = h("span", { class: "slider-value" });
    const say = () => fill(value, this.label(axis, this.at[axis]), h("span", { class: "muted" }, ` ${number(this.at[axis] + 1)} of ${number(length)}`));
    say();
    return h("label", { class: "slider" }, h("span", { class: "slider-name" }, this.name(axis)),
      h("input", { type: "range", min: 0, max: length - 1, value: this.at[axis], "aria-label": this.name(axis), oninput: (event) => { this.at[axis] = Number(event.target.value); say(); this.onchange(); } }), value);
  }

  choose(which, axis) {
    const other = 1 - which;
    if (this.shown[other] === axis) this.shown[other] = this.shown[which];
    this.shown[which] = axis;
    this.flip = Boolean(this.axes[this.shown[0]].upside_down);
    this.window = null;
    this.draw();
    this.onchange();
  }

  zoom(window) {
    this.window = window;
    this.whole.hidden = window === null;
    this.onchange();
  }
}

// The answer of `values` at one place.
export function valueText(found) {
  return found.value === null ? "missing" : shown(found.value, found, 7);
}

export function statistics({ min, mean, max, values, infinite, total, kind }) {
  const parts = [["min", min], ["mean", mean], ["max", max]].map(([name, value]) => `${name} ${shown(value, { kind })}`);
  if (infinite) parts.push(`${number(infinite)} infinite`);
  if (total > values) parts.push(`${number(total - values)} of ${number(total)} without a value`);
  return parts.join(" · ");
}

function defaultAxes(axes) {
  return [axes.length - 2, axes.length - 1];
}

// One picture. `source(parameters)` says which address and parameters it has.
export class PlaneImage {
  constructor(controls, { address, parameters, title = "", scale = () => controls.scale, overlay = () => [], readOut = (at) => this.value(at) }) {
    Object.assign(this, { controls, address, parameters, scale, overlay, readOut });
    this.image = h("img", { alt: title, ondragstart: (event) => event.preventDefault() });
    this.marks = svg("svg", { class: "marks", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.frame = h("div", { class: "frame" }, this.image, this.marks);
    this.down = h("div", { class: "ruler down" });
    this.across = h("div", { class: "ruler across" });
    this.bar = h("div", { class: "colourbar" });
    this.facts = h("p", { class: "plane-facts muted" });
    this.pointed = h("p", { class: "pointed" });
    this.element = h("figure", { class: "plane" }, title && h("figcaption", {}, title),
      h("div", { class: "plot" }, this.down, this.frame, this.across), this.bar, this.facts, this.pointed);
    this.asked = null;
    this.waits = false;
    this.onpick = () => {};
    this.follow();
  }

  // Only the newest picture counts: while one is fetched, the next waits, those between are skipped.
  async show(snapshot) {
    this.snapshot = snapshot;
    if (this.asked) { this.waits = true; return; }
    this.asked = new AbortController();
    const slow = setTimeout(() => this.frame.classList.add("busy"), 150);
    try {
      const { about, blob } = await getPicture(this.address, this.parameters(snapshot), this.asked.signal);
      this.draw(about, blob);
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error);
    } finally {
      clearTimeout(slow);
      this.frame.classList.remove("busy");
      this.asked = null;
      if (this.waits) { this.waits = false; this.show(this.snapshot); }
    }
  }

  fail(error) {
    this.about = null;
    fill(this.facts);
    fill(this.bar);
    this.image.removeAttribute("src");
    fill(this.pointed, failed(error));
    this.element.classList.add("without");
  }

  draw(about, blob) {
    const old = this.image.src;
    this.about = about;
    this.element.classList.remove("without");
    this.image.src = URL.createObjectURL(blob);
    if (old) URL.revokeObjectURL(old);
    const [rows, columns] = about.window.map(([first, last]) => last - first);
    this.frame.style.aspectRatio = String(Math.min(3.2, Math.max(0.45, columns / rows)));
    this.element.style.setProperty("--ratio", String(Math.min(3.2, Math.max(0.45, columns / rows))));
    this.rulers();
    const { kind, units } = about;
    fill(this.bar, h("span", {}, shown(about.low, { kind })), h("img", { src: apiAddress("scale", { scale: this.scale() }), alt: "" }), h("span", {}, shown(about.high, { kind })), h("span", { class: "muted" }, units ?? ""));
    const coarse = about.steps.some((step) => step > 1) ? ` · every ${about.steps.map(number).join(" × ")}th value` : "";
    this.facts.textContent = `${statistics(about)}${coarse}`;
    fill(this.pointed);
    this.marks.setAttribute("viewBox", `0 0 ${columns} ${rows}`);
    fill(this.marks, ...this.overlay(this));
    this.element.dataset.drawn = String(Number(this.element.dataset.drawn ?? 0) + 1);
  }

  rulers() {
    const { controls } = this;
    const ends = (which) => {
      const [first, last] = controls.extent(which);
      const axis = controls.shown[which];
      const points = [first, Math.floor((first + last - 1) / 2), last - 1].map((at) => h("span", {}, controls.label(axis, at)));
      return which === 0 && controls.flip ? points.reverse() : points;
    };
    fill(this.down, h("div", { class: "ends" }, ends(0)), h("div", { class: "axis-name" }, controls.name(controls.shown[0])));
    fill(this.across, h("div", { class: "ends" }, ends(1)), h("div", { class: "axis-name" }, controls.name(controls.shown[1])));
  }

  // The index under the mouse, along both axes.
  index(event) {
    const box = this.image.getBoundingClientRect();
    const part = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
    if (this.controls.flip) part[0] = 1 - part[0];
    return part.map((fraction, which) => {
      const [first, last] = this.controls.extent(which);
      return Math.min(last - 1, Math.max(first, first + Math.floor(fraction * (last - first))));
    });
  }

  follow() {
    let from = null;
    const band = h("div", { class: "band", hidden: true });
    this.frame.append(band);
    this.frame.addEventListener("pointerdown", (event) => { if (this.about) { from = event; this.frame.setPointerCapture(event.pointerId); } });
    this.frame.addEventListener("pointermove", (event) => {
      if (!this.about) return;
      if (!from) { this.point(event); return; }
      const box = this.frame.getBoundingClientRect();
      band.hidden = false;
      Object.assign(band.style, {
        left: `${Math.min(from.clientX, event.clientX) - box.left}px`, top: `${Math.min(from.clientY, event.clientY) - box.top}px`,
        width: `${Math.abs(from.clientX - event.clientX)}px`, height: `${Math.abs(from.clientY - event.clientY)}px`,
      });
    });
    this.frame.addEventListener("pointerup", (event) => {
      const start = from;
      from = null;
      band.hidden = true;
      if (!start) return;
      if (Math.hypot(event.clientX - start.clientX, event.clientY - start.clientY) < 6) {
        if (event.pointerType === "touch") this.point(event); // a finger does not hover
        this.onpick(this.position(event));
        return;
      }
      const [one, other] = [this.index(start), this.index(event)];
      this.controls.zoom([0, 1].flatMap((which) => [Math.min(one[which], other[which]), Math.max(one[which], other[which]) + 1]));
    });
    this.frame.addEventListener("pointercancel", () => { from = null; band.hidden = true; }); // the finger scrolls the page
    this.frame.addEventListener("dblclick", () => this.controls.zoom(null));
  }

  // The position under the mouse along all dimensions.
  position(event) {
    const at = [...this.controls.at];
    this.index(event).forEach((number_, which) => { at[this.controls.shown[which]] = number_; });
    return at;
  }

  where(at) {
    return this.controls.shown.map((axis) => `${this.controls.name(axis)} ${this.controls.label(axis, at[axis])}`).join(", ");
  }

  async value(at) {
    return valueText(await get("values", { snapshot: this.snapshot, path: this.controls.node.path, at: at.join(",") }));
  }

  point(event) {
    const at = this.position(event);
    const where = this.where(at);
    clearTimeout(this.waiting);
    this.waiting = setTimeout(async () => {
      try {
        fill(this.pointed, h("strong", {}, await this.readOut(at)), ` at ${where}`, h("span", { class: "muted" }, ` [${at.join(", ")}]`));
      } catch (error) {
        fill(this.pointed, error.message);
      }
    }, 60);
  }
}
