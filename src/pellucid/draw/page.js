"use strict";
// One trace, drawn. Text from a model or a person only ever becomes a text node.

const ROWS = 400, TERMS = 1000; // of a list; the rest is counted
const at = (id) => document.getElementById(id);
const about = JSON.parse(at("about").textContent);
const held = parse(bytes(at("values").textContent));
const spans = held.get("spans"), pools = [held.get("short"), held.get("long")];
const told = tellers();
const state = { language: about.language, tensor: 0, rows: 0, columns: 0, cut: [], cell: null };

function bytes(text) {
  const raw = atob(text.trim()), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out.buffer;
}

// A safetensors file: the length of a JSON header in eight bytes, the header, the tensors.
function parse(file) {
  const kinds = { F64: Float64Array, F32: Float32Array, F16: Uint16Array, BF16: Uint16Array, I64: BigInt64Array, I32: Int32Array,
                  I16: Int16Array, I8: Int8Array, U8: Uint8Array, BOOL: Uint8Array };
  const n = Number(new DataView(file).getBigUint64(0, true));
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, n)));
  const found = new Map();
  for (const [name, { dtype, data_offsets: [a, b] }] of Object.entries(head))
    if (name !== "__metadata__") found.set(name, widen(new kinds[dtype](file.slice(8 + n + a, 8 + n + b)), dtype));
  return found;
}

function widen(raw, dtype) {
  if (dtype === "BF16") return new Float32Array(Uint32Array.from(raw, (x) => x << 16).buffer);
  if (dtype === "F16") return Float32Array.from(raw, half);
  return raw;
}

function half(x) {
  const sign = x >> 15 ? -1 : 1, exponent = (x >> 10) & 31, part = x & 1023;
  if (exponent === 31) return part ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + part / 1024) : 2 ** -14 * (part / 1024));
}

// For each tensor, cell -> { names, columns } of its summands.
function tellers() {
  const found = new Map();
  for (const [name, rows] of held) {
    const key = /^(\d+)\.\d+\.(.*)$/s.exec(name);
    if (!key) continue;
    const names = key[2].split(","), width = names.length + 1, cells = found.get(+key[1]) ?? new Map();
    for (let i = 0; i < rows.length; i += width) cells.set(rows[i], { names, columns: rows.subarray(i + 1, i + width) });
    found.set(+key[1], cells);
  }
  return found;
}

function column(i) {
  return pools[spans[3 * i]].subarray(spans[3 * i + 1], spans[3 * i + 2]);
}

const say = (key, values = {}) => about.words[state.language][key].replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
// Control and direction characters are shown as escapes, so that no text can hide or turn another.
const visible = (text) => String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

function put(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = visible(text);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// The shortest decimal number that gives back the very bits.
function exact(x, dtype) {
  if (typeof x === "bigint" || Number.isNaN(x)) return String(x);
  if (Object.is(x, -0)) return "-0";
  if (!Number.isFinite(x)) return x < 0 ? "-∞" : "∞";
  if (dtype === "float64" || Number.isInteger(x)) return String(x);
  for (let digits = 1; digits < 10; digits++) if (Math.fround(Number(x.toPrecision(digits))) === x) return String(Number(x.toPrecision(digits)));
  return String(x);
}

// The nearest number of a dtype, ties to even.
function rounded(x, dtype) {
  if (dtype === "float32") return Math.fround(x);
  if (dtype === "float16" && Math.f16round) return Math.f16round(x);
  if (dtype !== "bfloat16") return x;
  const bits = new Uint32Array(new Float32Array([x]).buffer);
  bits[0] = (bits[0] + 0x7fff + ((bits[0] >>> 16) & 1)) & 0xffff0000;
  return new Float32Array(bits.buffer)[0];
}

const four = (x) => String(Number(Number(x).toPrecision(4)));

function start() {
  at("language").value = state.language;
  at("language").addEventListener("change", (e) => { state.language = e.target.value; all(); });
  at("filter").addEventListener("input", list);
  at("map").addEventListener("scroll", draw);
  at("map").addEventListener("mousemove", hover);
  at("map").addEventListener("keydown", key);
  addEventListener("resize", () => { lay(); draw(); });
  choose(0);
  all();
}

function all() {
  document.documentElement.lang = state.language === "zh" ? "zh-Hans" : "en";
  document.title = visible(say("page.title", { model: about.run.model || "Pellucid" }));
  at("title").textContent = document.title;
  for (const e of document.querySelectorAll("[data-word]")) e.textContent = say(e.dataset.word);
  at("map").setAttribute("aria-label", say("page.map"));
  at("hint").textContent = say("page.hint");
  at("told").textContent = say("page.told", { told: about.told, cells: about.cells });
  run();
  list();
  tile();
}

function run() {
  const { model, prompt, ids, new: next, pieces } = about.run;
  const tokens = (from, to) => {
    const line = put("dd", null);
    for (let i = from; i < to; i++) line.append(put("bdi", label(i) ?? [...ids, ...next][i], { class: "token", title: [...ids, ...next][i] }));
    return line;
  };
  const rows = [["page.model", put("dd", model)], ["page.ids", tokens(0, ids.length)], ["page.next", tokens(ids.length, ids.length + next.length)]];
  if (prompt !== null) rows.splice(1, 0, ["page.prompt", put("dd", prompt, { dir: "auto", id: "prompt" })]);
  at("run").replaceChildren(...rows.flatMap(([name, line]) => [put("dt", say(name)), line]));
}

const label = (i) => about.run.pieces[i];

// The token of a row: step 0 feeds the prompt, every later one the token before. An encoder's rows are another text's.
function token(tensor, letter, i) {
  if (!"TS".includes(letter) || about.tensors.some((t) => t.path === "source")) return undefined;
  const seen = tensor.step ? about.run.ids.length + tensor.step : tensor.axes.includes("T") && tensor.shape[tensor.axes.indexOf("T")];
  if (!tensor.step && seen !== about.run.ids.length) return undefined;
  return label(letter === "S" || !tensor.step ? i : seen - 1 + i);
}

function list() {
  const wanted = at("filter").value.trim();
  const found = about.tensors.map((t, i) => [t, i]).filter(([t]) => t.path.includes(wanted));
  const several = about.tensors.some((t) => t.step);
  at("tensors").replaceChildren(...found.slice(0, ROWS).map(([t, i]) => {
    const row = put("tr", null, i === state.tensor ? { class: "chosen" } : {}), name = put("td", null);
    const button = put("button", (several ? `${say("page.step", { step: t.step })} ` : "") + t.path, { type: "button", "data-number": i });
    button.addEventListener("click", () => { choose(i); list(); tile(); });
    name.append(button);
    row.append(name, put("td", sizes(t)), put("td", t.dtype), put("td", t.op ?? "", { title: visible(t.made) }));
    for (const n of [t.low, t.mean, t.high]) row.append(put("td", n, { class: "number" }));
    return row;
  }));
  at("more").textContent = found.length > ROWS ? say("page.more", { count: found.length - ROWS }) : "";
}

const sizes = (t) => t.axes.map((a, i) => `${a} ${t.shape[i]}`).join(", ");

// The last two axes are rows and columns; of the others the first is shown, of tokens the last.
function choose(i) {
  const t = about.tensors[i];
  if (!t) return;
  const n = t.shape.length;
  Object.assign(state, { tensor: i, rows: n > 1 ? n - 2 : -1, columns: n ? n - 1 : -1, cell: null });
  state.cut = t.shape.map((size, d) => (t.axes[d] === "T" ? size - 1 : 0));
}

const index = (row, col) => state.cut.map((c, d) => (d === state.columns ? col : d === state.rows ? row : c));
const flat = (shape, where) => where.reduce((sum, i, d) => sum * shape[d] + i, 0);
const high = (t) => (state.rows < 0 ? 1 : t.shape[state.rows]);
const wide = (t) => (state.columns < 0 ? 1 : t.shape[state.columns]);

function tile() {
  const t = about.tensors[state.tensor];
  if (!t) return;
  at("path").textContent = visible(t.path);
  at("made").textContent = visible(t.made);
  at("axes").replaceChildren(...t.axes.flatMap((a, d) => [
    put("span", `${a} = ${t.shape[d]}`, { title: visible(a.replace(/[A-Z]/g, (x) => about.words[state.language][`axis.${x}`] ?? x)) }),
    put("span", d + 1 < t.axes.length ? ", " : "")]));
  const notes = [say(`page.${t.source}`, { error: t.error ?? "-" }), t.dtype];
  if (t.odd) notes.push(say("page.odd", { count: t.odd }));
  at("source").textContent = notes.join(" · ");
  cuts(t);
  lay();
  draw();
  read();
}

function cuts(t) {
  const pick = (word, field) => {
    const made = put("label", say(word) + " "), choice = put("select", null, { id: field });
    t.axes.forEach((a, d) => choice.append(put("option", a, { value: d })));
    choice.value = state[field];
    choice.addEventListener("change", () => {
      const other = field === "rows" ? "columns" : "rows", old = state[field];
      state[field] = +choice.value;
      if (state[other] === state[field]) state[other] = old;
      state.cell = null;
      tile();
    });
    made.append(choice);
    return made;
  };
  const slider = (a, d) => {
    const made = put("label", `${a} `), input = put("input", null, { type: "number", min: 0, max: t.shape[d] - 1, "data-axis": d });
    input.value = state.cut[d];
    input.addEventListener("input", () => {
      state.cut[d] = Math.min(Math.max(0, Math.trunc(+input.value) || 0), Math.max(0, t.shape[d] - 1));
      draw();
      read();
    });
    made.append(input);
    return made;
  };
  const rest = t.axes.map((a, d) => [a, d]).filter(([, d]) => d !== state.rows && d !== state.columns);
  at("cuts").replaceChildren(...(t.axes.length > 1 ? [pick("page.rows", "rows"), pick("page.columns", "columns")] : []), ...rest.map(([a, d]) => slider(a, d)));
}

// The sheet has the size of the whole picture; the canvas stays in sight and holds the part that is seen.
function lay() {
  const t = about.tensors[state.tensor], map = at("map"), size = (room, n) => Math.min(28, Math.max(7, Math.floor(room / Math.max(1, n))));
  state.wide = size(map.clientWidth, wide(t));
  state.high = size(360, high(t));
  const sheet = at("sheet"), canvas = at("canvas");
  sheet.style.width = `${state.wide * wide(t)}px`;
  sheet.style.height = `${state.high * high(t)}px`;
  canvas.width = Math.max(1, Math.min(map.clientWidth, state.wide * wide(t)));
  canvas.height = Math.max(1, Math.min(382, state.high * high(t)));
}

function draw() {
  const t = about.tensors[state.tensor], map = at("map"), canvas = at("canvas"), pen = canvas.getContext("2d"), values = held.get(String(state.tensor));
  pen.clearRect(0, 0, canvas.width, canvas.height);
  if (!values.length) {
    at("hint").textContent = say("page.empty");
    return;
  }
  const { wide: w, high: h } = state, left = map.scrollLeft, top = map.scrollTop;
  for (let r = Math.floor(top / h); r < high(t) && r * h < top + canvas.height; r++)
    for (let c = Math.floor(left / w); c < wide(t) && c * w < left + canvas.width; c++) {
      pen.fillStyle = colour(Number(values[flat(t.shape, index(r, c))]), t);
      pen.fillRect(c * w - left, r * h - top, w - (w > 9), h - (h > 9));
    }
  if (state.cell) {
    pen.strokeStyle = "#f59e0b";
    pen.lineWidth = 2;
    pen.strokeRect(state.cell[1] * w - left + 1, state.cell[0] * h - top + 1, w - 2, h - 2);
  }
}

const SIGNED = [[33, 102, 172], [247, 247, 247], [178, 24, 43]];
const SHARE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

// Shares run from 0 to 1, other values from -top through white to top; what is not finite is grey.
function colour(x, t) {
  if (!Number.isFinite(x)) return "#777";
  const share = t.op === "softmax" || t.op === "sigmoid", scale = share ? SHARE : SIGNED;
  const part = Math.min(1, Math.max(0, share ? x : t.top ? (x / t.top + 1) / 2 : 0.5)) * (scale.length - 1);
  const i = Math.min(scale.length - 2, Math.floor(part)), rest = part - i;
  return `rgb(${scale[i].map((a, k) => Math.round(a + (scale[i + 1][k] - a) * rest)).join(" ")})`;
}

function hover(event) {
  const t = about.tensors[state.tensor], map = at("map"), box = map.getBoundingClientRect();
  point(Math.floor((event.clientY - box.top - map.clientTop + map.scrollTop) / state.high),
        Math.floor((event.clientX - box.left - map.clientLeft + map.scrollLeft) / state.wide), t);
}

function point(row, col, t) {
  if (row < 0 || col < 0 || row >= high(t) || col >= wide(t) || !held.get(String(state.tensor)).length) return;
  if (state.cell && state.cell[0] === row && state.cell[1] === col) return;
  state.cell = [row, col];
  draw();
  read();
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -Infinity], End: [0, Infinity] };

function key(event) {
  const t = about.tensors[state.tensor], step = STEPS[event.key], map = at("map");
  if (!step) return;
  event.preventDefault();
  const [r, c] = state.cell ? state.cell.map((x, i) => x + step[i]) : [0, 0];
  point(r, Number.isFinite(c) ? c : c < 0 ? 0 : wide(t) - 1, t);
  const keep = (x, size, from, room) => (x * size < from ? x * size : (x + 1) * size > from + room ? (x + 1) * size - room : from);
  if (state.cell) map.scrollTo(keep(state.cell[1], state.wide, map.scrollLeft, map.clientWidth), keep(state.cell[0], state.high, map.scrollTop, map.clientHeight));
}

// The cell under the cursor: its value, and the numbers that it is the sum of.
function read() {
  const t = about.tensors[state.tensor], values = held.get(String(state.tensor));
  at("terms").replaceChildren();
  at("formula").textContent = "";
  at("value").textContent = "";
  if (!state.cell || !values.length) return;
  const where = index(...state.cell), spot = flat(t.shape, where), value = values[spot];
  const names = where.map((i, d) => token(t, t.axes[d], i)).filter((x) => x !== undefined);
  at("value").textContent = visible(`${t.path}[${where.join(", ")}] = ${exact(value, t.dtype)}` + (names.length ? `   ${names.join(" → ")}` : ""));
  const found = told.get(state.tensor)?.get(spot);
  if (found) terms(t, where, value, found);
  else at("formula").textContent = t.terms ? say("page.beyond", { told: about.told, cells: about.cells }) : say("page.untold");
}

function terms(t, where, value, { names, columns }) {
  const factors = Array.from(columns, column), n = factors[0].length;
  const products = Array.from({ length: n }, (_, i) => factors.reduce((p, f) => p * f[i], 1));
  const sum = products.reduce((a, b) => a + b, 0), factor = (i) => factors.map((f) => four(f[i])).join("·");
  const shown = n > 4 ? [0, 1, 2].map(factor).concat("…", factor(n - 1)) : Array.from({ length: n }, (_, i) => factor(i));
  at("formula").textContent = visible(`Σ ${names.join(" · ")} = ${shown.join(" + ")} = ${four(sum)}`);
  const head = put("tr", null), foot = put("tfoot", null), body = put("tbody", null);
  for (const name of [say("page.term"), ...names, say("page.product")]) head.append(put("th", name, { class: "number" }));
  for (let i = 0; i < Math.min(n, TERMS); i++) {
    const row = put("tr", null);
    for (const x of [i, ...factors.map((f) => f[i]), products[i]]) row.append(put("td", exact(x, "float64"), { class: "number" }));
    body.append(row);
  }
  const line = (word, x) => {
    const row = put("tr", null, { "data-line": word });
    row.append(put("td", say(word, { dtype: t.dtype }), { colspan: names.length + 1 }), put("td", x, { class: "number" }));
    foot.append(row);
  };
  if (n > TERMS) line("page.rest", exact(products.slice(TERMS).reduce((a, b) => a + b, 0), "float64"));
  line("page.sum", exact(sum, "float64"));
  line("page.rounded", exact(rounded(sum, t.dtype), t.dtype));
  line("page.cell", exact(value, t.dtype));
  const top = put("thead", null);
  top.append(head);
  at("terms").replaceChildren(top, body, foot);
}

start();
