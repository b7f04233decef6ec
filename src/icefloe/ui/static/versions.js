// The slider over history: one line of snapshots, the oldest at the left.

import { ago, fill, firstLine, get, h, short, time } from "/static/dom.js";
import { PagedRows } from "/static/lists.js";

export class VersionSlider {
  constructor(app) {
    this.app = app;
    this.input = h("input", { type: "range", min: 0, max: 0, step: 1, class: "versions", "aria-label": "Version", oninput: () => this.slide() });
    this.shown = h("span", { class: "slider-value" });
    this.name = h("span", { class: "slider-name" }, "version");
    this.element = h("label", { class: "slider version-slider" }, this.name, this.input, this.shown);
    this.moves = 0;
  }

  async show(snapshot) {
    this.moves += 1;
    const mine = this.moves;
    const found = await get("line-of", { snapshot });
    if (mine !== this.moves) return;
    if (this.tip !== found.tip) {
      this.tip = found.tip;
      this.rows = new PagedRows("line", { snapshot: found.tip });
    }
    this.total = found.total;
    this.input.max = found.total - 1;
    this.input.value = found.total - 1 - found.at;
    this.input.disabled = found.total < 2;
    this.say(await this.rows.rowOf(found.at), found.at);
  }

  say(row, at) {
    fill(this.shown, h("code", {}, short(row.id)), ` ${firstLine(row.message)} `, h("span", { class: "muted" }, `${this.total - at} of ${this.total}, ${ago(row.time)}`));
    this.shown.title = time(row.time);
  }

  async slide() {
    this.moves += 1;
    const mine = this.moves;
    const at = this.total - 1 - Number(this.input.value);
    const row = await this.rows.rowOf(at);
    if (mine !== this.moves) return;
    this.say(row, at);
    this.app.go({ snapshot: row.id }, { keep: true });
  }
}

// The next older (1) or newer (-1) snapshot of the line; null at its end.
export async function neighbour(snapshot, offset) {
  const { tip, at, total } = await get("line-of", { snapshot });
  if (at + offset < 0 || at + offset >= total) return null;
  return (await get("line", { snapshot: tip, offset: at + offset, limit: 1 })).rows[0].id;
}
