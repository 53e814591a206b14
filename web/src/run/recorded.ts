// A run in a file: the server's answers and the tensors' bytes are in the page itself, and there is no server.

import type { Values } from "../tensor/decode";
import { parse, SIZES, type Stored } from "../tensor/safetensors";

export interface Kept { dtype: string; shape: number[]; bytes: string; sha256: string } // bytes in base64
// Written by Python (src/pellucid/html) too, which adds the terms of cells as columns, and counts what a limit left out.
export interface Carried { bytes: string; told: number; cells: number }
export interface Left { tensors: number; of: number; steps: number; limit: number }
export interface Recorded { schema: 1; place: string; language: "en" | "zh"; answers: Record<string, unknown>; tensors: Record<string, Kept>; terms?: Carried; left?: Left }

export const recorded: Recorded | null = (() => {
  const text = typeof document === "undefined" ? null : document.getElementById("recorded")?.textContent;
  return text ? (JSON.parse(text) as Recorded) : null;
})();

export const unpacked = (text: string): Uint8Array => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

// In pieces: the arguments of a call are limited.
export function packed(bytes: Uint8Array): string {
  let text = "";
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(text);
}

export const readTensor = (file: ArrayBuffer): { stored: Stored; sha256: string } => {
  const { tensors, metadata } = parse(file), stored = tensors.get("x");
  if (!stored) throw new RangeError("safetensors: no tensor x");
  return { stored, sha256: metadata["sha256"] ?? "" };
};

// cut([[1, 2, 3], [4, 5, 6]], "1,0:2") is [4, 5]: what the server's ?at= gives, of bytes.
export function cut({ dtype, shape, bytes }: Stored, at: string): Stored {
  const size = SIZES[dtype] ?? 1;
  const spans = at.split(",").map((word, i) => {
    const [from, to] = word.split(":"), all = shape[i] ?? 1;
    return to === undefined ? { from: Number(from), to: Number(from) + 1, stays: false } : { from: Number(from || 0), to: to === "" ? all : Number(to), stays: true };
  });
  let offsets = [0];
  spans.forEach(({ from, to }, i) => { offsets = offsets.flatMap((o) => Array.from({ length: to - from }, (_, j) => o * (shape[i] ?? 1) + from + j)); });
  const out = new Uint8Array(offsets.length * size);
  offsets.forEach((o, i) => out.set(bytes.subarray(o * size, (o + 1) * size), i * size));
  return { dtype, shape: spans.flatMap((s) => (s.stays ? [s.to - s.from] : [])), bytes: out };
}

// Of each 2^level x 2^level block of the last two axes the number farthest from 0.
export function pooled(values: ArrayLike<number>, shape: readonly number[], level: number): { values: Values; shape: number[] } {
  const side = 2 ** level, rows = shape.length > 1 ? (shape.at(-2) ?? 1) : 1, columns = shape.at(-1) ?? 1;
  const down = Math.ceil(rows / side), across = Math.ceil(columns / side), many = values.length / (rows * columns), size = many * down * across;
  const out = values instanceof Float64Array ? new Float64Array(size) : new Float32Array(size);
  for (let i = 0; i < values.length; i++) {
    const m = Math.floor(i / (rows * columns)), r = Math.floor(i / columns) % rows, c = i % columns, j = (m * down + Math.floor(r / side)) * across + Math.floor(c / side), x = values[i] ?? NaN;
    if (Number.isNaN(x) || Math.abs(x) > Math.abs(out[j] ?? 0)) out[j] = x;
  }
  return { values: out, shape: [...shape.slice(0, -2), ...(shape.length > 1 ? [down] : []), across] };
}

// JSON in which no text can end the element that holds it.
export const inert = (content: unknown): string => JSON.stringify(content).replace(/[<>&\u2028\u2029]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

// A script that holds no end of a script.
export const closed = (script: string): string => script.replace(/<\/(script)/gi, "<\\/$1").replace(/<!--/g, "<\\!--");
