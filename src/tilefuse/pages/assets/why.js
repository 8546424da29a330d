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
    if (names.every(Boolean)) side.append(el("p", { class: "hint" }, "The price of the other choice for any two: ", el("code", { class: "wrap", text: `tilefuse explain MODEL --why ${names.join(" ")}` })));
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

  // Answers that were priced when the page was written.
  priced(p, s, t, a, b) {
    const nodes = x => new Set(x.kind === "node" ? [x.label] : recordOf(p, x).nodes ?? recordOf(p, x).results?.map(r => r[1]) ?? []);
    const [first, second] = [nodes(a), nodes(b)];
    // Equal steps were asked about once: the answer for the first pair is that of all of its form.
    const code = x => recordOf(p, x).name ?? recordOf(p, x).operator, homes = this.homes(p), form = v => homes.has(v) ? code(homes.get(v)) : "";
    const exact = (p.answers ?? []).filter(w => first.has(w.first) && second.has(w.second) || first.has(w.second) && second.has(w.first));
    const alike = (p.answers ?? []).filter(w => (form(w.first) === code(s) && form(w.second) === code(t) || form(w.first) === code(t) && form(w.second) === code(s)) && (s.id === t.id) === w.together);
    return (exact.length ? exact : alike).slice(0, 3).map(w => {
      const cost = w.other_us === null ? `no other choice: ${w.no_other}` : `as planned ${timeText(w.chosen_us)}, ${w.together ? "cut apart" : "in one kernel"} ${timeText(w.other_us)} (${w.other_us >= w.chosen_us ? "+" : "\u2212"}${timeText(Math.abs(w.other_us - w.chosen_us))})`;
      return `%${w.first} and %${w.second}, decided by ${w.decided_by}: ${w.detail}; ${cost}.`;
    });
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
    const inside = id => stepOf(p, p.boxes.get(id))?.id, down = new Set(), up = new Set();
    const visit = (start, from, to, seen) => {
      const stack = [start];
      while (stack.length) {
        const at = stack.pop();
        for (const n of this.stepEdges(p)[from].get(at) ?? []) if (n !== s.id && n !== t.id && !seen.has(n)) { seen.add(n); stack.push(n); }
      }
    };
    visit(s.id, "users", "", down);
    visit(t.id, "producers", "", up);
    const via = p.order.find(id => down.has(id) && up.has(id));
    return via ? titleOf(p, p.boxes.get(via)) : "";
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
