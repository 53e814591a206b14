// Bytes to numbers. Every dtype becomes float32 without loss but float64 and int64, which stay float64: 2^53 is beyond any id.

import type { Stored } from "./safetensors";

export type Values = Float32Array | Float64Array;

export function decode({ dtype, bytes }: Stored): Values {
  const own = bytes.slice().buffer; // aligned: a header may end anywhere
  if (dtype === "F32") return new Float32Array(own);
  if (dtype === "F64") return new Float64Array(own);
  if (dtype === "BF16") return new Float32Array(each(new Uint16Array(own), Uint32Array, (x) => x << 16).buffer);
  if (dtype === "F16") return each(new Uint16Array(own), Float32Array, half);
  if (dtype === "I64") return Float64Array.from(new BigInt64Array(own), Number);
  if (dtype === "I32") return Float64Array.from(new Int32Array(own));
  if (dtype === "I16") return Float32Array.from(new Int16Array(own));
  if (dtype === "I8") return Float32Array.from(new Int8Array(own));
  return Float32Array.from(new Uint8Array(own)); // U8, BOOL
}

// As `from` with a function does, in a tenth of the time.
function each<T extends Float32Array | Uint32Array>(values: Uint16Array, kind: new (length: number) => T, of: (x: number) => number): T {
  const out = new kind(values.length);
  for (let i = 0; i < values.length; i++) out[i] = of(values[i] as number);
  return out;
}

// half(0x3c00) is 1, half(0xc000) is -2, half(0x0001) is 2^-24
export function half(x: number): number {
  const sign = x >> 15 ? -1 : 1, exponent = (x >> 10) & 31, part = x & 1023;
  if (exponent === 31) return part ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + part / 1024) : 2 ** -14 * (part / 1024));
}

// The nearest number of a dtype, ties to even.
export function rounded(x: number, dtype: string): number {
  if (dtype === "float32") return Math.fround(x);
  if (dtype !== "bfloat16") return x;
  const bits = new Uint32Array(new Float32Array([x]).buffer);
  const low = bits[0] ?? 0;
  bits[0] = (low + 0x7fff + ((low >>> 16) & 1)) & 0xffff0000;
  return new Float32Array(bits.buffer)[0] ?? NaN;
}
