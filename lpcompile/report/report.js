"use strict";
// Moves and searches the graph, and shows in the panel what was clicked. All texts are set as text, never as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const view = $("view"), panel = $("panel"), svg = view.querySelector("svg");
  const whole = svg.viewBox.baseVal;
  const full = { x: whole.x, y: whole.y, width: whole.width, height: whole.height };
  let box = { ...full };

  // ---- zoom: the part of the drawing that is seen

  function show(next) {
    box = next;
    svg.setAttribute("viewBox", [box.x, box.y, box.width, box.height].map((v) => v.toFixed(2)).join(" "));
  }

  function zoom(factor, at) {
    const width = Math.min(Math.max(box.width * factor, full.width / 40), full.width * 3);
    const scale = width / box.width;
    const point = at || { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    show({ x: point.x + (box.x - point.x) * scale, y: point.y + (box.y - point.y) * scale,
           width, height: box.height * scale });
  }

  function place(event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return { x: point.x, y: point.y };
  }

  function centre(element) {
    const found = element.getBBox();
    const width = Math.min(box.width, 900), height = width * box.height / box.width;
    show({ x: found.x + found.width / 2 - width / 2, y: found.y + found.height / 2 - height / 2, width, height });
  }

  // many stages: begin at the first ones, where names can be read
  const most = 1.6 * view.clientWidth;
  if (full.width > most) show({ x: 0, y: full.height / 2 - most * view.clientHeight / view.clientWidth / 2, width: most,
                                height: most * view.clientHeight / view.clientWidth });

  $("in").onclick = () => zoom(0.75);
  $("out").onclick = () => zoom(1 / 0.75);
  $("fit").onclick = () => show({ ...full });
  view.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.0012), place(event));
  }, { passive: false });

  let held = null, moved = false;
  svg.addEventListener("pointerdown", (event) => {
    if (event.button === 0) held = { ...place(event), id: event.pointerId };
    moved = false;
  });
  svg.addEventListener("pointermove", (event) => {
    if (!held) return;
    const now = place(event), dx = held.x - now.x, dy = held.y - now.y;
    if (!moved && Math.hypot(dx, dy) * svg.clientWidth / box.width < 4) return;
    if (!moved) { svg.setPointerCapture(held.id); view.classList.add("dragging"); }
    moved = true;
    show({ ...box, x: box.x + dx, y: box.y + dy });
  });
  for (const end of ["pointerup", "pointercancel"]) {
    svg.addEventListener(end, () => { held = null; view.classList.remove("dragging"); });
  }

  // ---- the panel

  function make(tag, text, parent) {
    const found = document.createElement(tag);
    if (text !== undefined) found.textContent = text;
    (parent || panel).append(found);
    return found;
  }

  function facts(rows) {
    const list = make("dl");
    for (const [name, value] of rows) { make("dt", name, list); make("dd", value, list); }
  }

  function source(text) {
    make("h3", "Emitted source");
    if (text) make("pre", text); else make("p", data.note || "not available");
  }

  function link(list, text, kind, index) {
    const button = make("button", text, make("li", undefined, list));
    button.onclick = () => choose(kind, index);
  }

  const NS = "http://www.w3.org/2000/svg";
  function draw(tag, attributes, parent, text) {
    const found = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
    if (text !== undefined) found.textContent = text;
    parent.append(found);
    return found;
  }

  function steps(unit) {
    const row = 30, lane = 16, wide = Math.max(...unit.nodes.map((n) => n[3])) + 1;
    const x = (i) => 10 + lane * unit.nodes[i][3], y = (i) => 14 + row * i;
    const figure = draw("svg", { width: 640, height: row * unit.nodes.length + 4, role: "img", class: "steps" }, panel);
    figure.style.setProperty("--hue", Math.round(360 * unit.stage / data.K + 215) % 360);
    unit.nodes.forEach(([, , , , sources], i) => {
      for (const from of sources) {
        const [a, b, c, d] = [x(from), y(from), x(i), y(i)];
        const way = a === c ? `M${a},${b}V${d}` : `M${a},${b}V${d - 18}Q${a},${d - 4} ${c},${d}`;
        draw("path", { class: "edge", d: way }, figure);
      }
    });
    unit.nodes.forEach(([name, what, shape], i) => {
      draw("circle", { class: "dot", cx: x(i), cy: y(i), r: 4 }, figure);
      draw("text", { class: "label", x: 14 + lane * wide, y: y(i) + 1 }, figure, name);
      const about = [what, shape].filter(Boolean).join("  ");
      draw("text", { class: "small", x: 14 + lane * wide, y: y(i) + 13 }, figure, about);
    });
  }

  const fill = {
    stage(k) {
      const stage = data.stages[k];
      make("h2", stage.name);
      facts(stage.facts);
      make("h3", stage.units.length === 1 ? "1 block" : `${stage.units.length} blocks`);
      const list = make("ol");
      for (const i of stage.units) link(list, data.units[i].name, "unit", i);
      source(stage.source);
    },
    unit(i) {
      const unit = data.units[i];
      make("h2", unit.name);
      link(make("ol"), `← stage ${unit.stage}`, "stage", unit.stage);
      facts(unit.facts);
      if (unit.nodes.length) { make("h3", "Steps"); steps(unit); }
    },
    boundary(k) { make("h2", data.boundaries[k].name); facts(data.boundaries[k].facts); },
    aux(k) { make("h2", data.aux[k].name); facts(data.aux[k].facts); source(data.aux[k].source); },
  };

  function choose(kind, index) {
    for (const old of view.querySelectorAll(".chosen")) old.classList.remove("chosen");
    for (const now of view.querySelectorAll(`[data-${kind}="${index}"]`)) now.classList.add("chosen");
    panel.replaceChildren();
    panel.scrollTop = 0;
    fill[kind](Number(index));
  }

  function chosen(event) {
    const target = event.target.closest("[data-unit], [data-stage], [data-boundary], [data-aux]");
    if (!target || moved) return;
    const [kind, index] = Object.entries(target.dataset)[0];
    choose(kind, index);
  }

  svg.addEventListener("click", chosen);
  document.querySelector(".keys").addEventListener("click", (event) => { moved = false; chosen(event); });
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); moved = false; chosen(event); }
  });

  if (data.stages.length) fill.stage(0);  // below the hint, until something is clicked

  // ---- search: blocks by their name or by that of a layer in them

  const search = $("search");
  const words = (unit) => [unit.name, ...unit.nodes.map(([name, what]) => `${name} ${what}`)];
  const names = data.units.map((unit) => words(unit).join("\n").toLowerCase());
  let hits = [], current = -1;

  function look() {
    const wanted = search.value.trim().toLowerCase();
    hits = wanted ? names.map((text, i) => (text.includes(wanted) ? i : -1)).filter((i) => i >= 0) : [];
    current = -1;
    view.classList.toggle("searching", wanted !== "");
    for (const unit of view.querySelectorAll("[data-unit]")) {
      unit.classList.toggle("hit", hits.includes(Number(unit.dataset.unit)));
    }
    $("found").textContent = wanted ? `${hits.length} of ${names.length}` : "";
  }

  search.addEventListener("input", look);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { search.value = ""; look(); }
    if (event.key !== "Enter" || !hits.length) return;
    current = (current + (event.shiftKey ? hits.length - 1 : 1)) % hits.length;
    choose("unit", hits[current]);
    centre(view.querySelector(`[data-unit="${hits[current]}"]`));
    $("found").textContent = `${current + 1} of ${hits.length}`;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
  });
})();
