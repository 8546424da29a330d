// Plots over the whole program: kernels as a table, timeline, roofline, memory over steps, and two plans side by side.

const COLOURS = { kernel: "#4a86c5", library: "#d3a04a", copy: "#9468bd", gap: "#b9c1cb" };

function showKernels(p, pane, sortBy = "time") {
  const rows = p.order.map((id, step) => ({ id, step, box: p.boxes.get(id), record: recordOf(p, p.boxes.get(id)), t: stepTime(p, id) }));
  const time = r => r.t.measured ?? r.t.predicted ?? 0, total = rows.reduce((s, r) => s + time(r), 0);
  const measured = p.times.size > 0;
  const sorts = { predicted: r => -(r.t.predicted ?? 0), step: r => r.step, time: r => -time(r), bytes: r => -stepBytes(r.record), limit: r => r.record.limit_us ? -(r.record.limit_us / time(r)) : 1 };
  rows.sort((a, b) => sorts[sortBy](a) - sorts[sortBy](b));
  const head = (text, key, number) => el("th", { text: text + (key === sortBy ? " \u2193" : ""), class: `sorts${number ? " number" : ""}`, onclick: () => showKernels(p, pane, key) });
  const heads = el("tr", {}, head("step", "step"), el("th", { text: "kernel or call" }), el("th", { text: "template" }), head(measured ? "measured" : "time", "time", true), ...(measured ? [head("predicted", "predicted", true)] : []), el("th", { class: "number", text: "share" }),
    head("bytes", "bytes", true), head("of the limit", "limit", true), el("th", { text: "bound by" }), el("th", { text: "levels inside" }));
  pane.replaceChildren(el("h2", { text: `${rows.length} steps, ${timeText(total)} ${p.times.size ? "measured" : "predicted"}` }), el("table", {}, el("thead", {}, heads), el("tbody", {}, rows.map(r => {
    const levels = d3.nest().key(e => e.level).rollup(v => v.length).entries(r.record.edges ?? []);
    return el("tr", { class: "row", onclick: () => page.choose(r.id) }, el("td", { text: r.step }), el("td", { class: "wrap", text: titleOf(p, r.box) }), el("td", { text: r.record.template ?? r.box.kind }),
      el("td", { class: "number", text: `${r.t.least && r.t.measured === undefined ? "\u2265 " : ""}${timeText(time(r))}` }), ...(measured ? [el("td", { class: "number", text: `${r.t.least ? "\u2265 " : ""}${timeText(r.t.predicted)}` })] : []),
      el("td", { class: "number", text: `${(100 * time(r) / total).toFixed(1)} %` }),
      el("td", { class: "number", text: bytesText(stepBytes(r.record)) }), el("td", { class: "number", text: r.record.limit_us ? `${(100 * r.record.limit_us / time(r)).toFixed(0)} %` : "-" }), el("td", { text: r.record.bound_by ?? "-" }),
      el("td", {}, levels.map(l => el("span", { class: `level ${l.key}`, text: `${l.value} ${l.key} ` }))));
  }))));
}

// Steps of one measured run where they began and ended; without a measurement, predicted times one after the other.
function timelineOf(p) {
  let at = 0;
  const before = p.before_us ?? 0;
  return p.order.map(id => {
    const measured = p.times.get(id), us = measured?.us ?? stepTime(p, id).predicted ?? 0, start = measured ? measured.start_us + before : at;
    at = start + us;
    return { id, start, us, kind: p.boxes.get(id).kind };
  });
}

// Times in which no step runs, at their places: before the first step, between two, behind the last. Only a measured run has any.
function gapsOf(p, steps) {
  if (!p.times.size) return [];
  const found = [], sorted = [...steps].sort((a, b) => a.start - b.start);
  let at = 0;
  for (const s of sorted) {
    if (s.start - at > GAP_US) found.push({ start: at, us: s.start - at, kind: "gap", where: at ? `before ${titleOf(p, p.boxes.get(s.id))}` : "before the first step", id: s.id });
    at = Math.max(at, s.start + s.us);
  }
  if ((p.behind_us ?? 0) > GAP_US && sorted.length) found.push({ start: at, us: p.behind_us, kind: "gap", where: "behind the last step", id: sorted[sorted.length - 1].id });
  return found;
}

// Shorter gaps are what reading the clock takes. Units: microseconds.
const GAP_US = 0.3;

function showTime(p, pane) {
  const steps = timelineOf(p), gaps = gapsOf(p, steps), shown = [...steps, ...gaps], end = Math.max(...shown.map(s => s.start + s.us), 1e-9), width = Math.max(pane.clientWidth - 50, 480), measured = p.times.size > 0;
  const busy = steps.reduce((s, x) => s + x.us, 0), call = p.call_us ?? end, idle = gaps.reduce((s, x) => s + x.us, 0);
  const heading = measured ? `timeline: a call takes ${timeText(call)}; in the run below steps take ${timeText(busy)}${gaps.length ? `, ${counted(gaps.length, "gap")} ${timeText(idle)}` : ""}` : `timeline: ${timeText(busy)} predicted`;
  pane.replaceChildren(el("h2", { text: heading }),
    el("p", { class: "hint", text: (measured ? "One run of the program, step by step, with the clock read around each: on a GPU the device's own, elsewhere the host's; where no step runs there is a gap. " : "No run was measured (tilefuse view --measure, or program.view(arguments=...)): predicted times, one step after the other. ") + "Scroll to zoom, drag to move, click a step for its facts." }));
  const margin = { left: 70, top: 6, right: 10, bottom: 26 }, rows = ["kernel", "library", "copy", "gap"].filter(k => shown.some(s => s.kind === k)), height = 40 * rows.length + margin.top + margin.bottom;
  const g = plot(pane, width, height, margin), inner = width - margin.left - margin.right, x = d3.scaleLinear().domain([0, end]).range([0, inner]);
  g.append("clipPath").attr("id", "time-clip").append("rect").attr("width", inner).attr("height", height - margin.top - margin.bottom);
  const axis = g.append("g").attr("class", "axis").attr("transform", `translate(0,${height - margin.top - margin.bottom})`);
  rows.forEach((r, n) => g.append("text").attr("x", -8).attr("y", n * 40 + 22).attr("text-anchor", "end").text({ kernel: "kernels", library: "calls", copy: "copies", gap: "gaps" }[r]));
  const bars = g.append("g").attr("clip-path", "url(#time-clip)").selectAll("rect").data(shown).enter().append("rect").attr("class", s => s.kind === "gap" ? "bar gap" : "bar").attr("y", s => rows.indexOf(s.kind) * 40 + 4).attr("height", 30).attr("fill", s => COLOURS[s.kind]).attr("stroke", "#fff").attr("stroke-width", .5)
    .on("click", s => page.choose(s.id));
  bars.append("title").text(s => `${s.where ?? titleOf(p, p.boxes.get(s.id))}\n${timeText(s.us)} from ${timeText(s.start)} on`);
  const draw = scale => { bars.attr("x", s => scale(s.start)).attr("width", s => Math.max(scale(s.start + s.us) - scale(s.start), .6)); axis.call(d3.axisBottom(scale).ticks(Math.max(2, inner / 110)).tickFormat(timeText)); };
  draw(x);
  d3.select(g.node().ownerSVGElement).call(d3.zoom().scaleExtent([1, 2000]).translateExtent([[0, 0], [width, height]]).on("zoom", () => draw(d3.event.transform.rescaleX(x))));
  if (gaps.length) pane.append(el("h2", { text: "longest gaps" }), table(["where", { text: "from", number: true }, { text: "time", number: true }],
    [...gaps].sort((a, b) => b.us - a.us).slice(0, 8).map(s => el("tr", { class: "row", onclick: () => page.choose(s.id) }, el("td", { class: "wrap", text: s.where }), el("td", { class: "number", text: timeText(s.start) }), el("td", { class: "number", text: timeText(s.us) })))));
  showUnfused(p, pane, width);
  showLayers(p, pane);
}

// Predicted time and bytes, one kernel a node beside this plan.
function showUnfused(p, pane, width) {
  const t = p.e.totals;
  if (!t?.us) return;
  pane.append(el("h2", { text: "unfused beside fused, predicted" }));
  const rows = [["unfused, one kernel a node", t.unfused_us, t.unfused_bytes, p.e.unfused_kernels], ["this plan", t.us, t.bytes, p.e.num_kernels]], most = Math.max(...rows.map(r => r[1]));
  const calls = t.library_us, box = el("div", { class: "bars", style: `max-width:${Math.min(width, 760)}px` });
  for (const [name, us, moved, kernels] of rows)
    box.append(el("span", { text: name }), el("span", { class: "bar", style: "display:flex", title: `kernels ${timeText(us - calls)}, library calls ${timeText(calls)}` }, el("i", { style: `width:${100 * (us - calls) / most}%;background:${COLOURS.kernel}` }), el("i", { style: `width:${100 * calls / most}%;background:${COLOURS.library}` })),
      el("span", { class: "figure", text: `${timeText(us)} \u00b7 ${bytesText(moved)} \u00b7 ${counted(kernels, "kernel")}` }));
  pane.append(box, el("p", { class: "hint", text: "Blue: kernels, yellow: library calls, which both plans make." }));
}

// Unfused beside fused for every outermost module or layer: one kernel a node beside the plan's steps. Equal layers stand once.
function showLayers(p, pane) {
  const outer = layerRows(p, "");
  if (!outer.length || !p.graph.nodes.some(n => n.alone_us !== undefined)) return;
  // Where all outermost layers are equal, the parts of one of them tell more.
  const told = outer.length === 1 ? [...outer, ...layerRows(p, outer[0].id).map(r => ({ ...r, label: `\u00a0\u00a0${r.label}` }))] : outer, most = Math.max(...told.map(r => r.unfused));
  pane.append(el("h2", { text: "unfused beside fused, layer by layer, predicted" }), table(["layer", { text: "kernels", number: true }, { text: "unfused", number: true }, { text: "this plan", number: true }, { text: "saved", number: true }, ""], told.map(r => el("tr", { class: "row", onclick: () => r.id && page.goTo(r.id) },
    el("td", { class: "wrap", text: r.label + (r.count > 1 ? ` (${r.count} such)` : "") }), el("td", { class: "number", text: `${r.kernels} of ${r.nodes}` }), el("td", { class: "number", text: timeText(r.unfused) }), el("td", { class: "number", text: timeText(r.fused) }),
    el("td", { class: "number", text: `${(100 * (1 - r.fused / r.unfused)).toFixed(0)} %` }),
    el("td", { class: "pair" }, el("i", { style: `width:${140 * r.unfused / most}px`, class: "unfused", title: `unfused ${timeText(r.unfused)}` }), el("i", { style: `width:${140 * r.fused / most}px`, class: "fused", title: `this plan ${timeText(r.fused)}` }))))));
}

// The groups inside a box, and the steps that are in none of them; of equal groups the first, with their number.
function layerRows(p, parent) {
  const groups = [...p.boxes.values()].filter(b => b.kind === "group" && (b.parent ?? "") === parent), loose = p.order.filter(id => (p.boxes.get(id).parent ?? "") === parent);
  if (!groups.length) return [];
  const rows = groups.map(b => ({ label: b.label, id: b.id, same: b.same_as, steps: graphView.stepsIn(b) }));
  if (loose.length) rows.push({ label: parent ? "its other steps" : "outside of these", id: "", same: "", steps: loose });
  return rows.map(r => ({ ...r, count: 1 + rows.filter(q => q.same === r.label).length, ...layerTimes(p, r.steps) })).filter(r => !r.same && r.fused);
}

function layerTimes(p, steps) {
  const records = steps.map(id => [id, recordOf(p, p.boxes.get(id))]), nodes = new Set(records.flatMap(([, r]) => r.nodes ?? []));
  const alone = [...nodes].map(n => p.values.get(n)?.alone_us).filter(us => us !== undefined), calls = d3.sum(records.filter(([id]) => id[0] === "l"), ([, r]) => r.predicted_us ?? 0);
  return { kernels: records.filter(([id]) => id[0] === "k").length, nodes: alone.length, unfused: d3.sum(alone) + calls, fused: d3.sum(records, ([, r]) => r.predicted_us ?? 0) };
}

// Limits of the matrix unit that lie clearly above that of single precision, highest first; of nearly equal ones the first.
function matrixLimits(m) {
  const made = [];
  for (const [dtype, rate] of Object.entries(m.matrix_flops_per_s ?? {}).sort((a, b) => b[1] - a[1]))
    if (rate > 1.3 * m.flops_per_s && !made.some(([, r]) => r < 1.3 * rate)) made.push([dtype, rate]);
  return made;
}

// All kernels under the limits of the device: operations a byte against operations a second.
function showRoofline(p, pane) {
  const m = p.e.machine, dots = p.order.filter(id => id[0] === "k").map(id => ({ id, k: recordOf(p, p.boxes.get(id)), t: stepTime(p, id) })).map(d => ({ ...d, us: d.t.measured ?? d.t.predicted, bytes: stepBytes(d.k) })).filter(d => d.bytes && d.us);
  pane.replaceChildren(el("h2", { text: `roofline of ${counted(dots.length, "kernel")}, ${p.times.size ? "measured" : "predicted"} times` }));
  if (!m?.global_bytes_per_s || !dots.length) { pane.append(el("p", { class: "hint", text: "The explanation names no device, or the program has no kernel." })); return; }
  const width = Math.max(Math.min(pane.clientWidth - 40, 980), 480), height = Math.max(Math.min(pane.clientHeight - 110, 560), 300), margin = { left: 78, top: 14, right: 20, bottom: 44 };
  const g = plot(pane, width, height, margin), w = width - margin.left - margin.right, h = height - margin.top - margin.bottom;
  const intensity = d => Math.max(d.k.flops, 1) / d.bytes, rate = d => Math.max(d.k.flops, 1) / d.us * 1e6, peak = m.flops_per_s, band = m.global_bytes_per_s;
  const products = dots.some(d => d.k.category === "product"), units = matrixLimits(m), top = products && units.length ? units[0][1] : peak;
  const xs = [...dots.map(intensity), top / band], x = d3.scaleLog().domain([d3.min(xs) / 3, d3.max(xs) * 5]).range([0, w]), y = d3.scaleLog().domain([Math.min(d3.min(dots, rate), band * x.domain()[0]) / 3, top * 3]).range([h, 0]);
  const si = v => d3.format("~s")(v);
  g.append("g").attr("class", "axis").attr("transform", `translate(0,${h})`).call(d3.axisBottom(x).ticks(6, "~g"));
  g.append("g").attr("class", "axis").call(d3.axisLeft(y).ticks(6, "~s"));
  g.append("text").attr("x", w).attr("y", h + 36).attr("text-anchor", "end").text("arithmetic intensity: operations a byte of global memory");
  g.append("text").attr("x", 6).attr("y", 6).text("operations a second");
  const roof = [[x.domain()[0], band * x.domain()[0]], [peak / band, peak], [x.domain()[1], peak]];
  g.append("path").attr("fill", "none").attr("stroke", "#b02a37").attr("stroke-width", 1.6).attr("d", d3.line().x(q => x(q[0])).y(q => y(q[1]))(roof));
  g.append("text").attr("x", w).attr("y", y(peak) - 6).attr("text-anchor", "end").text(`${si(peak)} operations a second`);
  // Kernels that hold products may use the matrix unit, whose limits lie higher.
  for (const [dtype, limit] of products ? units : []) {
    g.append("path").attr("fill", "none").attr("stroke", "#b02a37").attr("stroke-dasharray", "4 3").attr("d", d3.line().x(q => x(q[0])).y(q => y(q[1]))([[peak / band, peak], [limit / band, limit], [x.domain()[1], limit]].filter(q => q[0] <= x.domain()[1])));
    g.append("text").attr("x", w).attr("y", y(limit) - 6).attr("text-anchor", "end").text(`${si(limit)} in ${dtype} products`);
  }
  g.append("text").attr("x", x(x.domain()[0]) + 26).attr("y", y(band * x.domain()[0]) + 8).text(`${si(band)}B/s`);
  const size = d3.scaleSqrt().domain([0, d3.max(dots, d => d.us)]).range([3, 16]);
  const made = g.selectAll("circle").data(dots).enter().append("circle").attr("class", "dot").attr("cx", d => x(intensity(d))).attr("cy", d => y(rate(d))).attr("r", d => size(d.us)).attr("fill", COLOURS.kernel).attr("fill-opacity", .55).attr("stroke", "#2c5f96").on("click", d => page.choose(d.id));
  made.append("title").text(d => `${titleOf(p, p.boxes.get(d.id))}\n${timeText(d.us)}, ${bytesText(d.bytes)}, ${intensity(d).toPrecision(3)} operations a byte, ${(100 * d.k.limit_us / d.us).toFixed(0)} % of the limit`);
  pane.append(el("p", { class: "hint", text: "The area of a dot is its share of the time. Below the slope a kernel waits for more than global memory: launch, few blocks, caches." }));
}

// Bytes alive at every step, who holds them; the moment of the peak is marked.
function showMemory(p, pane) {
  const lives = (p.e.memory ?? []).filter(v => ["intermediate", "result"].includes(v.role)), steps = p.order.length;
  const constant = (p.e.memory ?? []).filter(v => v.role === "constant").reduce((s, v) => s + v.bytes, 0), given = (p.e.memory ?? []).filter(v => v.role === "input").reduce((s, v) => s + v.bytes, 0);
  const alive = d3.range(steps + 1).map(n => d3.sum(lives.filter(v => v.first <= n && n <= v.last), v => v.bytes)), peak = d3.max(alive) || 0, moment = alive.indexOf(peak);
  pane.replaceChildren(el("h2", { text: `memory over steps: peak ${bytesText(peak)} beside inputs (${bytesText(given)}) and constants (${bytesText(constant)})` }));
  if (!lives.length) { pane.append(el("p", { class: "hint", text: "The program holds no intermediate value." })); return; }
  const width = Math.max(pane.clientWidth - 40, 480), height = 240, margin = { left: 78, top: 10, right: 14, bottom: 34 };
  const g = plot(pane, width, height, margin), w = width - margin.left - margin.right, h = height - margin.top - margin.bottom;
  const x = d3.scaleLinear().domain([0, steps + 1]).range([0, w]), y = d3.scaleLinear().domain([0, peak * 1.08]).range([h, 0]);
  g.append("g").attr("class", "axis").attr("transform", `translate(0,${h})`).call(d3.axisBottom(x).ticks(8).tickFormat(d3.format("d")));
  g.append("g").attr("class", "axis").call(d3.axisLeft(y).ticks(5).tickFormat(bytesText));
  g.append("text").attr("x", w).attr("y", h + 30).attr("text-anchor", "end").text("step");
  const holders = el("div"), list = n => {
    const held = lives.filter(v => v.first <= n && n <= v.last).sort((a, b) => b.bytes - a.bytes);
    holders.replaceChildren(el("h2", { text: `alive at ${n === steps ? "the end" : `step ${n} (${titleOf(p, p.boxes.get(p.order[n]))})`}: ${bytesText(d3.sum(held, v => v.bytes))}${n === moment ? ", the peak" : ""}` }),
      table(["value", { text: "bytes", number: true }, "role", "from step", "to step"], held.slice(0, 30).map(v => el("tr", {}, el("td", { class: "wrap", title: `%${v.value}`, text: nameOf(p, v.value) }), el("td", { class: "number", text: bytesText(v.bytes) }), el("td", { text: v.role }), el("td", { text: v.first }), el("td", { text: v.last === steps ? "end" : v.last })))));
    marks.attr("stroke", m => m === n ? "#000" : "none");
  };
  const marks = g.selectAll("rect.bar").data(d3.range(steps + 1)).enter().append("rect").attr("class", "bar").attr("x", n => x(n)).attr("width", Math.max(w / (steps + 1) - .6, .6)).attr("y", n => y(alive[n])).attr("height", n => h - y(alive[n])).attr("fill", n => n === moment ? "#d9720a" : COLOURS.kernel)
    .on("click", n => { list(n); if (n < steps) page.choose(p.order[n]); });
  marks.append("title").text(n => `step ${n}: ${bytesText(alive[n])}`);
  pane.append(el("p", { class: "hint", text: "Click a step to see who holds memory then." }), holders);
  list(moment);
}

// Another plan of the same model beside this one: totals, then nodes whose kernels differ.
function showCompare(pane) {
  const [p, q] = page.programs.filter(x => x.side !== undefined).slice(0, 2), a = p.e, b = q.e;
  pane.replaceChildren(el("h2", { text: `${p.label} beside ${q.label}` }));
  const row = (name, x, y, text, less = true) => el("tr", {}, el("td", { text: name }), el("td", { class: "number", text: text(x) }), el("td", { class: "number", text: text(y) }), el("td", { class: `number ${x === y ? "" : (y < x) === less ? "good" : "bad"}`, text: x ? `${y > x ? "+" : ""}${((y / x - 1) * 100).toFixed(1)} %` : "" }));
  const plain = n => n.toLocaleString("en");
  const measured = z => z.times.size ? d3.sum([...z.times.values()], t => t.us) : undefined;
  const rows = [row("kernels", a.num_kernels, b.num_kernels, plain), row("library calls", a.library.length, b.library.length, plain), row("predicted time", a.totals?.us ?? a.objective_us, b.totals?.us ?? b.objective_us, timeText), row("bytes moved", a.totals?.bytes ?? a.bytes, b.totals?.bytes ?? b.bytes, bytesText)];
  if (measured(p) !== undefined && measured(q) !== undefined) rows.push(row("measured time", measured(p), measured(q), timeText));
  pane.append(table(["", { text: p.label, number: true }, { text: q.label, number: true }, { text: "difference", number: true }], rows));
  const home = z => new Map(z.kernels.flatMap(k => k.nodes.map(n => [n, k]))), [ha, hb] = [home(a), home(b)];
  const differ = [...new Set([...ha.keys(), ...hb.keys()])].filter(n => (ha.get(n)?.nodes.join() ?? "") !== (hb.get(n)?.nodes.join() ?? ""));
  // One row for each kernel of the first plan that the second does not have, with the second's kernels for the same nodes.
  const rowOf = new Map();
  for (const n of differ) {
    const key = ha.get(n)?.step ?? `${n} of the second`;
    if (!rowOf.has(key)) rowOf.set(key, { first: ha.get(n), seconds: new Set(), nodes: [] });
    rowOf.get(key).nodes.push(n);
    rowOf.get(key).seconds.add(hb.get(n));
  }
  const told = k => k ? `${k.step} ${k.template}: ${cut(k.nodes.join(", "), 90)} (${timeText(k.predicted_us)})` : "no kernel";
  const list = [...rowOf.values()].map(r => el("tr", {}, el("td", { class: "wrap", text: cut(r.nodes.map(n => `%${n}`).join(" "), 60) }), el("td", { class: "wrap", text: told(r.first) }),
    el("td", { class: "wrap" }, [...r.seconds].map(k => el("div", { text: told(k) })))));
  pane.append(el("h2", { text: list.length ? `${list.length} places where the kernels differ` : "both plans have the same kernels" }));
  if (list.length) pane.append(table(["nodes", p.label, q.label], list.slice(0, 200)));
}
