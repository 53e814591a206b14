// The weights of a page's model. They lie in the kernels' memory alone; numbers are taken out row by row.

import { half } from "../tensor/decode";
import type { Plan } from "./plan";

const BLOCK = 32; // numbers with one scale, as ops/blocks.py has them
const CODES = ".codes";

export class Weights {
  private readonly known = new Map<string, Float32Array>(); // whole weights, those used last
  private bytes = 0;

  // most: bytes of whole weights that are kept as numbers.
  constructor(private readonly plan: Plan, private readonly most: number) {}

  get names(): string[] {
    return this.plan.names.flatMap((n) => (n.endsWith(CODES) ? [n.slice(0, -CODES.length)] : n.endsWith(".scales") ? [] : [n]));
  }

  // Undefined where the model has none of this name.
  shape(path: string): number[] | undefined {
    const codes = this.plan.weight(path + CODES)?.region;
    return codes ? [...(codes.shape ?? []).slice(0, -1), codes.width ?? 0] : this.plan.weight(path)?.region.shape;
  }

  // Rows [from, to) along the first axis; no numbers where the model has none of this name.
  rows(path: string, from: number, to: number): Float32Array {
    const shape = this.shape(path), plain = this.plan.weight(path);
    if (!shape) return new Float32Array();
    const size = shape.slice(1).reduce((n, m) => n * m, 1);
    if (plain) return new Float32Array(plain.bytes.buffer, plain.bytes.byteOffset + 4 * from * size, (to - from) * size).slice();
    return this.dequantised(path, shape, from, to);
  }

  private dequantised(path: string, shape: readonly number[], from: number, to: number): Float32Array {
    const codes = this.plan.weight(path + CODES), scales = this.plan.weight(`${path}.scales`), width = shape.at(-1) ?? 1, lines = shape.slice(1, -1).reduce((n, m) => n * m, 1);
    if (!codes || !scales) return new Float32Array();
    const { buffer, byteOffset } = scales.bytes, bytewise = codes.region.dtype === "int8", blocks = Math.ceil(width / BLOCK), pitch = codes.region.shape?.at(-1) ?? width;
    const halves = new Uint16Array(buffer, byteOffset, scales.bytes.byteLength / 2), out = new Float32Array((to - from) * lines * width);
    for (let r = 0, at = 0; r < (to - from) * lines; r++) {
      const line = from * lines + r;
      for (let i = 0; i < width; i++) {
        const byte = codes.bytes[line * pitch + (bytewise ? i : i >> 1)] ?? 0;
        out[at++] = half(halves[line * blocks + Math.floor(i / BLOCK)] ?? 0) * (bytewise ? (byte << 24) >> 24 : ((byte >> (4 * (i & 1))) & 15) - 8);
      }
    }
    return out;
  }

  row(path: string, i: number): Float32Array {
    const known = this.known.get(path), width = (this.shape(path) ?? []).slice(1).reduce((n, m) => n * m, 1);
    return known ? known.subarray(i * width, (i + 1) * width) : this.rows(path, i, i + 1);
  }

  matrix(path: string): Float32Array {
    const known = this.known.get(path);
    if (known) return known;
    const made = this.rows(path, 0, this.shape(path)?.[0] ?? 0);
    if (made.byteLength > this.most) return made;
    this.known.set(path, made);
    this.bytes += made.byteLength;
    for (const [name, x] of this.known) {
      if (this.bytes <= this.most) break;
      this.known.delete(name);
      this.bytes -= x.byteLength;
    }
    return made;
  }
}
