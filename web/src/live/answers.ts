// The server's part of a page that runs its model: the page's requests, answered by what is computed here.

import { along, type Both } from "./along";
import { say } from "../messages";
import { parsed } from "../run/edits";
import { cut, pooled } from "../run/recorded";
import { Refused } from "../run/refused";
import { ranked, type Sampling } from "../sampling/stages";
import { decode } from "../tensor/decode";
import { parse, type Stored } from "../tensor/safetensors";
import { Tokenizer } from "./tokenizer";
import { fetched } from "./fetched";
import { sha256 } from "./hash";
import { Kernels } from "./kernels";
import { lensOf, mapOf } from "./live_map";
import { LiveModel, LiveRun, NoNumber, statsOf } from "./live_run";
import { termsOf } from "./live_terms";
import { whyOf } from "./live_why";
import { Plan } from "./plan";
import { carried, embedded, type LiveDocument } from "./present";

const RUNS = 8; // that are kept, those used last
const MOST = 256; // new tokens of a run

const runs = new Map<string, LiveRun>();
let made: Promise<LiveModel> | undefined;

// The run of an id, which is now the one used last.
function used(id: string): LiveRun | undefined {
  const run = runs.get(id);
  if (run && runs.delete(id)) runs.set(id, run);
  return run;
}

const unpacked = (text: string): Uint8Array<ArrayBuffer> => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

// The bytes that the file carries, if they are those that were written.
async function checked(part: keyof LiveDocument["sha256"], expected = ""): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = unpacked(carried(part)), found = await sha256(bytes);
  if (found !== expected) throw new Refused(say("page.live.damaged", { part: say(part === "weights" ? "page.live.weights" : "page.live.binary"), found, expected }));
  return bytes;
}

async function load(document: LiveDocument): Promise<LiveModel> {
  const plan = new Plan(await Kernels.of(await checked("kernels", document.sha256.kernels)), document.plan);
  if (document.chunks) await fetched(document.chunks, (tensors) => { plan.fillWith(tensors); });
  else plan.fillWith(parse((await checked("weights", document.sha256.weights)).buffer).tensors);
  if (plan.lacking !== undefined) throw new RangeError(plan.lacking);
  return new LiveModel(document, plan, new Tokenizer(document));
}

// After a file that was missing the next request tries again.
function ready(document: LiveDocument): Promise<LiveModel> {
  made ??= load(document).catch((fault: unknown) => {
    made = undefined;
    throw fault;
  });
  return made;
}

interface Body { model?: string; prompt?: string; ids?: number[]; new?: number; sampling?: Partial<Sampling>; forced?: Record<string, number>; with?: string[]; changes?: string[]; row?: number; top?: number }

// The answer to a request, as the server's JSON. path: behind "api/".
export async function answer(path: string, body: Body | undefined): Promise<unknown> {
  if (!embedded) throw new Refused(say("page.live.served", { model: "" }));
  if (path in embedded.answers && !body) return embedded.answers[path];
  const model = await ready(embedded), [place = "", query = ""] = path.split("?"), words = place.split("/"), fields = new URLSearchParams(query);
  if (place === "runs" && body) return started(model, body).document();
  if (place === "switches") return { schema: 1, switches: [] };
  if (place === "weights/tensor/stats") return { stats: statsOf(model.weights.matrix(weightOf(model, fields.get("path") ?? ""))) };
  const run = words[0] === "runs" ? used(words[1] ?? "") : undefined, [, , kind, number, what] = words, k = Number(number);
  if (!run || (kind === "steps" && !run.steps[k])) throw absent();
  if (words.length === 2) return run.document();
  const other = used(fields.get("other") ?? "");
  if (kind === "differences" && other) return differences(run, other);
  if (kind === "tensors" && what === "terms") return termsOf(run, k, (fields.get("cell") ?? "").split(",").map(Number));
  if (kind === "tensors" && what === "stats") return { stats: statsOf(run.at(k).values) };
  if (kind !== "steps") throw absent();
  const row = Number(fields.get("row") ?? body?.row ?? -1);
  if (what === undefined) return { schema: 1, run: run.id, step: k, tensors: run.tensors(k) };
  if (what === "map") return mapOf(run, k);
  if (what === "lens") return { schema: 1, run: run.id, step: k, row, id: Number(fields.get("id")), layers: lensOf(run, k, row, Number(fields.get("id")), Number(fields.get("top") ?? 5)) };
  const why = what === "attribution" ? whyOf(run, k, row, Number(fields.get("id"))) : undefined;
  if (why) return why;
  if (what === "sample") return pieces(run, k, row, body?.top ?? 20);
  throw absent();
}

const absent = (): Refused => new Refused(say("page.live.served", { model: embedded?.model ?? "" }));

function started(model: LiveModel, body: Body): LiveRun {
  if ((body.with?.length ?? 0) > 0) throw absent();
  const edits = (body.changes ?? []).map((text) => {
    const edit = parsed(text), fixed = /(^|, )T=|^[^,]*,\d/.test(edit?.at ?? ""); // names a row, of which later steps have others
    if (!edit || (fixed && (body.new ?? 1) > 1)) throw new Refused(say("page.live.change", { change: text }));
    return edit;
  });
  const { longest, pieces } = model.document, ids = body.ids ?? model.ids(body.prompt ?? ""), steps = body.new ?? 1;
  const outside = ids.find((id) => id >= pieces.length);
  if (outside !== undefined) throw new Refused(say("page.live.row", { field: "ids", found: outside, allowed: `0..${pieces.length - 1}` }));
  if (ids.length === 0) throw new Refused(say("page.live.empty"));
  const most = model.document.starts === null ? ids.length + steps - 1 : Math.max(ids.length, steps); // of one stack
  if (most > longest) throw new Refused(say("page.live.long", { found: most, limit: longest }));
  const forced = new Map(Object.entries(body.forced ?? {}).map(([step, id]) => [Number(step), id]));
  const run = changed((body.changes ?? []).join("; "), () => new LiveRun(model, { prompt: body.ids ? null : (body.prompt ?? ""), ids, steps: Math.min(steps, MOST), sampling: body.sampling ?? {}, forced, edits }));
  runs.set(run.id, run);
  const size = (): number => [...runs.values()].reduce((n, r) => n + r.bytes, 0);
  while (runs.size > RUNS || (runs.size > 1 && size() > model.document.memory.runs)) runs.delete(runs.keys().next().value as string);
  return run;
}

// A run, or the sentence that an edit is none that this page makes.
function changed(changes: string, make: () => LiveRun): LiveRun {
  try {
    return make();
  } catch (fault) {
    if (fault instanceof RangeError) throw new Refused(say("page.live.change", { change: fault.message }));
    if (fault instanceof NoNumber) throw new Refused(say(fault.path ? "page.change.nan" : "page.change.infinite", { changes, step: fault.step, path: fault.path, at: fault.at }));
    throw fault;
  }
}

// The tensors of the first step of two runs that differ, and by how much.
function differences(run: LiveRun, other: LiveRun): unknown {
  const both: Both[] = [], theirs = new Map(other.tensors(0).map((t) => [t.path, t]));
  const tensors = run.tensors(0).flatMap((t) => {
    const o = theirs.get(t.path), x = run.at(t.n).values, y = o && other.at(o.n).values;
    if (!o || !y) return [];
    const largest = x.length === y.length ? x.reduce((m, v, i) => Math.max(m, Math.abs(v - (y[i] ?? NaN))), 0) : null;
    both.push({ ...t, before: x, after: y });
    return [{ n: t.n, other: o.n, path: t.path, call: 0, changed: largest !== 0, largest }];
  });
  return { schema: 1, run: run.id, other: other.id, tensors, along: along(both) };
}

// The likeliest tokens of a row, by their pieces; the page makes the stages itself.
function pieces(run: LiveRun, k: number, row: number, top: number): unknown {
  const step = run.steps[k], all = step?.values.get("logits") ?? new Float32Array(), width = all.length / (step?.fed.length ?? 1), at = row < 0 ? (step?.fed.length ?? 1) + row : row;
  const order = ranked(all.subarray(at * width, (at + 1) * width));
  return { schema: 1, run: run.id, step: k, row, picked: step?.picked ?? 0, rows: [...order.subarray(0, top)].map((id) => ({ id, piece: run.model.tokenizer.shown(id) })) };
}

// The path of a weight, if the model has it.
function weightOf({ weights }: LiveModel, path: string): string {
  if (!weights.shape(path)) throw new Refused(say("page.live.row", { field: "path", found: path, allowed: weights.names.slice(0, 5).join(", ") }));
  return path;
}

const bytesOf = (x: Float32Array | Float64Array): Uint8Array => new Uint8Array(x.buffer, x.byteOffset, x.byteLength);

// A part of a tensor or a weight, as the bytes of a safetensors file with one tensor.
export async function part(path: string): Promise<ArrayBuffer> {
  if (!embedded) throw absent();
  const model = await ready(embedded), [place = "", query = ""] = path.split("?"), fields = new URLSearchParams(query), words = place.split("/");
  let stored: Stored, at = fields.get("at") ?? "";
  if (place === "weights/tensor") {
    const path = weightOf(model, fields.get("path") ?? ""), shape = model.weights.shape(path) ?? [], rows = shape[0] ?? 1, [first = ":", ...others] = (at || shape.map(() => ":").join()).split(",");
    const [low = "", high] = first.split(":"), from = Number(low || 0), to = high === undefined ? from + 1 : Number(high || rows); // these rows alone
    stored = { dtype: "F32", shape: [to - from, ...shape.slice(1)], bytes: bytesOf(model.weights.rows(path, from, to)) };
    at = [high === undefined ? "0" : ":", ...others].join();
  } else {
    const { values: own, shape } = used(words[1] ?? "")?.at(Number(words[3])) ?? {}, other = used(fields.get("other") ?? "")?.at(Number(fields.get("m")));
    const values = words[4] === "difference" ? other?.values.map((x, i) => x - (own?.[i] ?? NaN)) : own; // the other run's less this one's
    if (!values || !shape || values.length !== own?.length) throw absent();
    stored = { dtype: "F32", shape, bytes: bytesOf(values) };
  }
  const own = cut(stored, at || stored.shape.map(() => ":").join()), level = Number(fields.get("level") ?? 0);
  const sent = level > 0 ? pooled(decode(own), own.shape, level) : { values: decode(own), shape: own.shape };
  const head = new TextEncoder().encode(JSON.stringify({ __metadata__: { sha256: await sha256(own.bytes.slice()) }, x: { dtype: "F32", shape: sent.shape, data_offsets: [0, sent.values.byteLength] } }));
  const out = new Uint8Array(8 + head.length + sent.values.byteLength);
  new DataView(out.buffer).setBigUint64(0, BigInt(head.length), true);
  out.set(head, 8);
  out.set(bytesOf(sent.values), 8 + head.length);
  return out.buffer;
}
