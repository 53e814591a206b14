// Slices of the run's tensors as they were received, with the hash of their bytes; the newest are kept.

import { decode, type Values } from "../tensor/decode";
import { parse } from "../tensor/safetensors";
import { difference, stats, tensor, weight, weightStats } from "./api";
import { cut, pooled, recorded, unpacked, readTensor, type Kept } from "./recorded";
import type { Stats, Tensor, Weight } from "./types";

export interface Slice {
  values: Values;
  shape: number[];
  at: string;
  level: number;
  // SHA-256 of the received bytes, and the server's of the unpooled slice
  received: Promise<string>;
  source: string;
}

const MOST = 64 * 1024 * 1024; // bytes of numbers that are kept
const kept = new Map<string, { slice: Promise<Slice>; size: number }>();

export function slice(run: string, n: number, at: string, level = 0): Promise<Slice> {
  const key = `${run} ${n} ${at} ${level}`, known = kept.get(key);
  if (known) {
    kept.delete(key);
    kept.set(key, known);
    return known.slice;
  }
  const entry = { slice: fetched(run, n, at, level), size: 0 };
  kept.set(key, entry);
  entry.slice.then((s) => { entry.size = s.values.byteLength; trim(); }, () => kept.delete(key));
  return entry.slice;
}

function trim(): void {
  let total = [...kept.values()].reduce((sum, e) => sum + e.size, 0);
  for (const [key, { size }] of kept) {
    if (total <= MOST) return;
    kept.delete(key);
    total -= size;
  }
}

// A model's weight has a number below 0 among the run's tensors; "run" is then the model's name.
const known: { model: string; run: string; path: string }[] = [];

export function asTensor(model: string, run: string, w: Weight): Tensor {
  let i = known.findIndex((k) => k.model === model && k.run === run && k.path === w.path);
  if (i < 0) i = known.push({ model, run, path: w.path }) - 1;
  return {
    n: -1 - i, path: w.path, block: "", name: w.path, settings: {}, min: null, mean: null, max: null, dims: w.dims ?? w.shape.map((_, a) => `(${a})`).join(" "), shape: w.shape, dtype: w.dtype, step: 0, call: 0, source: "executed", error: null, op: null, result: null, made: "", notes: [], put: "",
    inputs: [], weights: [], bytes: 0, parameters: w.parameter ? w.count : 0, flops: null, rows: null, stats: null, kept: true, terms: false,
  };
}

export function measures(run: string, n: number): Promise<Stats> {
  const of = known[-1 - n];
  return n < 0 && of ? weightStats(of.model, of.run, of.path) : stats(run, n);
}

function received(run: string, n: number, at: string, level: number): Promise<ArrayBuffer> {
  const of = known[-1 - n];
  return n < 0 && of ? weight(of.model, of.run, of.path, at, level) : tensor(run, n, at, level);
}

// Of a run in a file: the slice of the whole tensor, whose own hash is the server's.
async function cutOut(kept: Kept, at: string, level: number): Promise<Slice> {
  const all = { dtype: kept.dtype, shape: kept.shape, bytes: unpacked(kept.bytes) }, part = cut(all, at);
  const own = await sha256(part.bytes), source = (await sha256(all.bytes)) === kept.sha256 ? own : "", values = decode(part);
  return { ...(level > 0 ? pooled(values, part.shape, level) : { values, shape: part.shape }), at, level, received: Promise.resolve(own), source };
}

// Another run's tensor minus this one's, cell by cell.
export async function apart(run: string, n: number, other: string, m: number, at: string, level: string): Promise<{ values: Values; shape: number[] }> {
  const { stored } = readTensor(await difference(run, n, other, m, at, level));
  return { values: decode(stored), shape: stored.shape };
}

async function fetched(run: string, n: number, at: string, level: number): Promise<Slice> {
  const kept = recorded?.tensors[n];
  if (kept) return cutOut(kept, at, level);
  const { tensors, metadata } = parse(await received(run, n, at, level));
  const stored = tensors.get("x");
  if (!stored) throw new RangeError("safetensors: no tensor x");
  return { values: decode(stored), shape: stored.shape, at, level, received: sha256(stored.bytes), source: metadata["sha256"] ?? "" };
}

// Without a hash where the browser has none to give: in a page that came over a plain connection.
async function sha256(bytes: Uint8Array): Promise<string> {
  if (!isSecureContext) return "";
  const digest = await crypto.subtle.digest("SHA-256", bytes.slice());
  return Array.from(new Uint8Array(digest), (b) => b.toString(16).padStart(2, "0")).join("");
}
