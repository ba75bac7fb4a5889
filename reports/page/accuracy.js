"use strict";
(() => {
  const { runs, groups } = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = 7, EPOCH = "epoch_s", MOST_ROWS = 300;
  const PARTS = {
    compute_s: "compute", comm_s: "exposed_comm", graph_comm_s: "exposed_comm", layer_comm_s: "store", reduce_s: "reduce",
    optim_s: "reduce", bubble_s: "bubble", imbalance_s: "wait", other_s: "barrier",
  };
  const byId = (id) => document.getElementById(id);
  const digits = (value) => String(Number(value.toPrecision(3)));
  const errorOf = (row) => row[2] / row[1] - 1;
  const signed = (error) => `${error >= 0 ? "+" : "−"}${Math.abs(100 * error).toFixed(0)} %`;
  let chosen = null;

  function make(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function add(parent, tag, attributes, text) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  function label(run) {
    const { dataset, model, layers, hidden, gpus, method } = run.place;
    return `${dataset} ${model || ""} ${layers ? `${layers} × ${hidden}` : ""} ${method} on ${gpus}`.replace(/ +/g, " ");
  }

  // ---- predicted over measured

  const colourOf = (k, of) => (of <= COLOURS ? `var(--m${k})` : `hsl(${Math.round(360 * k / of)} 62% ${k % 2 ? 50 : 60}%)`);

  function points() {
    const metric = byId("metric").value, half = byId("half").value, axis = groups.indexOf(byId("colour").value);
    const found = [];
    runs.forEach((run, number) => {
      if ((half === "in" && !run.in_sample) || (half === "out" && run.in_sample)) return;
      for (const row of run.rows) {
        if (row[0] === metric && row[1] > 0 && row[2] > 0) found.push({ run, number, row, group: run.groups[axis] });
      }
    });
    return found;
  }

  function ticks(low, high) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) found.push(10 ** power);
    const inside = found.filter((value) => value >= low && value <= high);
    return inside.length > 8 ? inside.filter((_, k) => k % 2 === 0) : inside;
  }

  function draw() {
    const box = byId("scatter"), found = points(), names = [...new Set(found.map((one) => one.group))].sort();
    box.replaceChildren();
    byId("legend").replaceChildren(...names.map((name, k) => {
      const mark = make("span", { class: "swatch", style: `background:${colourOf(k, names.length)}` });
      return make("li", {}, mark, `${name} (${found.filter((one) => one.group === name).length})`);
    }));
    if (!found.length) { box.textContent = "No such rows."; return; }
    const values = found.flatMap((one) => [one.row[1], one.row[2]]);
    const low = Math.min(...values) / 1.3, high = Math.max(...values) * 1.3;
    const width = box.clientWidth, height = Math.min(560, Math.max(320, width * 0.7));
    const left = 58, right = 14, top = 14, bottom = 44;
    const x = (value) => left + (width - left - right) * Math.log(value / low) / Math.log(high / low);
    const y = (value) => height - bottom - (height - top - bottom) * Math.log(value / low) / Math.log(high / low);
    const svg = add(box, "svg", { width, height });
    const aim = [[low, 1.2], [high / 1.2, 1.2], [high, 1], [high, 0.8], [low / 0.8, 0.8], [low, 1]];
    add(svg, "polygon", { class: "aim", points: aim.map(([at, factor]) => `${x(at)},${y(Math.max(low, at * factor))}`).join(" ") });
    for (const value of ticks(low, high)) {
      add(svg, "line", { x1: x(value), x2: x(value), y1: top, y2: height - bottom, class: "grid" });
      add(svg, "line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" });
      add(svg, "text", { x: x(value), y: height - bottom + 17, "text-anchor": "middle" }, digits(value));
      add(svg, "text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, digits(value));
    }
    add(svg, "line", { x1: x(low), y1: y(low), x2: x(high), y2: y(high), class: "even" });
    const unit = found[0].row[3];
    add(svg, "text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, `measured, ${unit}`);
    add(svg, "text", { x: -(top + height - bottom) / 2, y: 13, "text-anchor": "middle", transform: "rotate(-90)" }, `predicted, ${unit}`);
    for (const one of found) {
      const colour = colourOf(names.indexOf(one.group), names.length);
      const inside = one.run.in_sample ? "inside" : "";
      const said = `${label(one.run)}: measured ${digits(one.row[1])} ${one.row[3]}, predicted ${digits(one.row[2])}, ${signed(errorOf(one.row))}`;
      const dot = add(svg, "circle", { cx: x(one.row[1]), cy: y(one.row[2]), r: 4.5, class: inside, fill: colour, stroke: colour, tabindex: -1 });
      add(dot, "title", {}, said);
      if (one.number === chosen) dot.classList.add("chosen");
      dot.addEventListener("click", () => choose(one.number));
    }
  }

  // ---- one run

  function bars(run, column, name) {
    const parts = run.rows.filter((row) => PARTS[row[0]] && !(row[0] === "comm_s" && run.rows.some((other) => other[0] === "graph_comm_s")));
    if (parts.length < 2) return [];
    const longest = Math.max(...[1, 2].map((k) => parts.reduce((sum, row) => sum + row[k], 0)));
    const bar = make("span", { class: "bar" });
    for (const row of parts) {
      const segment = make("i", { class: PARTS[row[0]], title: `${row[0]}: ${digits(row[column])} ${row[3]}` });
      segment.style.width = `${100 * row[column] / longest}%`;
      if (PARTS[row[0]] === "store" || PARTS[row[0]] === "barrier") segment.style.background = `var(--${PARTS[row[0]]})`;
      bar.append(segment);
    }
    const sum = parts.reduce((total, row) => total + row[column], 0);
    return [make("span", {}, name), bar, make("span", {}, `${digits(sum)} s`)];
  }

  function choose(number, scroll) {
    chosen = number;
    const run = runs[number], box = byId("run");
    const rows = run.rows.map((row) => make("tr", {},
      make("th", { scope: "row" }, row[0]), make("td", {}, `${digits(row[1])} ${row[3]}`), make("td", {}, `${digits(row[2])} ${row[3]}`),
      make("td", {}, signed(errorOf(row))), make("td", {}, row.length > 4 ? `${digits(row[4])} to ${digits(row[5])}` : "")));
    const head = ["figure", "measured", "predicted", "error", "80 % band"].map((name) => make("th", { scope: "col" }, name));
    const place = Object.entries(run.place).map(([name, text]) => `${name} ${text}`).join(" · ");
    const pair = make("div", { class: "pair" }, ...bars(run, 1, "measured"), ...bars(run, 2, "predicted"));
    box.replaceChildren(make("h3", {}, label(run)), make("p", { class: "note" }, `${place} · ${run.in_sample ? "in sample" : "left out"} · ${run.how}`),
      ...(pair.childElementCount ? [pair] : []),
      make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))));
    box.hidden = false;
    draw();
    if (scroll) box.scrollIntoView({ block: "center", behavior: "instant" });
  }

  // ---- all runs

  function worst(run) {
    const epoch = run.rows.find((row) => row[0] === EPOCH);
    return epoch || run.rows.reduce((most, row) => (Math.abs(errorOf(row)) > Math.abs(errorOf(most)) ? row : most));
  }

  const ordered = runs.map((run, number) => ({ run, number, row: worst(run) }))
    .sort((a, b) => (b.row[0] === EPOCH) - (a.row[0] === EPOCH) || Math.abs(Math.log(b.row[2] / b.row[1])) - Math.abs(Math.log(a.row[2] / a.row[1])));
  for (const one of ordered) one.text = `${label(one.run)} ${Object.values(one.run.place).join(" ")} ${one.run.groups.join(" ")}`.toLowerCase();

  function list() {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = ordered.filter((one) => words.every((word) => one.text.includes(word)));
    byId("runs").querySelector("tbody").replaceChildren(...found.slice(0, MOST_ROWS).map((one) => {
      const name = make("button", { type: "button", class: "link" }, label(one.run));
      const line = make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "text" }, one.run.place.testbed || ""),
        make("td", { class: "text" }, one.run.place.source), make("td", {}, `${one.row[0] === EPOCH ? "" : `${one.row[0]} `}${digits(one.row[1])} ${one.row[3]}`),
        make("td", {}, digits(one.row[2])), make("td", {}, signed(errorOf(one.row))), make("td", {}, String(one.run.rows.length)));
      line.addEventListener("click", () => choose(one.number, true));
      return line;
    }));
    byId("shown").textContent = `${Math.min(found.length, MOST_ROWS)} of ${found.length} runs.`;
  }

  byId("colour").append(...groups.map((name) => make("option", {}, name)));
  for (const id of ["metric", "colour", "half"]) byId(id).addEventListener("change", draw);
  byId("search").addEventListener("input", list);
  new ResizeObserver(draw).observe(byId("scatter"));
  list();
  draw();
})();
