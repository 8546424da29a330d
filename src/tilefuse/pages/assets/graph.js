// The graph: boxes inside boxes, laid out by dagre, panned and zoomed by d3. Closed boxes stand for all that they hold.

const LEVELS = ["register", "warp", "shared", "cluster", "grid", "global"];
const FIRST_BOXES = 44;      // opened at the start, about a screenful
const SLOW_LAYOUT = 600;     // from so many boxes on the quick ranking is used
const PAD = 9, LINE = 15, TITLE = 24;

const graphView = {
  open: new Set(), showInputs: false, showLabels: true, chosen: "", second: "", places: new Map(), width: 0, height: 0,

  start(p) {
    this.p = p;
    this.open = new Set();
    this.chosen = this.second = "";
    this.parents = new Map([...p.boxes.values()].map(b => [b.id, b.parent]));
    this.openFirst();
    this.svg = d3.select("#canvas");
    this.svg.selectAll("*").remove();
    this.stage = this.svg.append("g");
    this.zoom = d3.zoom().scaleExtent([0.02, 4]).on("zoom", () => {
      this.stage.attr("transform", d3.event.transform);
      this.drawView();
    });
    this.svg.call(this.zoom).on("dblclick.zoom", null);
    this.svg.on("click", () => { if (d3.event.target === this.svg.node()) page.choose(""); });
    this.draw();
    this.home();
  },

  // Opens groups, first ones first, while the page stays readable. Groups equal to an earlier one stay closed.
  openFirst() {
    const visible = () => [...this.p.boxes.values()].filter(b => this.isVisible(b)).length;
    let frontier = [...this.p.boxes.values()].filter(b => !b.parent && b.children.length);
    while (frontier.length) {
      const next = [];
      for (const box of frontier) {
        const inside = box.children.filter(c => !this.p.boxes.get(c).folded);
        if (box.same_as || inside.length < 2 || visible() + inside.length > FIRST_BOXES) continue;
        this.open.add(box.id);
        next.push(...box.children.map(c => this.p.boxes.get(c)).filter(b => b.children.length));
      }
      frontier = next;
    }
  },

  isVisible(box) {
    if ((box.kind === "input" || box.kind === "weight") && box.folded && !this.showInputs) return false;
    for (let parent = box.parent; parent; parent = this.parents.get(parent)) if (!this.open.has(parent)) return false;
    return true;
  },

  // The box that is drawn for a box: itself, or the outermost closed box around it; "" for a folded input.
  shown(id) {
    let found = id;
    for (let at = id; at; at = this.parents.get(at)) if (!this.open.has(at) || at === id) found = at;
    for (let at = this.parents.get(id); at; at = this.parents.get(at)) if (!this.open.has(at)) found = at;
    return this.isVisible(this.p.boxes.get(found)) ? found : "";
  },

  lines(box) {
    const p = this.p, record = recordOf(p, box);
    const time = id => { const t = stepTime(p, id); return t.measured !== undefined ? `${timeText(t.measured)} measured` : t.predicted !== undefined ? `${t.least ? "\u2265 " : ""}${timeText(t.predicted)}` : ""; };
    const folded = this.showInputs ? [] : this.foldedBy.get(box.id) ?? [];
    const held = folded.length ? [`+ ${counted(folded.length, "input")} ${bytesText(folded.reduce((s, e) => s + e.bytes, 0))}`] : [];
    switch (box.kind) {
      case "kernel": return [cut(titleOf(p, box), 34), `${record.step} \u00b7 ${record.template} \u00b7 ${counted(record.nodes.length, "node")}`,
        `${bytesText(stepBytes(record))} \u00b7 ${time(box.id)}`, ...held];
      case "library": return [cut(titleOf(p, box), 34), cut(`call \u00b7 ${record.results.map(r => r[1]).join(", ")}`, 40),
        record.bytes === undefined ? time(box.id) : `${bytesText(record.bytes)} \u00b7 ${time(box.id)}`, ...held];
      case "group": {
        const steps = this.stepsIn(box), us = steps.reduce((s, id) => { const t = stepTime(p, id); return s + (t.measured ?? t.predicted ?? 0); }, 0);
        const kernels = steps.filter(id => id[0] === "k").length, rest = steps.length - kernels;
        return [cut(box.label, 40), [kernels ? counted(kernels, "kernel") : "", rest ? counted(rest, "call") : ""].filter(Boolean).join(" \u00b7 "),
          timeText(us), ...(box.same_as ? [cut(`as ${box.same_as}`, 40)] : []), ...held];
      }
      case "copy": return [cut(titleOf(p, box), 34), "copy"];
      default: {
        const value = p.values.get(box.value ?? box.label);
        return [cut(titleOf(p, box), 34), `${box.kind === "node" ? value?.kind : box.kind} \u00b7 ${value?.type ?? ""}`, ...(box.kind === "node" ? [] : [bytesText(value?.bytes ?? 0)]), ...held];
      }
    }
  },

  stepsIn(box) {
    return box.children.map(id => this.p.boxes.get(id)).flatMap(b => b.kind === "group" ? this.stepsIn(b) : STEPS.includes(b.kind) ? [b.id] : []);
  },

  // Edges between drawn boxes: all reads between the same two are one edge.
  drawnEdges() {
    const made = new Map();
    this.foldedBy = new Map();
    for (const e of this.p.edges) {
      const target = this.shown(e.target);
      const source = this.shown(e.source);
      if (!source) {
        if (!this.foldedBy.has(target)) this.foldedBy.set(target, []);
        const held = this.foldedBy.get(target);
        if (!held.some(h => h.value === e.value)) held.push(e);
        continue;
      }
      if (source === target || !target) continue;
      const key = `${source} ${target}`;
      if (!made.has(key)) made.set(key, { source, target, values: new Map(), level: e.level });
      const edge = made.get(key);
      edge.values.set(e.value, e);
      if (LEVELS.indexOf(e.level) > LEVELS.indexOf(edge.level)) edge.level = e.level;
    }
    for (const edge of made.values()) {
      const values = [...edge.values.values()], sum = values.reduce((s, v) => s + v.bytes, 0);
      edge.text = values.length === 1 ? `${values[0].type.replace(/, /g, ",")} \u00b7 ${bytesText(sum)}` : `${values.length} values \u00b7 ${bytesText(sum)}`;
    }
    return [...made.values()];
  },

  draw() {
    const drawnEdges = this.drawnEdges();
    const drawn = [...this.p.boxes.values()].filter(b => this.isVisible(b));
    const boxes = drawn.map(b => this.measured(b));
    const isOpen = b => this.open.has(b.id) && b.box.children.length > 0;
    const nodes = boxes.map(b => ({ v: b.id, width: isOpen(b) ? 0 : b.width, height: isOpen(b) ? 0 : b.height, parent: b.box.parent || undefined }));
    const edges = drawnEdges.map(e => ({ v: e.source, w: e.target, width: this.showLabels ? textWidth(e.text, 10.5) + 6 : 0, height: this.showLabels ? 14 : 0, labelpos: "r", labeloffset: 6 }));
    const layout = { nodesep: 26, ranksep: 46, edgesep: 14 };
    if (nodes.length > SLOW_LAYOUT) layout.ranker = "longest-path";
    dagre.layout(nodes, edges, layout, {});
    this.places = new Map(nodes.map((n, i) => [n.v, { ...boxes[i], x: n.x, y: n.y, width: n.width, height: n.height, isOpen: isOpen(boxes[i]) }]));
    this.makeRoomForTitles();
    this.drawnEdgeList = drawnEdges.map((e, i) => ({ ...e, points: edges[i].points, x: edges[i].x, y: edges[i].y }));
    this.paint();
  },

  // dagre leaves no room for the titles of frames: each grows upward into the gap between ranks, inner ones first.
  makeRoomForTitles() {
    const top = q => q.y - q.height / 2, frames = [...this.places.values()].filter(q => q.isOpen).sort((a, b) => this.depth(b.id) - this.depth(a.id));
    for (const frame of frames) {
      const inside = [...this.places.values()].filter(q => q.box.parent === frame.id), wanted = Math.min(top(frame) - 4, ...inside.map(q => top(q) - TITLE));
      const grown = top(frame) - wanted;
      frame.y -= grown / 2;
      frame.height += grown;
      frame.width = Math.max(frame.width, textWidth(frame.lines[0], 12.5, true) + 34);
    }
  },

  depth(id) { let n = 0; for (let at = this.parents.get(id); at; at = this.parents.get(at)) n += 1; return n; },

  measured(box) {
    const lines = this.lines(box);
    const widths = lines.map((text, n) => textWidth(text, n ? 11 : 12.5, !n) + (n ? 0 : box.children.length ? 16 : 0));
    return { id: box.id, box, lines, width: Math.max(...widths) + 2 * PAD, height: lines.length * LINE + 2 * PAD - 3 };
  },

  paint() {
    const stage = this.stage, view = this;
    stage.selectAll("*").remove();
    const places = [...this.places.values()].sort((a, b) => this.depth(a.id) - this.depth(b.id));
    const frames = places.filter(b => b.isOpen), leaves = places.filter(b => !b.isOpen);
    const toggle = b => { d3.event.stopPropagation(); view.toggle(b.id); };
    const choose = b => { d3.event.stopPropagation(); page.choose(b.id, d3.event.shiftKey || d3.event.ctrlKey); };
    const at = b => `translate(${b.x - b.width / 2},${b.y - b.height / 2})`;
    const write = (g, b, lines) => {
      lines.forEach((text, n) => g.append("text").attr("class", n ? "" : "name").attr("x", n || !b.box.children.length ? PAD : PAD + 16).attr("y", PAD + 9 + n * LINE).text(text));
      if (b.box.children.length) g.append("text").attr("class", "toggle").attr("x", PAD).attr("y", PAD + 9).text(b.isOpen ? "\u2212" : "+").on("click", () => toggle(b));
    };
    const paintBox = selection => {
      const made = selection.enter().append("g").attr("class", b => `box ${b.box.kind}${b.isOpen ? " open" : b.box.children.length ? " closed" : ""}`)
        .attr("data-id", b => b.id).attr("tabindex", 0).attr("transform", at).on("click", choose).on("dblclick", toggle)
        .on("keydown", b => { if (d3.event.key === "Enter") choose(b); if (d3.event.key === " ") { d3.event.preventDefault(); toggle(b); } });
      made.append("rect").attr("width", b => b.width).attr("height", b => b.height).attr("rx", 6);
      made.append("title").text(b => wordsOf(this.p, b.box));
      made.filter(b => !b.isOpen).each(function (b) { write(d3.select(this), b, b.lines); });
    };
    paintBox(stage.append("g").selectAll("g").data(frames));
    const line = d3.line().x(q => q.x).y(q => q.y).curve(d3.curveBasis);
    const made = stage.append("g").selectAll("g").data(this.drawnEdgeList).enter().append("g").attr("class", e => `edge ${e.level}`)
      .attr("data-source", e => e.source).attr("data-target", e => e.target);
    made.append("path").attr("class", "line").attr("d", e => line(e.points));
    made.append("path").attr("class", "head").attr("d", e => {
      const [a, b] = e.points.slice(-2), turn = Math.atan2(b.y - a.y, b.x - a.x);
      const corner = (along, side) => `${b.x - along * Math.cos(turn) - side * Math.sin(turn)},${b.y - along * Math.sin(turn) + side * Math.cos(turn)}`;
      return `M${b.x},${b.y}L${corner(8, 3.6)}L${corner(8, -3.6)}Z`;
    });
    if (this.showLabels) made.append("text").attr("x", e => e.x).attr("y", e => e.y + 4).text(e => e.text);
    made.append("title").text(e => [...e.values.values()].map(v => `%${v.value}: ${v.type}, ${bytesText(v.bytes)}, ${v.level}`).join("\n"));
    paintBox(stage.append("g").selectAll("g").data(leaves));
    // Titles of frames lie above the edges that enter through them.
    stage.append("g").selectAll("g").data(frames).enter().append("g").attr("class", b => `title ${b.box.kind}`).attr("transform", at).on("click", choose).on("dblclick", toggle)
      .each(function (b) {
        const g = d3.select(this);
        g.append("rect").attr("x", 2).attr("y", 2).attr("width", PAD + 20 + textWidth(b.lines[0], 12.5, true)).attr("height", LINE + 4).attr("rx", 4);
        write(g, b, b.lines.slice(0, 1));
      });
    const xs = places.flatMap(b => [b.x - b.width / 2, b.x + b.width / 2]), ys = places.flatMap(b => [b.y - b.height / 2, b.y + b.height / 2]);
    this.box = { left: Math.min(...xs, 0), top: Math.min(...ys, 0), right: Math.max(...xs, 1), bottom: Math.max(...ys, 1) };
    this.mark();
    this.drawMap(leaves);
  },

  toggle(id) {
    const box = this.p.boxes.get(id);
    if (!box.children.length) return;
    const before = this.places.get(id), t = d3.zoomTransform(this.svg.node());
    if (!this.open.delete(id)) this.open.add(id);
    this.draw();
    // The box stays where it is on the screen; its surroundings move.
    const after = this.places.get(id);
    if (!before || !after) return;
    const dx = (before.x - before.width / 2) - (after.x - after.width / 2), dy = (before.y - before.height / 2) - (after.y - after.height / 2);
    this.svg.call(this.zoom.transform, t.translate(dx, dy));
  },

  // One level more of boxes, or none at all.
  openMore() {
    for (const b of [...this.places.values()]) if (b.box.children.length) this.open.add(b.id);
    this.draw();
    this.home();
  },

  closeAll() { this.open.clear(); this.draw(); this.home(); },

  reveal(id) {
    for (let at = this.parents.get(id); at; at = this.parents.get(at)) this.open.add(at);
    const box = this.p.boxes.get(id);
    if (box.folded && !this.showInputs) { this.showInputs = true; document.getElementById("inputs").checked = true; }
    this.draw();
    const place = this.places.get(id);
    if (place) this.centre(place.x, place.y);
  },

  size() { const r = this.svg.node().getBoundingClientRect(); return [r.width || 800, r.height || 600]; },

  centre(x, y) {
    const [w, h] = this.size(), k = Math.max(d3.zoomTransform(this.svg.node()).k, 0.7);
    this.svg.call(this.zoom.transform, d3.zoomIdentity.translate(w / 2 - k * x, h / 2 - k * y).scale(k));
  },

  // The whole graph, or its top at a size that can be read.
  home() {
    const [w, h] = this.size(), b = this.box, width = b.right - b.left, height = b.bottom - b.top;
    const whole = Math.min((w - 40) / width, (h - 100) / height), k = Math.min(Math.max(whole, Math.min((w - 40) / width, 0.85), 0.3), 1.15);
    this.svg.call(this.zoom.transform, d3.zoomIdentity.translate(w / 2 - k * (b.left + b.right) / 2, 58 - k * b.top).scale(k));
  },

  fit() {
    const [w, h] = this.size(), b = this.box, k = Math.min((w - 30) / (b.right - b.left), (h - 70) / (b.bottom - b.top), 1.5);
    this.svg.call(this.zoom.transform, d3.zoomIdentity.translate(w / 2 - k * (b.left + b.right) / 2, 54 - k * b.top).scale(k));
  },

  // All boxes that the chosen one is computed from, or that are computed from it, by innermost boxes.
  reach(ids, from, to) {
    if (!this.next) this.next = {};
    const key = from + to;
    if (this.next[key]?.p !== this.p) {
      const map = new Map();
      for (const e of this.p.edges) { if (!map.has(e[from])) map.set(e[from], []); map.get(e[from]).push(e[to]); }
      this.next[key] = { p: this.p, map };
    }
    const seen = new Set(ids), stack = [...ids];
    while (stack.length) for (const n of this.next[key].map.get(stack.pop()) ?? []) if (!seen.has(n)) { seen.add(n); stack.push(n); }
    return seen;
  },

  leavesIn(id) {
    const box = this.p.boxes.get(id);
    return box.children.length ? box.children.flatMap(c => this.leavesIn(c)) : [id];
  },

  mark() {
    const chosen = this.chosen && this.shown(this.chosen);
    const boxes = this.stage.selectAll("g.box"), edges = this.stage.selectAll("g.edge");
    boxes.classed("chosen", b => b.id === chosen).classed("second", b => this.second && b.id === this.shown(this.second)).classed("dim", false).classed("near", false);
    edges.classed("dim", false).classed("near", false);
    if (!chosen) return;
    const own = this.leavesIn(this.chosen), ups = this.reach(own, "target", "source"), downs = this.reach(own, "source", "target");
    const lit = new Set([...ups, ...downs].map(id => this.shown(id)));
    const around = id => { for (let at = id; at; at = this.parents.get(at)) lit.add(at); };
    [...lit].filter(Boolean).forEach(around);
    boxes.classed("dim", b => !lit.has(b.id));
    edges.classed("near", e => e.source === chosen || e.target === chosen)
      .classed("dim", e => !(lit.has(e.source) && lit.has(e.target)));
    boxes.classed("near", b => this.drawnEdgeList.some(e => e.source === chosen && e.target === b.id || e.target === chosen && e.source === b.id));
  },

  drawMap(leaves) {
    const map = d3.select("#minimap"), b = this.box, pad = 20, view = this;
    map.selectAll("*").remove();
    map.attr("viewBox", `${b.left - pad} ${b.top - pad} ${b.right - b.left + 2 * pad} ${b.bottom - b.top + 2 * pad}`);
    map.selectAll("rect.box").data(leaves).enter().append("rect").attr("class", n => `box${n.id === this.chosen ? " chosen" : ""}`)
      .attr("x", n => n.x - n.width / 2).attr("y", n => n.y - n.height / 2).attr("width", n => n.width).attr("height", n => n.height);
    map.append("rect").attr("class", "view");
    const go = function () { const [x, y] = d3.mouse(map.node()); const [w, h] = view.size(), k = d3.zoomTransform(view.svg.node()).k;
      view.svg.call(view.zoom.transform, d3.zoomIdentity.translate(w / 2 - k * x, h / 2 - k * y).scale(k)); };
    map.on("click", go).call(d3.drag().on("drag", go));
    this.drawView();
  },

  drawView() {
    const t = d3.zoomTransform(this.svg.node()), [w, h] = this.size(), map = d3.select("#minimap .view");
    if (map.empty()) return;
    map.attr("x", -t.x / t.k).attr("y", -t.y / t.k).attr("width", w / t.k).attr("height", h / t.k)
      .attr("stroke-width", Math.max(this.box.right - this.box.left, this.box.bottom - this.box.top) / 90);
  },
};

const textWidths = new Map();
const measuring = document.createElement("canvas").getContext("2d");
function textWidth(text, size, bold) {
  const key = `${size}${bold ? "b" : ""}${text}`;
  if (!textWidths.has(key)) {
    measuring.font = `${bold ? "600 " : ""}${size}px ${getComputedStyle(document.documentElement).fontFamily}`;
    textWidths.set(key, measuring.measureText(text).width);
  }
  return textWidths.get(key);
}
