// A plan of one row, replayed: every tensor that the model computes for a token, where the calls of Python's recording wrote it.
// See engine/written_plan.py, which writes the document.

import { decode } from "../tensor/decode";
import type { Stored } from "../tensor/safetensors";
import type { Kernels, PlannedCall } from "./kernels";

type Input = "token" | "position" | "length";
// shared: by all rows; other regions are a row's own.
export interface Region { shared: boolean; kind: "weight" | "table" | "pool" | "made" | "data" | "memory" | Input | `source ${Input}`; bytes: number; name?: string; shape?: number[]; dtype?: string; width?: number; data?: string }
export interface Place { region: number; at: number; shape: number[]; strides: number[]; dtype: string }
export interface Tap extends Place { path: string; dims: string }
// change: the numbers of a tensor's row -> those that take their place.
export interface RowEdit { place: Place; change: (x: Float32Array) => Float32Array }
// A row to compute. length: of its text, which may be known further than this row.  edits: of tensors, as they are made.
export type Row = Record<Input, number> & { edits: readonly RowEdit[] };
// source: the calls for a row of an encoder's text, beside a decoder; memory: the keys and values that they make for each cross-attention.
// together: the rows of a prompt see one another.
export interface PlanDocument { schema: 1; together: boolean; regions: Region[]; source: PlannedCall[]; calls: PlannedCall[]; memory: [Place, Place][]; taps: Tap[]; logits: Place; best: Place }
export type Phase = "source" | "calls";

export class Plan {
  private readonly shared: (number | undefined)[];
  private readonly weights = new Map<string, number>(); // the region of each
  private readonly put: number[]; // bytes of each region that a weight was put into
  private first: number[] = []; // of each other region, the address of the first row
  private room = 0; // rows that have memory
  private lists = new Map<string, number[]>(); // packed calls, by phase and row
  private limits = new Map<string, number>(); // `until` of their attend calls

  // The weights are put in before the first step.
  constructor(private readonly kernels: Kernels, readonly document: PlanDocument) {
    this.shared = document.regions.map((r) => (r.shared ? kernels.room(r.bytes) : undefined));
    this.put = document.regions.map(() => 0);
    document.regions.forEach((r, i) => { this.fill(r, i); });
    this.grow(1);
  }

  private fill(region: Region, i: number): void {
    const at = this.shared[i] ?? 0;
    if (region.kind === "table") new BigInt64Array(this.kernels.memory, at, region.bytes / 8).forEach((_, i, table) => { table[i] = BigInt(i); });
    if (region.kind === "data") new Uint8Array(this.kernels.memory, at, region.bytes).set(Uint8Array.from(atob(region.data ?? ""), (c) => c.charCodeAt(0)));
    if (region.kind === "weight") this.weights.set(region.name ?? "", i);
  }

  // Put weights of a file into the kernels' memory. A name may end in "@" and the first of its rows.
  fillWith(tensors: ReadonlyMap<string, Stored>): void {
    for (const [key, stored] of tensors) {
      const [name = "", from = "0"] = key.split("@"), i = this.weights.get(name), region = this.document.regions[i ?? -1];
      if (i === undefined || !region) throw new RangeError(`${name} is no weight of the plan`);
      const own = region.dtype === "float32" ? decode(stored) : stored.bytes, row = region.bytes / (region.shape?.[0] ?? 1), at = Number(from) * row;
      if (own.byteLength !== row * (stored.shape[0] ?? 1) || at + own.byteLength > region.bytes) throw new RangeError(`${key}: ${own.byteLength} bytes, the plan has ${region.bytes}`);
      new Uint8Array(this.kernels.memory, (this.shared[i] ?? 0) + at, own.byteLength).set(new Uint8Array(own.buffer, own.byteOffset, own.byteLength));
      this.put[i] = (this.put[i] ?? 0) + own.byteLength;
    }
  }

  // A weight that was not put in as a whole.
  get lacking(): string | undefined {
    return [...this.weights].find(([, i]) => this.put[i] !== this.document.regions[i]?.bytes)?.[0];
  }

  get names(): string[] {
    return [...this.weights.keys()];
  }

  // A weight where it lies; a view ends when the memory grows.
  weight(name: string): { region: Region; bytes: Uint8Array } | undefined {
    const i = this.weights.get(name), region = this.document.regions[i ?? -1];
    return i === undefined || !region ? undefined : { region, bytes: new Uint8Array(this.kernels.memory, this.shared[i], region.bytes) };
  }

  // Give rows memory of their own, one after another in each region.
  private grow(count: number): void {
    if (count <= this.room) return;
    this.room = 2 ** Math.ceil(Math.log2(count));
    this.first = this.document.regions.map((r, i) => (this.shared[i] === undefined ? this.kernels.room(r.bytes * this.room) : 0));
    this.lists = new Map();
    this.limits = new Map();
  }

  private address(region: number, row: number): number {
    return this.shared[region] ?? (this.first[region] ?? 0) + row * (this.document.regions[region]?.bytes ?? 0);
  }

  // The calls of a phase for a row, which sees keys before `until` even if they come later.
  private list(phase: Phase, row: number, until: number): number[] {
    const key = `${phase} ${row}`, calls = this.document[phase];
    const list = this.lists.get(key) ?? this.kernels.packed(calls, this.document.regions.map((_, region) => this.address(region, row)));
    this.lists.set(key, list);
    if ((this.limits.get(key) ?? 0) !== until) calls.forEach((call, i) => { if (call.op === "attend") this.kernels.set(list[i] ?? 0, "attend", "until", until); });
    this.limits.set(key, until);
    return list;
  }

  // Compute rows of a text, each of which sees those before it: all calls of one row, then of the next. seen: called after each, before its
  // memory is used again; it may read the tensors of its row.
  run(rows: readonly Row[], seen: (i: number, read: (place: Place) => Float32Array) => void): void {
    const list = this.list("calls", 0, 0);
    rows.forEach((row, i) => {
      this.give("calls", 0, row);
      let from = 0;
      for (const edit of [...row.edits].filter((e) => this.maker(e.place) >= 0).sort((a, b) => this.maker(a.place) - this.maker(b.place))) {
        const to = this.maker(edit.place) + 1;
        this.kernels.run(list, from, to);
        this.write(edit.place, edit.change(this.read(edit.place)));
        from = to;
      }
      this.kernels.run(list, from);
      seen(i, (place) => this.read(place));
    });
  }

  // Compute rows that see one another: each call for all rows, before the next call for any.
  runTogether(phase: Phase, rows: readonly Row[], seen: (i: number, read: (place: Place) => Float32Array) => void): void {
    this.grow(rows.length);
    const lists = rows.map((_, i) => this.list(phase, i, rows.length));
    rows.forEach((row, i) => { this.give(phase, i, row); });
    const edits = rows.map((row) => row.edits.map((edit) => ({ ...edit, maker: this.maker(edit.place, phase) })));
    this.document[phase].forEach((_, call) => {
      lists.forEach((list, i) => {
        this.kernels.run(list, call, call + 1);
        for (const { maker, place, change } of edits[i] ?? []) if (maker === call) this.write(place, change(this.read(place, i)), i);
      });
    });
    if (phase === "source") this.remember(rows.length);
    rows.forEach((_, i) => { seen(i, (place) => this.read(place, i)); });
  }

  private give(phase: Phase, row: number, given: Row): void {
    this.document.regions.forEach((r, i) => {
      const value = given[(phase === "source" && r.kind.startsWith("source ") ? r.kind.slice(7) : phase === "calls" ? r.kind : "") as Input];
      if (typeof value === "number") new BigInt64Array(this.kernels.memory, this.address(i, row), 1)[0] = BigInt(value);
    });
  }

  // Say where the keys and values of the source's rows lie, and how many they are.
  private remember(count: number): void {
    const region = this.document.regions.findIndex((r) => r.kind === "memory"), at = this.address(region, 0);
    const words = this.document.memory.flatMap(([k, v]) => [this.address(k.region, 0) + k.at, this.address(v.region, 0) + v.at, count]);
    new BigInt64Array(this.kernels.memory, at, words.length).set(words.map(BigInt));
  }

  // True for a tensor that a phase makes.
  makes(place: Place, phase: Phase): boolean {
    return this.maker(place, phase) >= 0;
  }

  // The call that writes a tensor: the first that names its memory, which holds nothing else.
  private maker(place: Place, phase: Phase = "calls"): number {
    return this.document[phase].findIndex((call) => Object.values(call.words).some((w) => Array.isArray(w) && w[0] === place.region));
  }

  // Put numbers in their order into a tensor whose rows are dense.
  private write({ region, at, dtype }: Place, x: Float32Array, row = 0): void {
    if (dtype !== "float32") throw new RangeError(dtype);
    new Float32Array(this.kernels.memory, this.address(region, row) + at, x.length).set(x);
  }

  // The numbers of a tensor of a row, copied in their order.
  private read({ region, at, shape, strides, dtype }: Place, row = 0): Float32Array {
    const from = this.address(region, row) + at, count = shape.reduce((n, m) => n * m, 1);
    if (dtype === "int64") return Float32Array.from(new BigInt64Array(this.kernels.memory, from, count), Number);
    if (dtype !== "float32") throw new RangeError(`a tap in ${dtype}`);
    const reach = shape.reduce((n, m, i) => n + (m - 1) * (strides[i] ?? 0), 1), all = new Float32Array(this.kernels.memory, from, reach);
    if (reach === count) return all.slice();
    return Float32Array.from({ length: count }, (_, i) => {
      let rest = i, offset = 0;
      for (let axis = shape.length - 1; axis >= 0; axis--) {
        const size = shape[axis] ?? 1;
        offset += (rest % size) * (strides[axis] ?? 0);
        rest = Math.floor(rest / size);
      }
      return all[offset] ?? NaN;
    });
  }

  // The call that has a tensor in one of its words.
  private named(op: string, word: string, region: number): PlannedCall["words"] | undefined {
    const has = (c: PlannedCall): boolean => c.op === op && Array.isArray(c.words[word]) && c.words[word][0] === region;
    return [...this.document.source, ...this.document.calls].find(has)?.words;
  }

  private regionOf(path: string): number {
    return this.document.taps.find((t) => t.path === path)?.region ?? -1;
  }

  // The frequencies by which a call turns a tensor, as the call before it reads them; none if it makes them of the text's length.
  turn(path: string): { frequencies: Float32Array | Float64Array | undefined; amount: number } | undefined {
    const cos = this.named("rotate", "y", this.regionOf(path))?.["cos"], angles = Array.isArray(cos) ? this.named("angles", "cos", cos[0]) : undefined, from = angles?.["frequencies"];
    if (!angles || !Array.isArray(from)) return undefined;
    const at = this.address(from[0], 0) + from[1], half = Number(angles["half"]), amount = Number(angles["amount"]);
    if (angles["stride"] !== 0) return { frequencies: undefined, amount };
    return { frequencies: angles["single"] ? new Float32Array(this.kernels.memory, at, half).slice() : new Float64Array(this.kernels.memory, at, half).slice(), amount };
  }

  // The row of a table of learned biases for a key this many positions back, as the call that makes `z` finds it.
  bucket(z: string): ((back: number) => number) | undefined {
    const call = this.named("attend", "z", this.regionOf(z)), buckets = call?.["buckets"], reach = Number(call?.["reach"]);
    if (!Array.isArray(buckets)) return undefined;
    const rows = new BigInt64Array(this.kernels.memory, this.address(buckets[0], 0) + buckets[1] - 8 * reach, 2 * reach + 1).slice();
    return (back) => Number(rows[reach + Math.max(-reach, Math.min(reach, back))]);
  }

  // The logits as if this row stood at a place of the plan: the calls after the one that writes there run once more.
  logitsFrom(place: Place, row: Float32Array): Float32Array {
    this.write(place, row);
    this.kernels.run(this.list("calls", 0, 0), this.maker(place) + 1);
    return this.read(this.document.logits);
  }
}
