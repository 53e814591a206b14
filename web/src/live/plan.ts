// A decode plan of one row, replayed: every tensor that the model computes for a token, where the calls of Python's recording wrote it.
// See engine/written_plan.py, which writes the document.

import { decode } from "../tensor/decode";
import type { Stored } from "../tensor/safetensors";
import type { Kernels, PlannedCall } from "./kernels";

export interface Region { kind: "weight" | "token" | "position" | "length" | "table" | "zeros" | "data"; bytes: number; name?: string; dtype?: string; data?: string }
export interface Place { region: number; at: number; shape: number[]; strides: number[]; dtype: string }
export interface Tap extends Place { path: string; dims: string }
// change: the numbers of a tensor's row -> those that take their place.
export interface RowEdit { place: Place; change: (x: Float32Array) => Float32Array }
export interface PlanDocument { schema: 1; regions: Region[]; calls: PlannedCall[]; taps: Tap[]; logits: Place; best: Place }

export class Plan {
  private readonly address: number[];
  private readonly list: number[];

  constructor(private readonly kernels: Kernels, readonly document: PlanDocument, weights: ReadonlyMap<string, Stored>) {
    this.address = document.regions.map((r) => kernels.room(r.bytes));
    document.regions.forEach((r, i) => { this.fill(r, this.address[i] ?? 0, weights); });
    this.list = kernels.packed(document.calls, this.address);
  }

  private fill(region: Region, at: number, weights: ReadonlyMap<string, Stored>): void {
    const bytes = new Uint8Array(this.kernels.memory, at, region.bytes);
    if (region.kind === "table") new BigInt64Array(this.kernels.memory, at, region.bytes / 8).forEach((_, i, table) => { table[i] = BigInt(i); });
    if (region.kind === "data") bytes.set(Uint8Array.from(atob(region.data ?? ""), (c) => c.charCodeAt(0)));
    if (region.kind !== "weight") return;
    const stored = weights.get(region.name ?? "");
    if (!stored) throw new RangeError(`no weight ${region.name}`);
    const own = region.dtype === "float32" ? decode(stored) : stored.bytes;
    if (own.byteLength !== region.bytes) throw new RangeError(`${region.name}: ${own.byteLength} bytes, the plan has ${region.bytes}`);
    bytes.set(new Uint8Array(own.buffer, own.byteOffset, own.byteLength));
  }

  // Compute the row of a token. length: of its text, which may be known further than this row.  edits: of tensors, as they are made.
  step(token: number, position: number, length: number, edits: readonly RowEdit[] = []): void {
    const given: Partial<Record<Region["kind"], number>> = { token, position, length };
    this.document.regions.forEach((r, i) => {
      const value = given[r.kind];
      if (value !== undefined) new BigInt64Array(this.kernels.memory, this.address[i], 1)[0] = BigInt(value);
    });
    let from = 0;
    for (const edit of [...edits].sort((a, b) => this.maker(a.place) - this.maker(b.place))) {
      const to = this.maker(edit.place) + 1;
      this.kernels.run(this.list, from, to);
      this.write(edit.place, edit.change(this.read(edit.place)));
      from = to;
    }
    this.kernels.run(this.list, from);
  }

  // The call that writes a tensor: the first that names its memory, which holds nothing else.
  private maker(place: Place): number {
    return this.document.calls.findIndex((call) => Object.values(call.words).some((w) => Array.isArray(w) && w[0] === place.region));
  }

  // Put numbers in their order into a tensor whose rows are dense.
  private write({ region, at }: Place, x: Float32Array): void {
    new Float32Array(this.kernels.memory, (this.address[region] ?? 0) + at, x.length).set(x);
  }

  // The numbers of a tensor of the last row, copied in their order.
  read({ region, at, shape, strides, dtype }: Place): Float32Array {
    const from = (this.address[region] ?? 0) + at, count = shape.reduce((n, m) => n * m, 1);
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

  // The angles by which a call turns a tensor: the cos and sin of a pair at a position, as the call before it makes them.
  turn(path: string): { half: number; interleaved: boolean; at: (position: number, pair: number) => [number, number] } | undefined {
    const named = (op: string, word: string, region: number): PlannedCall["words"] | undefined => this.document.calls.find((c) => c.op === op && Array.isArray(c.words[word]) && c.words[word][0] === region)?.words;
    const rotate = named("rotate", "y", this.document.taps.find((t) => t.path === path)?.region ?? -1), cos = rotate?.["cos"];
    const angles = Array.isArray(cos) ? named("angles", "cos", cos[0]) : undefined, from = angles?.["frequencies"];
    if (!rotate || !angles || !Array.isArray(from) || angles["stride"] !== 0) return undefined;
    const at = (this.address[from[0]] ?? 0) + from[1], half = Number(angles["half"]), amount = Number(angles["amount"]);
    const frequencies = angles["single"] ? new Float32Array(this.kernels.memory, at, half).slice() : new Float64Array(this.kernels.memory, at, half).slice();
    return { half, interleaved: rotate["interleaved"] !== 0, at: (position, pair) => {
      const angle = position * (frequencies[pair] ?? 0);
      return [Math.fround(Math.cos(angle) * amount), Math.fround(Math.sin(angle) * amount)];
    } };
  }

  get logits(): Float32Array {
    return this.read(this.document.logits);
  }

  // The logits as if this row stood at a place of the plan: the calls after the one that writes there run once more.
  logitsFrom(place: Place, row: Float32Array): Float32Array {
    this.write(place, row);
    this.kernels.run(this.list, this.maker(place) + 1);
    return this.logits;
  }
}
