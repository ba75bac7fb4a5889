"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // ---- scaling: curves on two logarithmic axes, drawn at the width there is

  const scalingBox = document.getElementById("scaling-chart");
  const chosen = new Set();

  const curveColour = (curve) => `var(--m${Math.min(curve.colour, 6)})`;

  function drawScaling() {
    const { ranks, curves, here } = data.scaling;
    const times = curves.flatMap((curve) => curve.points.map((point) => point[1])).filter((value) => value > 0);
    scalingBox.replaceChildren();
    if (!times.length) { scalingBox.textContent = "Nothing could be predicted at other sizes."; return; }
    const width = scalingBox.clientWidth, height = width < 560 ? 300 : 380;
    const left = 62, right = width < 560 ? 14 : 104, top = 12, bottom = 46;
    const low = Math.min(...times) / 1.25, high = Math.max(...times) * 1.25;
    const first = Math.log2(ranks[0]), last = Math.max(Math.log2(ranks.at(-1)), first + 1e-9);
    const x = (k) => left + (width - left - right) * (ranks.length > 1 ? (Math.log2(k) - first) / (last - first) : 0.5);
    const y = (s) => top + (height - top - bottom) * (Math.log(high / s) / Math.log(high / low));
    const svg = add(scalingBox, "svg", { width, height, "aria-hidden": "true" });
    for (const value of ticks(low, high)) {
      add(svg, "line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" });
      add(svg, "text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, seconds(value));
    }
    let lastLabel = -Infinity;
    for (const k of ranks) {
      add(svg, "line", { x1: x(k), x2: x(k), y1: top, y2: height - bottom, class: "grid", "stroke-width": k === here ? 3 : 1 });
      if (x(k) - lastLabel > 18) { add(svg, "text", { x: x(k), y: height - bottom + 18, "text-anchor": "middle" }, k); lastLabel = x(k); }
    }
    add(svg, "text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, `devices (the wide line is this report's ${here})`);
    for (const curve of curves) drawCurve(svg, curve, x, y);
    if (width >= 560) labelEnds(svg, curves, x, y, height - bottom);
  }

  function drawCurve(svg, curve, x, y) {
    const faded = chosen.size > 0 && !chosen.has(curve.method);
    const group = add(svg, "g", { class: faded ? "faded" : "" });
    const stroke = { stroke: curveColour(curve), "stroke-width": 2 };
    const points = curve.points.filter((point) => point[1] > 0);
    const path = points.map(([k, s], i) => `${i ? "L" : "M"}${x(k)},${y(s)}`).join("");
    add(group, "path", { d: path, fill: "none", "stroke-dasharray": DASHES[curve.dash % DASHES.length], ...stroke });
    for (const [k, s, fits] of points) {
      const dot = add(group, "circle", { cx: x(k), cy: y(s), r: 4, fill: fits ? curveColour(curve) : "var(--card)", ...stroke });
      add(dot, "title", {}, `${curve.method} on ${k}: ${seconds(s)}${fits ? "" : ", does not fit"}`);
    }
  }

  function labelEnds(svg, curves, x, y, floor) {
    const ends = curves.filter((curve) => curve.points.length).map((curve) => ({ curve, point: curve.points.at(-1) }));
    for (const k of new Set(ends.map((end) => end.point[0]))) {
      const mine = ends.filter((end) => end.point[0] === k).sort((a, b) => b.point[1] - a.point[1]);
      let above = -Infinity;
      const placed = mine.map((end) => { above = Math.max(y(end.point[1]), above + 13); return above; });
      const excess = Math.max(0, placed.at(-1) - floor);
      mine.forEach(({ curve, point }, i) => {
        const label = add(svg, "text", { x: x(point[0]) + 9, y: placed[i] + 4 - excess }, curve.method);
        label.style.fill = curveColour(curve);
      });
    }
  }

  function scalingLegend() {
    const list = document.getElementById("scaling-legend");
    for (const curve of data.scaling.curves) {
      const item = document.createElement("li"), button = document.createElement("button");
      const sample = add(button, "svg", { width: 26, height: 10, "aria-hidden": "true" });
      add(sample, "line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: curveColour(curve), "stroke-width": 3, "stroke-dasharray": DASHES[curve.dash % DASHES.length] });
      button.type = "button";
      button.append(curve.method);
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => {
        if (!chosen.delete(curve.method)) chosen.add(curve.method);
        button.setAttribute("aria-pressed", String(chosen.has(curve.method)));
        drawScaling();
      });
      item.append(button);
      list.append(item);
    }
  }

  if (scalingBox) {
    scalingLegend();
    new ResizeObserver(drawScaling).observe(scalingBox);
  }

  // ---- timelines: a canvas whose window of time is zoomed and panned; only what is in the window is looked at

  const ROW = 20, AXIS = 30;

  class Timeline {
    constructor(article) {
      this.article = article;
      this.canvas = article.querySelector("canvas");
      this.tip = article.querySelector(".tip");
      this.told = article.querySelector(".details");
      this.range = article.querySelector(".range");
      Object.assign(this, data.timelines[article.dataset.timeline]);
      for (const row of this.rows) {
        let at = 0;
        row.from = row.start.map((step) => (at += step));
      }
      const ends = this.ends.slice(-3); // two whole epochs, or what there is
      this.from = ends.length > 2 ? ends[0][1] : 0;
      this.to = this.end || 1;
      this.selected = null;
      this.pointers = new Map();
      this.listen();
      new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    }

    get gutter() { return this.width < 560 ? 84 : 118; }
    x(t) { return this.gutter + (t - this.from) / (this.to - this.from) * (this.width - this.gutter); }
    time(x) { return this.from + (x - this.gutter) / (this.width - this.gutter) * (this.to - this.from); }

    show(from, to) {
      const length = Math.min(Math.max(to - from, 10), this.end || 1);
      this.from = Math.min(Math.max(from, 0), (this.end || 1) - length);
      this.to = this.from + length;
      this.hide();
      if (!this.waiting) {
        this.waiting = true;
        requestAnimationFrame(() => { this.waiting = false; this.draw(); });
      }
    }

    zoom(factor, at) {
      const middle = at ?? (this.selected ? this.middle(this.selected) : (this.from + this.to) / 2);
      const pin = middle >= this.from && middle <= this.to ? middle : (this.from + this.to) / 2;
      this.show(pin - (pin - this.from) / factor, pin + (this.to - pin) / factor);
    }

    pan(share) {
      const step = (this.to - this.from) * share;
      this.show(this.from + step, this.to + step);
    }

    draw() {
      const canvas = this.canvas, ratio = window.devicePixelRatio || 1;
      this.width = canvas.parentElement.clientWidth;
      if (!this.width) return;
      const height = this.rows.length * ROW + AXIS;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(height * ratio);
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      pen.font = `11px ${colour("sans")}`;
      pen.textBaseline = "middle";
      this.ink = { ink: colour("ink"), soft: colour("soft"), line: colour("line"), card: colour("card") };
      const palette = { compute: "compute", exchange: "exposed_comm", reduce: "reduce", store: "store", sample: "sample", barrier: "barrier" };
      this.fills = this.classes.map((name) => colour(palette[name]));
      this.drawAxis(pen, height);
      this.rows.forEach((row, place) => this.drawRow(pen, row, place));
      this.drawGutter(pen, height);
      const times = `${seconds(this.from / 1e9)} – ${seconds(this.to / 1e9)}`;
      this.range.textContent = `${times} · ${digits((this.end || 1) / (this.to - this.from))}×`;
      canvas.dataset.from = this.from;
      canvas.dataset.to = this.to;
    }

    drawAxis(pen, height) {
      const span = this.to - this.from, room = Math.max(2, (this.width - this.gutter) / 110);
      const power = 10 ** Math.floor(Math.log10(span / room));
      const step = power * ([1, 2, 5, 10].find((lead) => span / (power * lead) <= room) ?? 10);
      pen.fillStyle = this.ink.soft;
      pen.strokeStyle = this.ink.line;
      pen.textAlign = "center";
      for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
        pen.beginPath();
        pen.moveTo(this.x(t), 0);
        pen.lineTo(this.x(t), height - AXIS + 4);
        pen.stroke();
        const half = pen.measureText(axisLabel(t, step)).width / 2 + 2;
        const x = Math.min(Math.max(this.x(t), this.gutter + half), this.width - half);
        pen.fillText(axisLabel(t, step), x, height - AXIS + 12);
      }
      pen.setLineDash([3, 3]);
      pen.strokeStyle = this.ink.soft;
      let before = -Infinity;
      for (const [epoch, t] of this.ends) {
        const x = this.x(t);
        if (t < this.from || t > this.to || x - before < 5) continue;
        pen.beginPath();
        pen.moveTo(x, 0);
        pen.lineTo(x, height - AXIS);
        pen.stroke();
        if (x - Math.max(before, this.gutter) > 64) { pen.textAlign = "right"; pen.fillText(`epoch ${epoch} ▸`, x, height - AXIS + 24); before = x; }
      }
      pen.setLineDash([]);
    }

    drawRow(pen, row, place) {
      const top = place * ROW + 2;
      let edge = -Infinity;
      for (let i = firstVisible(row, this.from); i < row.from.length && row.from[i] <= this.to; i += 1) {
        const start = Math.max(this.x(row.from[i]), this.gutter);
        const end = Math.min(this.x(row.from[i] + row.length[i]), this.width);
        if (end < edge + 0.4) continue; // nothing that would be seen beside what is drawn already
        pen.fillStyle = this.fills[row.op[i]];
        pen.globalAlpha = row.epoch[i] % 2 ? 0.72 : 1;
        pen.fillRect(start, top, Math.max(end - start, 0.7), ROW - 4);
        pen.globalAlpha = 1;
        edge = end;
        if (end - start > 34) this.drawLabel(pen, this.ops[row.op[i]], start, end, top);
      }
      const chosen = this.selected;
      if (chosen && chosen.place === place) {
        pen.strokeStyle = this.ink.ink;
        pen.lineWidth = 2;
        const x = this.x(row.from[chosen.i]);
        pen.strokeRect(x, top - 1, Math.max(this.x(row.from[chosen.i] + row.length[chosen.i]) - x, 2), ROW - 2);
        pen.lineWidth = 1;
      }
    }

    drawLabel(pen, text, start, end, top) {
      pen.fillStyle = "#10141a";
      pen.textAlign = "left";
      if (pen.measureText(text).width < end - start - 6) pen.fillText(text, start + 4, top + ROW / 2 - 2);
    }

    drawGutter(pen, height) {
      pen.fillStyle = this.ink.card;
      pen.fillRect(0, 0, this.gutter - 2, height);
      pen.textAlign = "left";
      this.rows.forEach((row, place) => {
        const first = place === 0 || this.rows[place - 1].rank !== row.rank;
        pen.fillStyle = first ? this.ink.ink : this.ink.soft;
        const rank = this.width < 560 ? `r${row.rank}` : `rank ${row.rank}`;
        if (first) pen.fillText(rank, 8, place * ROW + ROW / 2);
        pen.fillStyle = this.ink.soft;
        pen.fillText(row.lane, this.width < 560 ? 30 : 60, place * ROW + ROW / 2);
        if (first && place) {
          pen.strokeStyle = this.ink.line;
          pen.beginPath();
          pen.moveTo(0, place * ROW + 0.5);
          pen.lineTo(this.width, place * ROW + 0.5);
          pen.stroke();
        }
      });
    }

    // ---- which span, and what is said about it

    at(x, y) {
      const place = Math.floor(y / ROW), row = this.rows[place];
      if (!row || x < this.gutter) return null;
      const near = 3 / (this.width - this.gutter) * (this.to - this.from), t = this.time(x);
      let best = null, distance = near;
      for (let i = firstVisible(row, t - near); i < row.from.length && row.from[i] <= t + near; i += 1) {
        const off = Math.max(row.from[i] - t, t - row.from[i] - row.length[i], 0);
        if (off <= distance) { best = { place, i }; distance = off; if (off === 0) break; }
      }
      return best;
    }

    middle({ place, i }) {
      const row = this.rows[place];
      return row.from[i] + row.length[i] / 2;
    }

    describe({ place, i }) {
      const row = this.rows[place], op = row.op[i];
      const bytes = row.bytes[i] ? `, ${size(row.bytes[i])}` : "";
      return `${this.ops[op]} (${this.kinds[op]}), epoch ${row.epoch[i]}, rank ${row.rank} ${row.lane} lane: ` +
        `${seconds(row.length[i] / 1e9)} from ${seconds(row.from[i] / 1e9)}${bytes}`;
    }

    hover(found, x, y) {
      if (!found) { this.hide(); return; }
      this.tip.textContent = this.describe(found);
      this.tip.hidden = false;
      const wide = Math.min(280, this.width - 16);
      this.tip.style.left = `${Math.max(8, Math.min(x + 12, this.width - wide - 8))}px`;
      this.tip.style.top = `${y + 18}px`;
    }

    hide() { this.tip.hidden = true; }

    select(found) {
      this.selected = found;
      this.told.textContent = found ? this.describe(found) : "";
      if (found) {
        const row = this.rows[found.place], t = row.from[found.i], length = this.to - this.from;
        if (t + row.length[found.i] < this.from || t > this.to) this.show(t - length / 2, t + length / 2);
      }
      this.draw();
    }

    step(by) {
      const now = this.selected ?? this.nearest(0);
      if (!now) return;
      const i = this.selected ? now.i + by : now.i;
      if (i >= 0 && i < this.rows[now.place].from.length) this.select({ place: now.place, i });
    }

    lane(by) {
      const place = this.selected ? this.selected.place + by : 0;
      if (place >= 0 && place < this.rows.length) this.select(this.nearest(place));
    }

    nearest(place) {
      const row = this.rows[place];
      if (!row) return null;
      const t = this.selected ? this.middle(this.selected) : (this.from + this.to) / 2;
      return { place, i: Math.min(firstVisible(row, t), row.from.length - 1) };
    }

    // ---- hands and keys

    listen() {
      const canvas = this.canvas;
      canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      canvas.addEventListener("pointerdown", (event) => this.down(event));
      canvas.addEventListener("pointermove", (event) => this.move(event));
      for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.up(event));
      canvas.addEventListener("pointerleave", () => this.hide());
      canvas.addEventListener("keydown", (event) => this.key(event));
      this.article.querySelector(".tools").addEventListener("click", (event) => {
        const name = event.target.dataset.do;
        if (name) this.acts[name]();
      });
    }

    acts = {
      in: () => this.zoom(1.6), out: () => this.zoom(1 / 1.6), left: () => this.pan(-0.2), right: () => this.pan(0.2),
      all: () => this.show(0, this.end),
    };

    keys = {
      "+": this.acts.in, "=": this.acts.in, "-": this.acts.out, "_": this.acts.out, "−": this.acts.out, "0": this.acts.all,
      ArrowLeft: this.acts.left, ArrowRight: this.acts.right, ArrowUp: () => this.lane(-1), ArrowDown: () => this.lane(1),
      Home: () => this.show(0, this.to - this.from), End: () => this.show(this.end - (this.to - this.from), this.end),
      Enter: () => this.zoomToSelected(), Escape: () => this.select(null),
      "Shift+ArrowLeft": () => this.step(-1), "Shift+ArrowRight": () => this.step(1),
    };

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const name = event.shiftKey && event.key.startsWith("Arrow") ? `Shift+${event.key}` : event.key;
      const act = this.keys[name];
      if (act) { event.preventDefault(); act(); }
    }

    zoomToSelected() {
      if (!this.selected) return;
      const row = this.rows[this.selected.place], start = row.from[this.selected.i], length = row.length[this.selected.i] || 10;
      this.show(start - length, start + 2 * length);
    }

    wheel(event) {
      const wanted = event.ctrlKey || event.metaKey || document.activeElement === this.canvas;
      if (!wanted) return; // a page that is scrolled past must not stop here
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / this.width);
      else this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), this.time(event.offsetX));
    }

    down(event) {
      this.canvas.focus({ preventScroll: true });
      this.pointers.set(event.pointerId, { x: event.offsetX, moved: 0 });
      this.canvas.setPointerCapture(event.pointerId);
      this.canvas.classList.add("dragging");
    }

    move(event) {
      const mine = this.pointers.get(event.pointerId);
      if (!mine) { this.hover(this.at(event.offsetX, event.offsetY), event.offsetX, event.offsetY); return; }
      const others = [...this.pointers.values()].filter((one) => one !== mine);
      const step = event.offsetX - mine.x;
      if (others.length) {
        const before = Math.abs(mine.x - others[0].x), after = Math.abs(event.offsetX - others[0].x);
        if (before > 4 && after > 4) this.zoom(after / before, this.time(others[0].x));
      } else this.pan(-step / (this.width - this.gutter));
      mine.x = event.offsetX;
      mine.moved += Math.abs(step);
    }

    up(event) {
      const mine = this.pointers.get(event.pointerId);
      this.pointers.delete(event.pointerId);
      this.canvas.classList.remove("dragging");
      if (mine && mine.moved < 4 && event.type === "pointerup") this.select(this.at(event.offsetX, event.offsetY));
    }
  }

  function firstVisible(row, t) {
    // spans of a lane do not overlap, so their ends are sorted as their starts are
    let low = 0, high = row.from.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.from[middle] + row.length[middle] < t) low = middle + 1; else high = middle;
    }
    return low;
  }

  function axisLabel(t, step) {
    const [unit, scale] = step >= 1e8 ? ["s", 1e9] : step >= 1e5 ? ["ms", 1e6] : step >= 1e2 ? ["µs", 1e3] : ["ns", 1];
    const decimals = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
    return `${(t / scale).toFixed(decimals)} ${unit}`;
  }

  const made = new Map();
  const articles = [...document.querySelectorAll(".timeline")];

  function pick(name) {
    for (const article of articles) {
      article.hidden = article.dataset.timeline !== name;
      if (!article.hidden && !made.has(name)) made.set(name, new Timeline(article));
    }
  }

  const choice = document.getElementById("pick");
  choice.addEventListener("change", () => pick(choice.value));
  if (choice.value) pick(choice.value);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => made.forEach((one) => one.draw()));
})();
