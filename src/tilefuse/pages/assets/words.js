// Numbers, names and small elements for people: every part of the page writes them through these functions.

const all = JSON.parse(document.getElementById("data").textContent);

function bytesText(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(n) < 1024 || unit === "GiB") return unit === "B" ? `${n} B` : `${n.toFixed(n < 10 ? 2 : 1)} ${unit}`;
    n /= 1024;
  }
}

function timeText(us) {
  if (us === undefined || us === null) return "-";
  if (us >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
  if (us >= 1e3) return `${(us / 1e3).toFixed(2)} ms`;
  return `${us.toFixed(us >= 100 ? 0 : us >= 10 ? 1 : 2)} us`;
}

function counted(n, noun) { return `${n} ${noun}${n === 1 ? "" : "s"}`; }

function cut(text, most) { return text.length <= most ? text : text.slice(0, most - 1) + "\u2026"; }

// An element with properties, attributes and children; text is never read as markup.
function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "text") made.textContent = value;
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) made.append(child);
  return made;
}

function facts(pairs) {
  const list = el("dl");
  for (const [name, value] of pairs) {
    if (value === undefined || value === null || value === "") continue;
    list.append(el("dt", { text: name }), value instanceof Node ? el("dd", {}, value) : el("dd", { text: value }));
  }
  return list;
}

function table(heads, rows) {
  return el("table", {}, el("thead", {}, el("tr", {}, heads.map(h => el("th", { text: h.text ?? h, class: h.number ? "number" : "" })))),
    el("tbody", {}, rows));
}

// A program of the page, with the tables that every part looks up.
function opened(program) {
  const e = program.explanation, graph = e.graph ?? { inputs: [], nodes: [], results: [] };
  const boxes = new Map(program.drawing.boxes.map(b => [b.id, { ...b, children: [] }]));
  for (const b of boxes.values()) if (b.parent) boxes.get(b.parent).children.push(b.id);
  const values = new Map([...graph.inputs, ...graph.nodes].map(v => [v.name, v]));
  const order = (e.steps ?? []).map(([list, n]) => ({ kernels: "k", library: "l", copies: "c" })[list] + n);
  const times = new Map((program.times ?? []).map((t, n) => [order[n], t]));
  const titles = new Map([...(e.inputs ?? []), ...(e.weights ?? []), ...(e.results ?? [])].map(([title, name]) => [name, title]));
  return { ...program, e, graph, boxes, values, order, times, titles, edges: program.drawing.edges };
}

// The record behind a box of a step: a kernel's, a call's or a copy's.
function recordOf(p, box) {
  return { kernel: p.e.kernels, library: p.e.library, copy: p.e.copies }[box.kind]?.[box.number];
}

const STEPS = ["kernel", "library", "copy"];

function stepOf(p, box) {
  while (box && !STEPS.includes(box.kind)) box = p.boxes.get(box.parent);
  return box;
}

// Time of a step: measured where a run was measured, else predicted. Units: microseconds.
function stepTime(p, id) {
  const record = recordOf(p, p.boxes.get(id));
  return { measured: p.times.get(id)?.us, predicted: record?.predicted_us, least: record?.at_least };
}

// A value in the words of the user's model where it has a name there, else by its name in the graph.
function nameOf(p, value) { return p.titles.get(value) ?? `%${value}`; }

function stepBytes(record) { return record.bytes ?? (record.bytes_read ?? 0) + (record.bytes_written ?? 0); }

function titleOf(p, box) {
  const record = recordOf(p, box);
  switch (box.kind) {
    case "kernel": return kernelTitle(p, record);
    case "library": return record.operator.replace(/^aten\.|\.default$/g, "").replace(/^_+/, "");
    case "copy": return `${record.target} = ${record.source}`;
    case "node": return operatorOf(p.values.get(box.label)) || box.label;
    default: return box.label;
  }
}

// A node's operator in the words of the user's model.
function operatorOf(value) { return (value?.operator ?? "").replace(/^aten\./, "").replace(/^_+/, ""); }

// Operators that move no data of their own inside a kernel: a title leaves them out where it has others.
const LAYOUT = new Set(["view", "t", "transpose", "permute", "reshape", "expand", "unsqueeze", "squeeze", "contiguous", "unsafe_view",
  "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Flatten", "Identity"]);

// A kernel's operators in order, equal neighbours once; the values that it writes where no operator is known.
function kernelTitle(p, record) {
  const all = record.nodes.map(n => operatorOf(p.values.get(n))).filter(Boolean), own = all.filter(o => !LAYOUT.has(o)), told = own.length ? own : all, words = told.filter((o, n) => o !== told[n - 1]);
  return words.length ? words.join(" + ") : record.writes.join(", ");
}

// Words under which a box is found.
function wordsOf(p, box) {
  const record = recordOf(p, box);
  switch (box.kind) {
    case "kernel": return `${record.step} ${record.name} ${record.template} ${record.writes.join(" ")} ${box.path ?? ""}`;
    case "library": return `${record.operator} ${box.path ?? ""} ${record.results.map(r => r[1]).join(" ")}`;
    case "node": return `${box.label} ${p.values.get(box.label)?.kind ?? ""} ${p.values.get(box.label)?.path ?? ""} ${p.values.get(box.label)?.place ?? ""}`;
    default: return `${box.label} ${box.value ?? ""}`;
  }
}

// A plain svg on a pane, with a group inside the margins. Sizes in pixels.
function plot(pane, width, height, margin) {
  const svg = d3.select(pane).append("svg").attr("class", "plot").attr("viewBox", `0 0 ${width} ${height}`).attr("width", width).attr("height", height);
  return svg.append("g").attr("transform", `translate(${margin.left},${margin.top})`);
}
