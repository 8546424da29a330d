// The page: which program, tab and box are shown; search; keys.

const TABS = [["graph", "Graph"], ["kernels", "Kernels"], ["time", "Time"], ["roofline", "Roofline"], ["memory", "Memory"], ["rejected", "Not fused"], ["compare", "Compare"]];

const page = {
  programs: all.programs.map(opened),

  start() {
    document.getElementById("title").textContent = all.title;
    const select = document.getElementById("program");
    this.programs.forEach((p, n) => select.append(el("option", { value: n, text: p.label })));
    select.hidden = this.programs.length < 2;
    select.addEventListener("change", () => this.show(this.programs[select.value]));
    for (const [id, text] of TABS)
      if (id !== "compare" || this.programs.filter(p => p.side !== undefined).length > 1)
        document.getElementById("tabs").append(el("button", { role: "tab", "data-tab": id, text, onclick: () => this.tab(id) }));
    this.buttons();
    this.search();
    document.getElementById("legend").replaceChildren(el("span", { text: "levels:" }), ...LEVELS.map(l => el("span", {}, el("i", { style: `border-color:var(--${l})` }), l)));
    this.show(this.programs[0]);
    this.tab("graph");
    if (location.hash.length > 1) this.goTo(decodeURIComponent(location.hash.slice(1)));
  },

  show(p) {
    this.p = p;
    const t = p.e.totals ?? {}, parts = [[p.e.num_kernels, `kernels of ${p.e.unfused_kernels} unfused`], [p.e.library.length, "library calls"]];
    if (t.bytes !== undefined) parts.push([bytesText(t.bytes), `moved, ${bytesText(t.unfused_bytes)} unfused`]);
    if (t.us !== undefined) parts.push([timeText(t.us), `predicted, ${timeText(t.unfused_us)} unfused`]);
    if (p.times.size) parts.push([timeText([...p.times.values()].reduce((s, x) => s + x.us, 0)), "measured"]);
    document.getElementById("summary").replaceChildren(...parts.map(([n, text]) => el("span", {}, el("b", { text: n }), ` ${text}`)), el("span", { text: `on ${p.e.device}` }));
    graphView.start(p);
    this.choose("");
    if (this.current) this.tab(this.current);
  },

  tab(id) {
    this.current = id;
    for (const [name] of TABS) document.getElementById(name).hidden = name !== id;
    document.querySelectorAll("#tabs button").forEach(b => b.setAttribute("aria-selected", b.dataset.tab === id));
    const pane = document.getElementById(id);
    ({ kernels: () => showKernels(this.p, pane), time: () => showTime(this.p, pane), roofline: () => showRoofline(this.p, pane), memory: () => showMemory(this.p, pane),
      rejected: () => showRejected(this.p, pane), compare: () => showCompare(pane), graph: () => graphView.drawView() })[id]();
  },

  // A click chooses a box; with shift the second of two, and the panel tells why they share a kernel or not.
  choose(id, second = false) {
    if (id && !this.p.boxes.has(id)) return;
    if (second && graphView.chosen && id && id !== graphView.chosen) {
      graphView.second = id;
      whyPanel.show(this.p, graphView.chosen, id);
    } else {
      graphView.chosen = id;
      graphView.second = "";
      sidePanel.show(this.p, id);
    }
    if (id && this.current === "graph" && graphView.shown(id) !== id && this.p.boxes.get(id).kind !== "group") graphView.reveal(id);
    graphView.mark();
    const marked = graphView.chosen ? graphView.shown(graphView.chosen) : "";
    d3.selectAll("#minimap rect.box").classed("chosen", b => b.id === marked);
  },

  goTo(id) {
    if (!this.p.boxes.has(id)) return;
    this.tab("graph");
    graphView.reveal(id);
    this.choose(id);
  },

  buttons() {
    const on = (id, event, f) => document.getElementById(id).addEventListener(event, f);
    on("open-all", "click", () => graphView.openMore());
    on("close-all", "click", () => graphView.closeAll());
    on("fit", "click", () => graphView.fit());
    on("inputs", "change", e => { graphView.showInputs = e.target.checked; graphView.draw(); });
    on("labels", "change", e => { graphView.showLabels = e.target.checked; graphView.draw(); });
    window.addEventListener("resize", () => { if (this.current === "graph") graphView.drawView(); else this.tab(this.current); });
    window.addEventListener("keydown", e => {
      if (e.key === "/" && document.activeElement.tagName !== "INPUT") { e.preventDefault(); document.getElementById("search").focus(); }
      if (e.key === "Escape") { document.getElementById("found").hidden = true; this.choose(""); }
    });
  },

  search() {
    const input = document.getElementById("search"), list = document.getElementById("found");
    let here = 0, found = [];
    const draw = () => {
      list.hidden = !found.length;
      list.replaceChildren(...found.map((b, n) => el("li", { class: n === here ? "here" : "", onclick: () => go(n) }, cut(titleOf(this.p, b), 46), " ", el("small", { text: `${b.kind} ${cut(wordsOf(this.p, b), 60)}` }))));
    };
    const go = n => { here = n; this.goTo(found[n].id); draw(); };
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      here = 0;
      found = words.length ? [...this.p.boxes.values()].filter(b => { const text = `${titleOf(this.p, b)} ${wordsOf(this.p, b)}`.toLowerCase(); return words.every(w => text.includes(w)); }).slice(0, 40) : [];
      draw();
    });
    input.addEventListener("keydown", e => {
      if (!found.length) return;
      if (e.key === "Enter") go(here);
      if (e.key === "ArrowDown" || e.key === "ArrowUp") { e.preventDefault(); here = (here + (e.key === "ArrowDown" ? 1 : found.length - 1)) % found.length; draw(); }
    });
    input.addEventListener("blur", () => setTimeout(() => { list.hidden = true; }, 200));
  },
};

page.start();
