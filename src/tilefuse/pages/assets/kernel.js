// The side panel: facts of the chosen box; of a kernel also its times, tiles, shared memory, and source beside its nodes.

const sidePanel = {
  show(p, id) {
    const side = document.getElementById("side");
    side.replaceChildren();
    side.scrollTop = 0;
    if (!id) return this.showProgram(p, side);
    const box = p.boxes.get(id);
    side.append(el("h2", { class: "wrap", text: titleOf(p, box) }));
    const record = recordOf(p, box);
    switch (box.kind) {
      case "kernel": this.kernel(p, side, box, record); break;
      case "library": this.call(p, side, box, record); break;
      case "copy": side.append(facts([["source", `%${record.source}`], ["target", `%${record.target}`]])); break;
      case "group": this.group(p, side, box); break;
      default: this.value(p, side, box);
    }
    side.append(this.neighbours(p, id));
  },

  showProgram(p, side) {
    const e = p.e, totals = e.totals ?? {};
    side.append(el("h2", { text: e.name }),
      facts([["device", e.device], ["kernels", `${e.num_kernels} (${e.num_distinct_kernels} distinct, ${e.unfused_kernels} unfused)`],
        ["library calls", e.library.length], ["nodes", p.graph.nodes.length],
        ["predicted", totals.us === undefined ? "" : `${timeText(totals.us)} (unfused ${timeText(totals.unfused_us)})`],
        ["bytes", totals.bytes === undefined ? bytesText(e.bytes) : `${bytesText(totals.bytes)} (unfused ${bytesText(totals.unfused_bytes)})`],
        ["planner", e.plan?.planner ? `${e.plan.planner}${e.plan.proven ? ", optimum proven" : ""}` : ""],
        ["time saved", e.plan?.objective_us ? timeText(e.plan.objective_us) : ""], ["options", Object.entries(e.options).map(([k, v]) => `${k}=${v}`).join(" ")]]),
      el("p", { class: "hint", text: "Click a box for its facts. Double click, or its + sign, opens and closes it. Shift and click on a second operator tells why the two share a kernel or not." }));
    if (e.fallbacks?.length) side.append(el("h2", { text: "fallbacks" }), table(["operator", "reason"], e.fallbacks.map(f => el("tr", {}, el("td", { text: f.operator }), el("td", { text: f.reason })))));
    for (const note of e.notes ?? []) side.append(el("p", { class: "hint", text: note }));
  },

  group(p, side, box) {
    const steps = graphView.stepsIn(box), us = steps.map(id => stepTime(p, id));
    const sum = name => us.some(t => t[name] !== undefined) ? timeText(us.reduce((s, t) => s + (t[name] ?? 0), 0)) : "";
    side.append(facts([["steps", `${steps.length} (${steps.filter(s => s[0] === "k").length} kernels)`], ["same as", box.same_as],
      ["measured", sum("measured")], ["predicted", sum("predicted")], ["bytes", bytesText(steps.reduce((s, id) => s + stepBytes(recordOf(p, p.boxes.get(id))), 0))]]));
    side.append(el("h2", { text: "steps" }), table(["step", "what", { text: "time", number: true }], steps.map(id => el("tr", { class: "row", onclick: () => page.choose(id) },
      el("td", { text: p.order.indexOf(id) }), el("td", { text: cut(titleOf(p, p.boxes.get(id)), 44) }), el("td", { class: "number", text: timeText(stepTime(p, id).measured ?? stepTime(p, id).predicted) })))));
  },

  value(p, side, box) {
    const value = p.values.get(box.value ?? box.label) ?? {}, step = stepOf(p, box);
    side.append(facts([["name", `%${box.value ?? box.label}`], ["in the model", p.titles.get(box.value ?? box.label)], ["kind", box.kind === "node" ? value.kind : box.kind], ["type", value.type], ["bytes", bytesText(value.bytes ?? 0)],
      ["module", value.path], ["place", value.place], ["kernel", step ? el("a", { class: "link", text: recordOf(p, step).step ?? step.id, onclick: () => page.choose(step.id) }) : ""]]));
    if (value.text) side.append(el("h2", { text: "expression" }), el("code", { class: "wrap", text: value.text }));
  },

  call(p, side, box, call) {
    const t = stepTime(p, box.id);
    side.append(facts([["operator", call.operator], ["operands", call.operands.map(o => `%${o}`).join(", ")], ["results", call.results.map(r => `%${r[1]}`).join(", ")],
      ["bytes", call.bytes === undefined ? "" : bytesText(call.bytes)], ["measured", t.measured === undefined ? "" : timeText(t.measured)],
      [call.time_source === "measurement" ? "measured for the plan" : "predicted", call.predicted_us === undefined ? "" : `${call.at_least ? "at least " : ""}${timeText(call.predicted_us)}`],
      ["module", p.values.get(call.results[0]?.[1])?.path], ["place", p.values.get(call.results[0]?.[1])?.place]]));
    if (call.at_least) side.append(el("p", { class: "hint", text: "Nothing predicts this operator's arithmetic: only its launch and its bytes count." }));
  },

  neighbours(p, id) {
    const inside = new Set(graphView.leavesIn(id)), rows = [];
    const row = (way, e, other) => el("tr", { class: "row", onclick: () => page.choose(other) }, el("td", { text: way }), el("td", { class: "wrap", title: `%${e.value}`, text: nameOf(p, e.value) }),
      el("td", { text: e.type }), el("td", { class: "number", text: bytesText(e.bytes) }), el("td", { class: `level ${e.level}`, text: e.level }));
    const seen = new Set();
    for (const e of p.edges) {
      const reads = inside.has(e.target) && !inside.has(e.source), writes = inside.has(e.source) && !inside.has(e.target);
      const key = `${reads} ${e.value} ${reads ? "" : e.target}`;
      if (!(reads || writes) || seen.has(key)) continue;
      seen.add(key);
      rows.push(row(reads ? "reads" : "read by", e, reads ? e.source : e.target));
    }
    return el("div", {}, el("h2", { text: "values it reads and gives" }), table(["", "value", "type", { text: "bytes", number: true }, "level"], rows.slice(0, 60)),
      rows.length > 60 ? el("p", { class: "hint", text: `${rows.length - 60} more are not listed` }) : null);
  },

  kernel(p, side, box, k) {
    const t = stepTime(p, box.id), moved = k.bytes_read + k.bytes_written, launch = k.launch, resources = p.resources?.[k.name];
    side.append(facts([["kernel", `${k.step} ${k.name}`], ["template", `${k.template} (${k.category}), proposed by ${k.generator}`],
      ["bytes", `${bytesText(k.bytes_read)} read, ${bytesText(k.bytes_written)} written`], ["operations", k.flops.toLocaleString("en")],
      ["launch", `${counted(launch.num_blocks, "block")} of ${counted(launch.num_threads, "thread")}${launch.cluster > 1 ? `, clusters of ${launch.cluster}` : ""}${launch.early ? ", starts early" : ""}`],
      ["shared memory", launch.shared_bytes ? `${bytesText(launch.shared_bytes)} of ${bytesText(launch.shared_requested_bytes)} requested` : "none"],
      ["registers", resources ? `${resources.registers} a thread${resources.spill_bytes ? `, ${resources.spill_bytes} bytes spilled` : ""}` : ""],
      ["occupancy", k.figures?.occupancy === undefined || p.e.machine.kind !== "cuda" ? "" : `${(100 * k.figures.occupancy).toFixed(0)} % of the threads a multiprocessor holds`]]));
    side.append(el("h2", { text: "time" }), this.times(p, k, t, moved));
    side.append(el("h2", { text: "tiles" }), tileFigures(p, k));
    if (k.tree) side.append(el("h2", { text: "stages" }), this.tree(k.tree));
    else if (k.stages?.length) side.append(el("h2", { text: "stages" }), this.stages(k));
    if (k.groups?.length) side.append(el("h2", { text: "parts" }), table(["template", { text: "blocks", number: true }, { text: "parts", number: true }, "nodes of the first"],
      k.groups.map(g => el("tr", {}, el("td", { text: g.template }), el("td", { class: "number", text: g.num_blocks }), el("td", { class: "number", text: g.num_parts }), el("td", { class: "wrap", text: g.nodes[0].join(", ") })))));
    if (k.shared?.length) side.append(el("h2", { text: "shared memory of a block" }), sharedMap(k));
    const source = p.sources[k.name];
    if (source) side.append(el("h2", { text: "source" }), sourceView(p, k, source));
    if (k.notation) side.append(el("h2", { text: "schedule, as --template reads it" }), el("code", { class: "wrap", text: k.notation }));
  },

  // Bars of everything that may bound the kernel, on one scale; the one that decides is marked.
  times(p, k, t, moved) {
    const rows = [["limit: bytes at full bandwidth", k.limit_us, ""]];
    for (const name of ["global time", "L2 time", "shared time", "scattered time", "time of partial sectors", "time to start blocks", "arithmetic time", "launch"])
      if (k.figures?.[name]) rows.push([name, k.figures[name], p.e.figures[name]?.origin]);
    rows.push(["predicted", k.predicted_us, ""]);
    if (t.measured !== undefined) rows.push(["measured", t.measured, ""]);
    // The figure that decided is the one that the prediction less its launch equals; a kernel of stages has its traffic inside its arithmetic.
    const rest = k.predicted_us - (k.figures?.launch ?? 0), parts = rows.slice(1).filter(r => !["predicted", "measured", "launch"].includes(r[0]));
    const decides = k.bound_by === "flops" ? "arithmetic time" : [...parts].sort((a, b) => Math.abs(a[1] - rest) - Math.abs(b[1] - rest))[0]?.[0];
    const bound = k.bound_by === "launch" ? "launch" : decides, shown = rows.filter(r => !parts.includes(r) || r[1] <= rest * 1.01 + 0.001 || r[0] === bound), most = Math.max(...shown.map(r => r[1]));
    const bars = el("div", { class: "bars" });
    for (const [name, us, origin] of shown)
      bars.append(el("span", { text: name, title: origin }), el("span", { class: "bar" }, el("i", { style: `width:${100 * us / most}%`, class: name === bound ? "decides" : "" })), el("span", { class: "figure", text: timeText(us) }));
    const reached = t.measured ?? k.predicted_us;
    return el("div", {}, bars, el("p", { class: "hint" }, `Bound by ${k.bound_by === "flops" ? "arithmetic" : k.bound_by}. `, `${bytesText(moved)} at ${(moved / reached / 1e3).toFixed(0)} GB/s ${t.measured === undefined ? "predicted" : "measured"}, `,
      el("b", { text: `${(100 * k.limit_us / reached).toFixed(0)} % of the limit` }), "."));
  },

  // Loops and stages as nested lists, with the level of every value.
  tree(t) {
    const slots = v => v.slots > 1 ? `${v.slots} slots of ${bytesText(v.bytes / v.slots)}` : bytesText(v.bytes);
    const value = v => el("div", { class: "wrap", text: `%${v.value} [${v.tile.join(", ")}] ${v.level}${v.place ? ` in the place of %${v.place}` : v.bytes ? `, ${slots(v)}` : ""}${v.written ? ", written" : ""}` });
    const part = s => s.kind === "loop" ? el("li", {}, `loop ${s.axis}${s.step > 1 ? ` in steps of ${s.step}` : ""}, ${s.note || counted(s.times, "time")}`, el("ul", {}, s.body.map(part)))
      : el("li", {}, `${s.barrier ? "barrier, then " : ""}${s.kind}${s.by ? ` by ${s.by}` : ""}`, s.values.map(value));
    const turns = t.tiles > t.blocks ? ` take ${t.tiles} tiles in turn` : "";
    return el("div", {}, el("p", { class: "hint", text: `block tile ${t.tile.map(([a, n]) => `${a} ${n}`).join(", ")}; ${counted(t.blocks, "block")}${t.cluster > 1 ? ` in clusters of ${t.cluster}` : ""}${turns}; ` +
      `moves ${Object.entries(t.moved).map(([level, n]) => `${bytesText(n)} ${level}`).join(", ")}` }), el("ul", { class: "tree" }, t.body.map(part)));
  },

  stages(k) {
    return table(["", "stage", "tiles"], k.stages.map((s, n) => el("tr", {}, el("td", { text: n }), el("td", { text: s.kind + (s.barrier ? ", then a barrier" : "") }),
      el("td", {}, s.pieces.map(q => el("div", { class: "wrap", text: `%${q.value} [${q.tile.join(", ")}]${q.stored ? " in shared memory" : ""}${q.written ? ", written" : ""}` }))))));
  },
};

// One small drawing a level: the tile of the level above, and in it one tile of this level.
function tileFigures(p, k) {
  const box = el("div", { class: "tiles" }), live = liveSizes(p, k);
  const shape = tile => tile.map(([, n]) => n);
  let outer = null;
  for (const level of k.tiles ?? []) {
    const inner = shape(level.tile), same = outer && outer.length === inner.length;
    const [rows, columns] = flat(inner), [outerRows, outerColumns] = outer ? flat(outer) : [rows, columns];
    const size = 72, fitted = (part, whole) => Math.max(3, size * Math.min(1, part / Math.max(whole, 1)));
    const height = same || !outer ? fitted(rows, outerRows) : Math.max(3, size * Math.sqrt(Math.min(1, product(inner) / product(outer))));
    const width = same || !outer ? fitted(columns, outerColumns) : height;
    const svg = d3.create("svg").attr("width", size + 2).attr("height", size + 2).attr("class", "plot");
    svg.append("rect").attr("x", 1).attr("y", 1).attr("width", size).attr("height", size).attr("fill", "#f1f4f8").attr("stroke", "#c3cad3");
    const [across, down] = [Math.min(24, Math.ceil(size / width)), Math.min(24, Math.ceil(size / height))];
    for (let y = 1; y < down; y++) svg.append("line").attr("x1", 1).attr("x2", size + 1).attr("y1", 1 + y * height).attr("y2", 1 + y * height).attr("stroke", "#dbe1e8");
    for (let x = 1; x < across; x++) svg.append("line").attr("y1", 1).attr("y2", size + 1).attr("x1", 1 + x * width).attr("x2", 1 + x * width).attr("stroke", "#dbe1e8");
    svg.append("rect").attr("x", 1).attr("y", 1).attr("width", width).attr("height", height).attr("fill", "#4a86c5").attr("stroke", "#2c5f96");
    box.append(el("figure", {}, svg.node(), el("figcaption", {}, el("b", { text: level.level }), level.level === "grid" ? "" : ` \u00d7 ${level.num.toLocaleString("en")}`, el("br"),
      level.tile.map(([axis, n]) => `${axis} ${n.toLocaleString("en")}`).join(", "), ...liveText(p, live.get(level.level)))));
    outer = inner;
  }
  return el("div", {}, box, live.size ? el("p", { class: "hint", text: "Live: bytes of the values alive at once in one tile, each with its part of the tile, at the node where they are most; hover for their names." }) : "");
}

function liveText(p, found) {
  if (!found) return [];
  return [el("br"), el("span", { class: "live", title: `at %${found.node}:\n${found.values.map(v => `${nameOf(p, v.name)} ${bytesText(v.bytes)}`).join("\n")}`, text: `live ${bytesText(found.bytes)}` })];
}

// For each level the most bytes that are alive in one of its tiles, walking the kernel's nodes in order: a value lives from its node, an
// input of the kernel from its first reader, to its last reader or to the end where it is written. Its part of a tile is that of its elements.
function liveSizes(p, k) {
  const whole = product((k.tiles?.[0]?.tile ?? []).map(([, n]) => n)), place = new Map(k.nodes.map((n, i) => [n, i])), lives = new Map();
  const shape = name => (p.values.get(name)?.type.match(/\[(.*)\]/)?.[1] ?? "").split(",").filter(s => s.trim()).map(Number);
  const touch = (name, at) => { const life = lives.get(name) ?? { name, first: at, last: at }; life.last = Math.max(life.last, at); lives.set(name, life); };
  for (const [name, at] of place) {
    for (const read of p.values.get(name)?.reads ?? []) if (p.values.has(read)) touch(read, at);
    touch(name, at);
    if (k.writes.includes(name)) touch(name, k.nodes.length - 1);
  }
  const found = new Map();
  for (const level of whole ? k.tiles : []) {
    const part = product(level.tile.map(([, n]) => n)) / whole;
    let most = null;
    for (const [node, at] of place) {
      const alive = [...lives.values()].filter(v => v.first <= at && at <= v.last).map(v => {
        const elements = Math.max(product(shape(v.name)), 1), size = (p.values.get(v.name).bytes ?? 0) / elements;
        return { name: v.name, bytes: Math.round(size * Math.min(elements, Math.max(1, Math.ceil(elements * part)))) };
      }).sort((a, b) => b.bytes - a.bytes);
      const bytes = alive.reduce((sum, v) => sum + v.bytes, 0);
      if (!most || bytes > most.bytes) most = { node, bytes, values: alive.slice(0, 12) };
    }
    if (most) found.set(level.level, most);
  }
  return found;
}

function product(sizes) { return sizes.reduce((a, b) => a * b, 1); }
function flat(sizes) { return sizes.length < 2 ? [1, sizes[0] ?? 1] : [product(sizes.slice(0, -1)), sizes[sizes.length - 1]]; }

// Places in shared memory over the stages: across the stages, down the bytes.
function sharedMap(k) {
  const width = 380, height = 190, margin = { left: 58, top: 8, right: 8, bottom: 26 };
  const holder = el("div"), g = plot(holder, width, height, margin);
  const stages = Math.max(...k.shared.map(s => s.last)) + 1, most = Math.max(...k.shared.map(s => s.offset + s.bytes), 1);
  const x = d3.scaleLinear().domain([0, stages]).range([0, width - margin.left - margin.right]), y = d3.scaleLinear().domain([0, most]).range([0, height - margin.top - margin.bottom]);
  const colour = d3.scaleOrdinal().range(d3.schemeCategory10);
  g.append("g").attr("class", "axis").call(d3.axisLeft(y).ticks(4).tickFormat(bytesText));
  g.append("g").attr("class", "axis").attr("transform", `translate(0,${y.range()[1]})`).call(d3.axisBottom(x).ticks(Math.min(stages, 8)).tickFormat(d3.format("d")));
  for (const s of k.shared) {
    const made = g.append("g");
    made.append("rect").attr("class", "bar").attr("x", x(s.first) + 1).attr("width", Math.max(x(s.last + 1) - x(s.first) - 2, 2)).attr("y", y(s.offset)).attr("height", Math.max(y(s.offset + s.bytes) - y(s.offset) - 1, 1)).attr("fill", colour(s.value)).attr("fill-opacity", .75);
    made.append("title").text(`%${s.value}: ${bytesText(s.bytes)} at byte ${s.offset}, stages ${s.first} to ${s.last}`);
    const room = x(s.last + 1) - x(s.first), text = cut(s.value, 26);
    if (y(s.offset + s.bytes) - y(s.offset) > 13 && textWidth(text, 11) + 8 < room) made.append("text").attr("class", "label").attr("x", x(s.first) + 5).attr("y", y(s.offset) + 12).text(text);
  }
  return holder;
}

// Source beside the kernel's nodes. A name in either lights up in both; the support code before the kernel's own function is folded.
function sourceView(p, k, source) {
  const own = k.source_names ?? {}, inSource = new Map();
  for (const node of [...k.nodes, ...k.reads]) inSource.set(node, node);
  for (const [told, name] of Object.entries(own)) inSource.set(name, told);
  const names = [...inSource].map(([name, told]) => [told.replace(/\W/g, "_"), name]).sort((a, b) => b[0].length - a[0].length);
  const owner = word => names.find(([told]) => word === told || word.startsWith(told + "_"))?.[1];
  const holder = el("div", { class: "source" }), list = el("ul"), text = el("div");
  const light = name => holder.querySelectorAll("[data-name]").forEach(n => n.classList.toggle("lit", n.dataset.name === name));
  for (const node of k.nodes) list.append(el("li", { "data-name": node, title: p.values.get(node)?.text, text: `%${node}`, onmouseenter: () => light(node), onclick: () => page.choose(`k${p.e.kernels.indexOf(k)}/${node}`) }));
  const lines = source.split("\n"), begin = Math.max(lines.findIndex(l => l.startsWith("extern \"C\"")), 0);
  const head = lines.slice(0, begin).findIndex(l => !l.startsWith("//")), pre = el("pre");
  if (begin > head + 1) {
    pre.append(lines.slice(0, head).join("\n") + "\n");
    text.append(pre, el("details", {}, el("summary", { text: `${begin - head} lines of support code` }), el("pre", { text: lines.slice(head, begin).join("\n") })));
  }
  const code = el("pre");
  for (const line of lines.slice(begin)) {
    for (const piece of line.split(/([A-Za-z_]\w*)/)) {
      const name = /^[A-Za-z_]/.test(piece) ? owner(piece) : undefined;
      code.append(name ? el("span", { class: "id", "data-name": name, title: p.values.get(name)?.text ?? `%${name}`, text: piece, onmouseenter: () => light(name) }) : piece);
    }
    code.append("\n");
  }
  text.append(code);
  holder.append(list, text);
  holder.addEventListener("mouseleave", () => light(""));
  return holder;
}
