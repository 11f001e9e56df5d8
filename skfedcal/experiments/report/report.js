"use strict";
/* Shows the row of the table that the reader chooses, and the numbers of a bin that is
   pointed at or focused. All texts are written by page.py; nothing here reads markup. */

/* Elements of a bin, [tag, attributes] each; `_shapes` in _figures.py draws the same. */
function shapes(bin, nBins, most, frame) {
  const [place, n, confidence, accuracy, low, high] = bin;
  const step = frame.side / nBins;
  const edge = frame.left + place * step;
  const y = (value) => frame.top + frame.side * (1 - value);
  const top = y(Math.max(accuracy, confidence));
  const bottom = y(Math.min(accuracy, confidence));
  const x = (frame.left + frame.side * confidence).toFixed(2);
  const base = frame.top + frame.side + frame.gap + frame.counts;
  const height = (frame.counts * n) / most;
  const rect = (name, left, upper, width, tall) => ["rect", {
    "class": name, x: left.toFixed(2), y: upper.toFixed(2),
    width: Math.max(width, 0.5).toFixed(2), height: tall.toFixed(2),
  }];
  return [
    rect("hit", edge, frame.top, step, base - frame.top),
    rect("gap", edge + 1, top, step - 2, bottom - top),
    ["line", {"class": "band", x1: x, x2: x, y1: y(high).toFixed(2), y2: y(low).toFixed(2)}],
    ["circle", {"class": "point", cx: x, cy: y(accuracy).toFixed(2), r: "3.2"}],
    rect("count", edge + 1, base - height, step - 2, height),
  ];
}

/* Text of a bin: {0} to {4} stand for its cells. */
function binText(pattern, cells) {
  return pattern.replace(/\{(\d)\}/g, (_, i) => cells[Number(i)]);
}

/* Index of the view that has the value of the control `changed`, and as many of the
   other values as there are. null in a view stands for any value. */
function findView(views, wanted, changed) {
  let best = -1;
  let most = -1;
  views.forEach((view, i) => {
    const same = (name) => view[name] === null || view[name] === wanted[name];
    const score = 2 * same("method") + same("eps") + same("point");
    if (same(changed) && score > most) {
      best = i;
      most = score;
    }
  });
  return best;
}

/* Bin to go to from bin `at` of `n` by a key; null for other keys. */
function nextBin(key, at, n) {
  const moves = {
    ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1,
    Home: 0, End: n - 1,
  };
  if (!Object.hasOwn(moves, key)) return null;
  return Math.min(Math.max(moves[key], 0), n - 1);
}

function startReport(page) {
  const data = JSON.parse(page.getElementById("data").textContent);
  const names = ["eps", "method", "point"];
  const controls = {};
  for (const name of names) controls[name] = page.getElementById(`choice-${name}`);
  const make = (tag) => page.createElementNS("http://www.w3.org/2000/svg", tag);
  const value = (name) => (controls[name] ? Number(controls[name].value) : null);

  function tell(bin) {
    const figure = bin.closest("figure");
    for (const other of figure.querySelectorAll(".bin.on")) other.classList.remove("on");
    bin.classList.add("on");
    figure.querySelector(".readout").textContent = bin.querySelector("title").textContent;
  }

  /* One bin of a diagram is in the order of the tab key; arrows lead to the others. */
  function prepare(figure) {
    figure.querySelectorAll(".bin").forEach((bin, i) => {
      bin.setAttribute("tabindex", i ? "-1" : "0");
    });
    const readout = figure.querySelector(".readout");
    readout.hidden = false;
    readout.textContent = data.hint;
  }

  function listen(figure) {
    for (const kind of ["pointerover", "focusin", "click"]) {
      figure.addEventListener(kind, (event) => {
        const bin = event.target.closest(".bin");
        if (bin) tell(bin);
      });
    }
    figure.addEventListener("keydown", (event) => {
      const bin = event.target.closest(".bin");
      if (!bin || event.ctrlKey || event.altKey || event.metaKey) return;
      const bins = [...figure.querySelectorAll(".bin")];
      const next = nextBin(event.key, bins.indexOf(bin), bins.length);
      if (next === null) return;
      event.preventDefault();
      bin.setAttribute("tabindex", "-1");
      bins[next].setAttribute("tabindex", "0");
      bins[next].focus();
    });
  }

  function draw(figure, view) {
    const most = Math.max(1e-300, ...view.bins.map((bin) => bin[1]));
    const bins = view.bins.map((bin) => {
      const group = make("g");
      group.setAttribute("class", "bin");
      group.setAttribute("role", "img");
      const title = make("title");
      title.textContent = binText(data.bin_text, bin[6]);
      group.append(title);
      for (const [tag, attributes] of shapes(bin, view.n_bins, most, data.frame)) {
        const shape = make(tag);
        for (const [name, text] of Object.entries(attributes)) shape.setAttribute(name, text);
        group.append(shape);
      }
      return group;
    });
    figure.querySelector(".bins").replaceChildren(...bins);
    figure.querySelector("svg").setAttribute("aria-label", `${view.title}. ${view.means}`);
    figure.querySelector("b").textContent = view.title;
    figure.querySelector("figcaption span").textContent = view.caption;
    prepare(figure);
  }

  function fill(name, view) {
    page.getElementById(`${name}-name`).textContent = view.title;
    page.querySelectorAll(`#numbers td.${name}`).forEach((cell, i) => {
      cell.textContent = view.cells[i];
    });
    const rows = view.bins.map((bin) => {
      const row = page.createElement("tr");
      bin[6].forEach((text, i) => {
        const cell = page.createElement(i ? "td" : "th");
        if (!i) {
          cell.setAttribute("scope", "row");
          cell.className = "first";
        }
        cell.textContent = text;
        row.append(cell);
      });
      return row;
    });
    page.querySelector(`#${name}-bins tbody`).replaceChildren(...rows);
    page.querySelector(`#${name}-bins caption`).textContent = view.title;
  }

  function show(index) {
    const view = data.views[index];
    for (const name of names) {
      if (!controls[name]) continue;
      if (view[name] !== null) controls[name].value = String(view[name]);
      controls[name].disabled = view[name] === null;
    }
    for (const [name, one] of [["before", data.before[view.before]], ["after", view]]) {
      draw(page.getElementById(`${name}-figure`), one);
      fill(name, one);
    }
    page.getElementById("choice-summary").textContent = view.summary;
  }

  for (const figure of page.querySelectorAll("figure.reliability")) {
    prepare(figure);
    listen(figure);
  }
  for (const name of names) {
    if (!controls[name]) continue;
    controls[name].addEventListener("change", () => {
      const wanted = {eps: value("eps"), method: value("method"), point: value("point")};
      show(findView(data.views, wanted, name));
    });
  }
  page.getElementById("choice").hidden = false;
}

if (typeof document !== "undefined") startReport(document);
