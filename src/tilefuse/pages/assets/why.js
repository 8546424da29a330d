// Why two operators share a kernel or do not, from the plan's own records; and all rejected candidates by reason.

const MEANINGS = {
  "not-convex": "a value leaves the one and comes back to the other by way of something else, so one kernel would wait for itself",
  "worse-than-incumbent": "it was priced, and the plan is cheaper without it",
};

const whyPanel = {
  show(p, first, second) {
    const side = document.getElementById("side"), a = p.boxes.get(first), b = p.boxes.get(second);
    side.replaceChildren(el("h2", { class: "wrap", text: `${titleOf(p, a)}  and  ${titleOf(p, b)}` }));
    for (const answer of new Set(this.answers(p, a, b))) side.append(el("div", { class: "answer" }, answer));
    const names = [a, b].map(x => this.valueOf(p, x));
    if (names.every(Boolean)) side.append(el("p", { class: "hint" }, "The same at a terminal, with the nodes of the other choice: ", el("code", { class: "wrap", text: `tilefuse explain MODEL --why ${names.join(" ")}` })));
    side.append(sidePanel.neighbours(p, first));
  },

  valueOf(p, box) {
    const record = recordOf(p, box);
    return record ? record.writes?.[0] ?? record.results?.[0]?.[1] : box.value ?? (box.kind === "node" ? box.label : "");
  },

  answers(p, a, b) {
    const [s, t] = [stepOf(p, a), stepOf(p, b)];
    if (!s || !t) return ["One of the two is no operator: inputs, weights, results and groups have no kernel of their own."];
    const priced = this.priced(p, s, t, a, b), made = [];
    if (s.id === t.id) {
      const k = recordOf(p, s);
      made.push(`One ${s.kind === "kernel" ? "kernel" : "call"}${k.step ? ` (${k.step})` : ""}${k.generator ? `: ${k.generator} put ${counted(k.nodes.length, "node")} into it, bound by ${k.bound_by}` : ""}.`);
      const path = this.path(p, a.id, b.id);
      if (path.length) made.push(`The value travels ${path.map(e => `%${e.value} (${e.level})`).join(" \u2192 ")} and never reaches global memory${path.some(e => e.level === "shared") ? ", a barrier of the block in between" : ""}.`);
      if (k.predicted_us !== undefined && k.nodes?.length > 1) {
        const inner = k.nodes.filter(n => !k.writes.includes(n)).reduce((sum, n) => sum + 2 * (p.values.get(n)?.bytes ?? 0), 0);
        if (inner) made.push(`Unfused, its ${k.nodes.length - k.writes.length} internal values would move ${bytesText(inner)} more (written once, read once).`);
      }
    } else {
      const calls = [s, t].filter(x => x.kind === "library");
      for (const c of calls) made.push(`${recordOf(p, c).operator} is a library call: it takes its operands from memory and gives its results there.`);
      made.push(...this.between(p, s, t));
      for (const r of this.rejections(p, s, t)) made.push(`Tried and rejected: ${r.reason} (${r.detail})${MEANINGS[r.reason] ? `; ${MEANINGS[r.reason]}` : ""}.`);
    }
    made.push(...priced);
    if (made.length === 0) made.push("No generator proposed the two together.");
    return made;
  },

  // The price of the other choice: from the answers that were priced when the page was written, or that there is none, and why.
  priced(p, s, t, a, b) {
    if (!p.answers?.length) return [];
    const nodes = x => new Set(x.kind === "node" ? [x.label] : recordOf(p, x).nodes ?? recordOf(p, x).results?.map(r => r[1]) ?? []);
    const [first, second] = [nodes(a), nodes(b)], touches = w => first.has(w.first) && second.has(w.second) || first.has(w.second) && second.has(w.first);
    if (s.id === t.id) return this.cuts(p, s, a, b, touches);
    const [own, others] = [nodes(s), nodes(t)], between = w => own.has(w.first) && others.has(w.second) || own.has(w.second) && others.has(w.first);
    const exact = p.answers.filter(w => !w.cut && touches(w)), steps = exact.length ? exact : p.answers.filter(w => !w.cut && between(w));
    if (steps.length) return steps.slice(0, 3).map(w => this.text(w));
    // Equal neighbours were asked about once: the answer for the first pair is that of all of its form.
    const code = x => recordOf(p, x).name ?? recordOf(p, x).operator, homes = this.homes(p), form = v => homes.has(v) ? code(homes.get(v)) : "";
    const neighbours = this.stepEdges(p).users.get(s.id)?.has(t.id) || this.stepEdges(p).users.get(t.id)?.has(s.id);
    const alike = neighbours ? p.answers.filter(w => !w.cut && !w.together && (form(w.first) === code(s) && form(w.second) === code(t) || form(w.first) === code(t) && form(w.second) === code(s))) : [];
    return alike.length ? alike.slice(0, 2).map(w => `Of an equal pair: ${this.text(w)}`) : this.unpriced(p, s, t);
  },

  // Cutting a kernel in front of the later of two nodes; equal kernels have the same cuts.
  cuts(p, s, a, b, touches) {
    const k = recordOf(p, s), place = Math.max(k.nodes?.indexOf(a.label) ?? -1, k.nodes?.indexOf(b.label) ?? -1);
    const own = (p.answers ?? []).filter(w => w.cut && w.cut[0] === k.name).sort((x, y) => x.cut[1] - y.cut[1]);
    const nearest = own.filter(w => w.cut[1] <= place).pop();
    if (place <= 0 || !own.length) return (p.answers ?? []).filter(w => w.together && touches(w)).slice(0, 1).map(w => this.text(w));
    if (!nearest) return [`A cut in front of %${k.nodes[place]} has no price; the first that has one is in front of %${k.nodes[own[0].cut[1]]}: ${this.cost(own[0])}.`];
    return [`Cut in front of %${k.nodes[nearest.cut[1]]}${nearest.cut[1] < place ? ", the last place before the later of the two where it can leave the registers" : ""}: ${this.cost(nearest)}. ${nearest.decided_by === "cost" ? "" : `Decided by ${nearest.decided_by}: `}${nearest.detail}.`];
  },

  // Pairs that no answer holds: a call of the library cannot lie in a kernel, neither as one of the two nor between them.
  unpriced(p, s, t) {
    const fixed = x => x.kind === "library" && recordOf(p, x).fusible === false, device = p.e.device;
    for (const x of [s, t]) if (fixed(x)) return [`The other choice has no price: no kernel computes ${titleOf(p, x)} on ${device}.`];
    const [first, second] = p.order.indexOf(s.id) <= p.order.indexOf(t.id) ? [s, t] : [t, s], between = this.stepsBetween(p, first, second), call = between.find(id => fixed(p.boxes.get(id)));
    if (call) return [`The other choice has no price: one kernel would hold ${titleOf(p, p.boxes.get(call))} too, which lies between them, and no kernel computes that on ${device}.`];
    const bytes = this.common(p, s, t);
    const gain = `One kernel would save a launch (${timeText(p.e.machine?.graph_launch_us)}) and at most ${bytesText(bytes)} of traffic, which take ${timeText(bytes / (p.e.machine?.global_bytes_per_s ?? Infinity) * 1e6)} at full bandwidth`;
    return [between.length ? `${gain}; it would hold the ${counted(between.length, "step")} between them as well, and was not priced.` : `${gain}; it was not priced.`];
  },

  // Bytes that two steps move between them or read both. Values are counted whole.
  common(p, s, t) {
    const values = x => { const r = recordOf(p, x); return [new Set(r.reads ?? r.operands ?? []), new Set(r.writes ?? r.results?.map(q => q[1]) ?? [])]; };
    const [reads, writes] = values(s), [otherReads, otherWrites] = values(t), size = v => p.values.get(v)?.bytes ?? 0;
    return d3.sum([...reads].filter(v => otherReads.has(v)), size) + d3.sum([...writes].filter(v => otherReads.has(v)), v => 2 * size(v)) + d3.sum([...otherWrites].filter(v => reads.has(v)), v => 2 * size(v));
  },

  cost(w) {
    return w.other_us === null ? `no other choice: ${w.no_other}` : `${timeText(w.other_us)} instead of ${timeText(w.chosen_us)} (${w.other_us >= w.chosen_us ? "+" : "\u2212"}${timeText(Math.abs(w.other_us - w.chosen_us))})`;
  },

  text(w) {
    return `%${w.first} and %${w.second}, decided by ${w.decided_by}: ${w.detail}; ${w.other_us === null ? "" : w.together ? "cut apart " : "in one kernel "}${this.cost(w)}.`;
  },

  // The step that computes each value.
  homes(p) {
    return p.homes ??= new Map([...p.boxes.values()].filter(x => x.kind === "kernel" || x.kind === "library")
      .flatMap(x => (recordOf(p, x).nodes ?? recordOf(p, x).results.map(r => r[1])).map(n => [n, x])));
  },

  // Values between two steps, and a path that leaves both: then one kernel would wait for itself.
  between(p, s, t) {
    const inside = id => stepOf(p, p.boxes.get(id))?.id, direct = p.edges.filter(e => inside(e.source) === s.id && inside(e.target) === t.id || inside(e.source) === t.id && inside(e.target) === s.id);
    const values = [...new Map(direct.map(e => [e.value, e])).values()], made = [];
    if (values.length) made.push(`Between them ${values.map(e => `%${e.value} (${e.type})`).join(", ")}: ${bytesText(values.reduce((x, e) => x + e.bytes, 0))} through global memory.`);
    else made.push("No value goes from one straight to the other.");
    const [first, second] = p.order.indexOf(s.id) <= p.order.indexOf(t.id) ? [s, t] : [t, s];
    const via = this.detour(p, first, second);
    if (via) made.push(`A path goes from the first through ${via} to the second: one kernel with both, and without it, would wait for itself (not-convex).`);
    return made;
  },

  detour(p, s, t) {
    const via = this.stepsBetween(p, s, t)[0];
    return via ? titleOf(p, p.boxes.get(via)) : "";
  },

  // Steps on any path from one to the other, in order of execution.
  stepsBetween(p, s, t) {
    const down = new Set(), up = new Set();
    const visit = (start, from, seen) => {
      const stack = [start];
      while (stack.length) {
        const at = stack.pop();
        for (const n of this.stepEdges(p)[from].get(at) ?? []) if (n !== s.id && n !== t.id && !seen.has(n)) { seen.add(n); stack.push(n); }
      }
    };
    visit(s.id, "users", down);
    visit(t.id, "producers", up);
    return p.order.filter(id => down.has(id) && up.has(id));
  },

  stepEdges(p) {
    if (p.stepGraph) return p.stepGraph;
    const users = new Map(), producers = new Map(), add = (map, k, v) => { if (!map.has(k)) map.set(k, new Set()); map.get(k).add(v); };
    for (const e of p.edges) {
      const a = stepOf(p, p.boxes.get(e.source))?.id, b = stepOf(p, p.boxes.get(e.target))?.id;
      if (a && b && a !== b) { add(users, a, b); add(producers, b, a); }
    }
    return p.stepGraph = { users, producers };
  },

  rejections(p, s, t) {
    const nodes = x => new Set(recordOf(p, x).nodes ?? recordOf(p, x).results?.map(r => r[1]) ?? []), [a, b] = [nodes(s), nodes(t)];
    return (p.e.rejected ?? []).filter(r => a.has(r.first) && b.has(r.second) || a.has(r.second) && b.has(r.first));
  },

  // Shortest way between two nodes along edges, in either direction.
  path(p, from, to) {
    for (const [start, end] of [[from, to], [to, from]]) {
      const back = new Map([[start, null]]), queue = [start];
      while (queue.length && !back.has(end)) {
        const at = queue.shift();
        for (const e of p.edges) if (e.source === at && !back.has(e.target)) { back.set(e.target, e); queue.push(e.target); }
      }
      const found = [];
      for (let at = end; back.get(at); at = back.get(at).source) found.unshift(back.get(at));
      if (found.length) return found;
    }
    return [];
  },
};

function showRejected(p, pane) {
  const rejected = p.e.rejected ?? [], by = d3.nest().key(r => r.reason).entries(rejected).sort((a, b) => b.values.length - a.values.length);
  const counts = p.e.plan?.rejected ?? {};
  pane.replaceChildren(el("h2", { text: `candidates that were not taken: ${p.e.num_rejected ?? rejected.length} pairs of kernels` }),
    el("p", { class: "hint", text: `Candidates by generator: ${Object.entries(p.e.plan?.candidates ?? {}).map(([g, n]) => `${n} by ${g}`).join(", ") || "none"}. Rejected while they were proposed: ${Object.entries(counts).map(([r, n]) => `${n} ${r}`).join(", ") || "none"}.` }));
  if (!rejected.length) pane.append(el("p", { class: "hint", text: "No pair of kernels was rejected." }));
  const home = new Map([...p.e.kernels.flatMap((k, n) => k.nodes.map(v => [v, `k${n}/${v}`])), ...p.e.library.flatMap((c, n) => c.results.map(([, v]) => [v, `l${n}`]))]);
  for (const { key, values } of by) {
    pane.append(el("h2", {}, key, " ", el("span", { class: "badge", text: values.length })), MEANINGS[key] ? el("p", { class: "hint", text: MEANINGS[key] }) : "");
    pane.append(table(["first", "second", "what decided it"], values.map(r => el("tr", { class: "row", onclick: () => { if (home.has(r.first)) { page.tab("graph"); page.choose(home.get(r.first)); if (home.has(r.second)) page.choose(home.get(r.second), true); } } },
      el("td", { class: "wrap", text: `%${r.first}` }), el("td", { class: "wrap", text: `%${r.second}` }), el("td", { class: "wrap", text: r.detail })))));
  }
}
