(() => {
  // scores over seconds, dollars or epochs: a line per method, drawn at the width there is
  const data = JSON.parse(document.getElementById("converge-data").textContent);
  const box = document.getElementById("score-chart"), tip = box.querySelector(".tip");
  const details = document.getElementById("score-details"), pick = document.getElementById("score-pick");
  const PLACE = { epochs: 0, seconds: 1, dollars: 2 }, VAL = 3, TEST = 4, LOW = 5, HIGH = 6;
  const BELOW = 0.25; // the best score: the first epochs are far below and would flatten all others
  const FOOT = 7; // pixels from bar to bar
  const switches = [...document.querySelectorAll("#score-over input")];
  const chosen = new Set();
  let over = "seconds", selected = null, drawn = [];

  const lines = () => data.contests[pick ? +pick.value : 0]?.lines ?? [];
  const colour = (line) => `var(--m${line.colour})`;
  const points = (share) => (100 * share).toFixed(1);

  function duration(s) {
    for (const [unit, scale] of [["d", 86400], ["h", 3600], ["min", 60]]) {
      if (s >= 2 * scale) return `${digits(s / scale)} ${unit}`;
    }
    return seconds(s);
  }

  function dollars(value) {
    if (value === 0) return "$0";
    return `$${value.toFixed(value >= 100 ? 0 : Math.max(2, 1 - Math.floor(Math.log10(value))))}`;
  }

  function describe({ line, spot }) {
    const [epochs, s, price] = spot;
    const cost = [`${epochs} epoch${epochs === 1 ? "" : "s"}`, s === null ? "time not known" : duration(s)];
    if (price !== null) cost.push(dollars(price));
    return `${line.label} (${line.kind}): ${cost.join(", ")}; validation ${points(spot[VAL])}, ` +
      `test ${points(spot[TEST])} (seeds ${points(spot[LOW])} to ${points(spot[HIGH])})`;
  }

  // ---- drawing

  function scaleOf(values, low, high) {
    const first = Math.min(...values), last = Math.max(...values);
    if (over === "epochs") return { to: (x) => low + (high - low) * x / last, marks: even(0, last, (high - low) / 70) };
    const span = Math.log(last / first) || 1;
    return { to: (x) => low + (high - low) * Math.log(x / first) / span, marks: ticks(first, last) };
  }

  function even(low, high, room) {
    const power = 10 ** Math.floor(Math.log10((high - low) / room || 1));
    const step = power * ([1, 2, 5, 10].find((lead) => (high - low) / (power * lead) <= room) ?? 10);
    const marks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k += 1) marks.push(k * step);
    return marks;
  }

  function draw() {
    box.querySelector("svg")?.remove();
    box.querySelector(".empty")?.remove();
    drawn = [];
    for (const input of switches) input.disabled = !lines().some((line) => line.spots.some((spot) => spot[PLACE[input.value]] > 0));
    const place = PLACE[over], width = box.clientWidth, height = width < 560 ? 320 : 420;
    const seen = lines().map((line) => ({ line, spots: line.spots.filter((spot) => spot[place] > 0) })).filter(({ spots }) => spots.length);
    if (!seen.length || !width) { empty(); return; }
    const best = Math.max(...seen.flatMap(({ spots }) => spots.map((spot) => spot[HIGH])));
    const least = Math.min(...seen.flatMap(({ spots }) => spots.map((spot) => spot[LOW])));
    const floor = Math.max(least, best - BELOW) - 0.01, ceiling = best + 0.01;
    const bars = over === "epochs" ? [] : seen.filter(({ line }) => line.likely && line.met[place] > 0);
    const left = 46, right = 14, top = 10, bottom = 46, foot = bars.length * FOOT + 6;
    const inside = seen.flatMap(({ spots }) => spots.filter((spot) => spot[HIGH] >= floor).map((spot) => spot[place]));
    const x = scaleOf(inside, left, width - right);
    const y = (share) => top + (height - top - bottom - foot) * (ceiling - share) / (ceiling - floor);
    const svg = add(box, "svg", { width, height, "aria-hidden": "true" });
    frame(svg, { x, y, left, right, top, bottom, width, height, floor, ceiling });
    const clip = add(add(svg, "clipPath", { id: "score-clip" }), "rect", { x: left, y: top, width: width - left - right, height: y(floor) - top });
    clip.setAttribute("data-role", "plot");
    for (const { line, spots } of seen) drawLine(svg, line, spots, x.to, y, floor);
    bars.forEach(({ line }, k) => drawBar(svg, line, x.to, height - bottom - foot + (k + 1) * FOOT, left, width - right));
    mark();
  }

  function empty() {
    const told = document.createElement("p");
    told.className = "empty";
    told.textContent = over === "epochs" ? "Nothing was trained." : `No ${over} are known here.`;
    box.append(told);
  }

  function frame(svg, { x, y, left, right, top, bottom, width, height, floor, ceiling }) {
    for (const value of even(100 * floor, 100 * ceiling, height / 55)) {
      add(svg, "line", { x1: left, x2: width - right, y1: y(value / 100), y2: y(value / 100), class: "grid" });
      add(svg, "text", { x: left - 8, y: y(value / 100) + 4, "text-anchor": "end" }, digits(value));
    }
    let edge = -Infinity;
    for (const value of x.marks) {
      const at = x.to(value);
      if (at < left - 1 || at > width - right + 1) continue;
      add(svg, "line", { x1: at, x2: at, y1: top, y2: height - bottom, class: "grid" });
      if (at - edge > 40) { add(svg, "text", { x: Math.min(at, width - right - 8), y: height - bottom + 18, "text-anchor": "middle" }, digits(value)); edge = at; }
    }
    add(svg, "text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, data.over[over]);
    add(svg, "text", { x: left + 4, y: top + 12 }, data.score);
  }

  function drawLine(svg, line, spots, x, y, floor) {
    const place = PLACE[over], faded = chosen.size > 0 && !chosen.has(line.label);
    const group = add(svg, "g", { class: faded ? "faded" : "", "clip-path": "url(#score-clip)", "data-label": line.label });
    const along = (values) => values.map((spot) => `${x(spot[place])},${y(spot[spot.at])}`).join("L");
    const at = (which) => (spot) => Object.assign([...spot], { at: which });
    const band = `M${along(spots.map(at(HIGH)))}L${along(spots.map(at(LOW)).reverse())}Z`;
    add(group, "path", { d: band, fill: colour(line), "fill-opacity": 0.14 });
    const path = `M${along(spots.map(at(TEST)))}`;
    add(group, "path", { d: path, fill: "none", stroke: colour(line), "stroke-width": 2, "stroke-dasharray": DASHES[line.dash] });
    for (const spot of spots) if (!faded && spot[TEST] >= floor) drawn.push({ line, spot, x: x(spot[place]), y: y(spot[TEST]) });
    if (line.met && line.met[place] > 0) {
      add(group, "circle", { cx: x(line.met[place]), cy: y(line.met[TEST]), r: 5, fill: colour(line), class: "met" });
    }
  }

  function drawBar(svg, line, x, y, left, right) {
    const place = PLACE[over], at = line.met[place], scale = at / line.met[PLACE.seconds];
    const group = add(svg, "g", { class: chosen.size > 0 && !chosen.has(line.label) ? "faded" : "", stroke: colour(line), "stroke-width": 2 });
    const held = (value) => Math.min(Math.max(x(value), left), right);
    const [low, high] = [held(scale * line.likely[0]), line.likely[1] === null ? right : held(scale * line.likely[1])];
    add(group, "line", { x1: low, x2: high, y1: y, y2: y });
    for (const end of line.likely[1] === null ? [low] : [low, high]) add(group, "line", { x1: end, x2: end, y1: y - 3, y2: y + 3 });
    add(group, "circle", { cx: held(at), cy: y, r: 2.5, fill: colour(line) });
  }

  // ---- which point, and what is said about it

  function mark() {
    box.querySelector(".mark")?.remove();
    const same = selected && drawn.find(({ line, spot }) => line.label === selected.line.label && spot[0] === selected.spot[0]);
    selected = same ?? null;
    if (!same) { tip.hidden = true; return; }
    const svg = box.querySelector("svg");
    add(svg, "circle", { cx: same.x, cy: same.y, r: 7, class: "mark" });
    tip.textContent = describe(same);
    tip.hidden = false;
    const wide = Math.min(280, box.clientWidth - 16);
    tip.style.left = `${Math.max(8, Math.min(same.x + 12, box.clientWidth - wide - 8))}px`;
    tip.style.top = `${same.y + 16}px`;
  }

  function select(found, aloud) {
    selected = found;
    mark();
    if (aloud) details.textContent = selected ? describe(selected) : "";
  }

  function nearest(px, py) {
    const away = (point) => Math.hypot(point.x - px, point.y - py);
    return drawn.reduce((best, point) => (best === null || away(point) < away(best) ? point : best), null);
  }

  function along(by) {
    const mine = drawn.filter(({ line }) => line.label === selected.line.label);
    const next = mine[mine.findIndex(({ spot }) => spot[0] === selected.spot[0]) + by];
    if (next) select(next, true);
  }

  function across(by) {
    const labels = [...new Set(drawn.map(({ line }) => line.label))];
    const label = labels.at((labels.indexOf(selected.line.label) + by) % labels.length);
    const mine = drawn.filter(({ line }) => line.label === label);
    select(mine.reduce((best, point) => (Math.abs(point.x - selected.x) < Math.abs(best.x - selected.x) ? point : best)), true);
  }

  const KEYS = {
    ArrowLeft: () => along(-1), ArrowRight: () => along(1), ArrowUp: () => across(-1), ArrowDown: () => across(1),
    Escape: () => select(null, true),
  };

  box.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey || !drawn.length) return;
    event.preventDefault();
    if (selected) act(); else select(drawn[0], true);
  });
  box.addEventListener("pointermove", (event) => {
    const frame = box.getBoundingClientRect();
    select(nearest(event.clientX - frame.left, event.clientY - frame.top), false);
  });
  box.addEventListener("pointerleave", () => select(null, false));

  // ---- what is shown

  function legend() {
    for (const name of ["exact", "approximate"]) {
      const list = document.getElementById(`score-legend-${name}`);
      const some = lines().filter((line) => (line.kind === "exact") === (name === "exact"));
      list.replaceChildren(...some.map(entry));
      list.parentElement.hidden = !some.length;
    }
  }

  function entry(line) {
    const item = document.createElement("li"), button = document.createElement("button"), aside = document.createElement("small");
    const sample = add(button, "svg", { width: 26, height: 10, "aria-hidden": "true" });
    add(sample, "line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: colour(line), "stroke-width": 3, "stroke-dasharray": DASHES[line.dash] });
    aside.textContent = [line.kind === "exact" ? "" : line.kind, line.note].filter(Boolean).join(", ");
    button.type = "button";
    button.append(line.label, " ", aside);
    button.setAttribute("aria-pressed", String(chosen.has(line.label)));
    button.addEventListener("click", () => {
      if (!chosen.delete(line.label)) chosen.add(line.label);
      button.setAttribute("aria-pressed", String(chosen.has(line.label)));
      draw();
    });
    item.append(button);
    return item;
  }

  document.getElementById("score-over").addEventListener("change", (event) => { over = event.target.value; draw(); });
  pick?.addEventListener("change", () => { selected = null; legend(); draw(); });
  legend();
  new ResizeObserver(draw).observe(box);
})();
