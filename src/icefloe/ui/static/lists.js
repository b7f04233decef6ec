// Long lists: rows are fetched by page and only those in sight have elements.

import { failed, fill, get, h } from "/static/dom.js";

const PAGE = 200;

// Rows of an address that answers {total, offset, rows}.
export class PagedRows {
  constructor(path, parameters = {}, first = null) {
    this.path = path;
    this.parameters = parameters;
    this.total = null;
    this.pages = new Map();
    this.waiting = new Map();
    this.onchange = () => {};
    this.onerror = () => {};
    if (first) this.take(first);
  }

  take(answer) {
    this.total = answer.total;
    this.answer = answer;
    this.pages.set(answer.offset / PAGE, answer.rows);
  }

  // The row, or undefined while it is fetched.
  row(at) {
    const page = this.pages.get(Math.floor(at / PAGE));
    if (page) return page[at % PAGE];
    this.fetch(Math.floor(at / PAGE)).catch(this.onerror);
    return undefined;
  }

  // The first of the fetched rows that fits, and its place.
  find(fits) {
    return [...this.pages.values()].flat().find(fits);
  }

  indexOf(row) {
    for (const [number, page] of this.pages) {
      const at = page.indexOf(row);
      if (at >= 0) return number * PAGE + at;
    }
    return -1;
  }

  async rowOf(at) {
    await this.fetch(Math.floor(at / PAGE));
    return this.pages.get(Math.floor(at / PAGE))[at % PAGE];
  }

  fetch(number) {
    if (this.pages.has(number)) return Promise.resolve();
    if (!this.waiting.has(number)) {
      const asked = get(this.path, { ...this.parameters, offset: number * PAGE, limit: PAGE })
        .then((answer) => { this.take(answer); this.onchange(); })
        .finally(() => this.waiting.delete(number));
      this.waiting.set(number, asked);
    }
    return this.waiting.get(number);
  }
}

// A list box. `draw(row, at)` makes the element of a row; `rows` has `total` and `row(at)`.
export class VirtualList {
  constructor({ rows, height, draw, choose, label, key = () => false }) {
    this.rows = rows;
    this.height = height;
    this.draw = draw;
    this.choose = choose;
    this.key = key;
    this.selected = -1;
    this.shown = new Map();
    this.space = h("div", { class: "space" });
    this.element = h("div", {
      class: "list", tabIndex: 0, role: "listbox", "aria-label": label,
      onscroll: () => this.render(), onkeydown: (event) => this.press(event),
    }, this.space);
    new ResizeObserver(() => {
      if (this.later !== undefined && this.element.clientHeight) this.reveal(this.later);
      else this.render();
    }).observe(this.element);
    this.listen();
  }

  listen() {
    if (!(this.rows instanceof PagedRows)) return;
    this.rows.onchange = () => this.refresh();
    this.rows.onerror = (error) => fill(this.space, failed(error, () => this.refresh()));
  }

  replace(rows) {
    this.rows = rows;
    this.listen();
    this.refresh();
  }

  refresh() {
    this.shown.clear();
    this.space.replaceChildren();
    this.render();
  }

  render() {
    const total = this.rows.total ?? 0;
    this.space.style.height = `${total * this.height}px`;
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.height) - 4);
    const last = Math.min(total, Math.ceil((this.element.scrollTop + this.element.clientHeight) / this.height) + 4);
    for (const [at, element] of this.shown) {
      if (at < first || at >= last) { element.remove(); this.shown.delete(at); }
    }
    for (let at = first; at < last; at += 1) {
      if (this.shown.has(at)) continue;
      const row = this.rows.row(at);
      const element = row === undefined ? h("div", { class: "row pending" }, h("span", { class: "bone" })) : this.draw(row, at);
      element.classList.add("row");
      element.style.transform = `translateY(${at * this.height}px)`;
      element.style.height = `${this.height}px`;
      element.setAttribute("role", "option");
      element.setAttribute("aria-selected", String(at === this.selected));
      element.addEventListener("click", () => this.select(at, true));
      this.shown.set(at, element);
      this.space.append(element);
    }
  }

  select(at, tell = false) {
    this.selected = at;
    for (const [number, element] of this.shown) element.setAttribute("aria-selected", String(number === at));
    if (tell) this.choose(this.rows.row(at), at);
  }

  reveal(at) {
    const top = at * this.height;
    const { scrollTop, clientHeight } = this.element;
    this.later = clientHeight ? undefined : at; // not on the page yet
    if (top < scrollTop || top + this.height > scrollTop + clientHeight) {
      this.element.scrollTop = Math.max(0, top - clientHeight / 3);
    }
    this.render();
  }

  press(event) {
    const total = this.rows.total ?? 0;
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -total, End: total };
    if (event.key in steps && total) {
      event.preventDefault();
      const at = Math.min(total - 1, Math.max(0, this.selected + steps[event.key]));
      this.reveal(at);
      this.select(at, true);
    } else if (this.selected >= 0 && this.key(event, this.rows.row(this.selected), this.selected)) {
      event.preventDefault();
    }
  }
}
