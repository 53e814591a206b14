// A model's bill: the fields of `pellucid count --json` that the page shows, and the settings of its request.

// stage: over several devices, that whose devices do it.
export interface Part { stage?: number; path: string; layers: number; flops: number; bytes: number; seconds: number; sets: string }
export interface Phase { seconds: number; tokens_per_second: number; parts: Part[]; price_of_a_million_tokens?: number }
export interface Bounds { device: string; memory: number; weights: number; cache: number; fits: boolean; devices: number; largest_batch: number | null; longest_context: number | null; prefill: Phase; decode: Phase }
export interface Textbook { formula: string; value: number; counted: number; because: Record<string, number> }
export interface Derived { value: number; formula: string }
// A rank of one stage: what it stores, and the bytes that it sends in a step of each phase, by kind.
export interface Stage { layers: [number, number]; parameters: number; weights: number; cache: number; sent: Record<string, Record<string, Derived>> }
export interface Pace extends Phase { stages: number[] }
export interface Ranks { ranks: number; split: Split; stages: Stage[]; bounds?: { held: number; fits: boolean; largest_batch?: number | null; longest_context?: number | null; prefill?: Pace; decode?: Pace } }
export interface Split { tp: number; pp: number; ep: number }

export interface Bill {
  model: string;
  attention: string;
  layers: number;
  setting: { context: number; batch: number; weights: string; cache: string; device: string | null };
  parameters: { total: number; active: number; buffers: number; by_part: Record<string, number> };
  bytes: { total: number; by_part: Record<string, number> };
  cache: { bytes_per_token?: number; windowed_bytes_per_token?: number; bytes_per_text?: number; bytes?: number; bytes_per_source_token?: number; other_kinds?: { kind: string; bytes_per_token: number; bytes: number }[] };
  flops: Record<string, number>;
  textbook: Record<string, Textbook>;
  bounds: Partial<Bounds>;
  notes: string[];
  training?: Record<string, Derived>;
  ranks?: Ranks;
  formulas?: Record<string, string>;
}

export interface Situation { id: string; model: string; context: number; batch: number; dtype: string; cache: string; device: string; split: Split }
export interface Catalog {
  models: { id: string; name: string; disclosed: boolean; statements: { claim: string; status: string }[] | null; source: string; organisation: string; released: string; published: Record<string, string>; notes: string[] }[];
  devices: { id: string; name: string; memory: number; bandwidth: number; peak: Record<string, number>; source: string; date: string }[];
  situations: Situation[];
}

// A number with its formula.
export interface Reason { path: string; value: number; formula: string }
// A tensor of a model, those of equal layers once; layers: the numbers of the layers that have one each.
export interface Counted { path: string; part: string; axes: string; shape: number[]; parameter: boolean; times: number; layers: number[] | null; active: number; count: number; bytes: number; formulas: { count: string; bytes: string } }
// A bill's numbers at one value of a setting; null where there is none.
export interface Point { at: number | string; bytes: number; cache: number | null; prefill: number | null; decode: number | null; first: number | null; next: number | null; fits: boolean | null }

// of: the model in the first column, "" for the opened one. context 0 is the model's own. dtype "" is what a model runs in, bfloat16 of one that is not opened. lora 0 trains all weights.
export interface Setting extends Split {
  of: string; context: number; batch: number; dtype: string; cache: string; device: string; price: number;
  train: boolean; lora: number; recompute: boolean; shards: number; beside: string[]; along: Along; curve: Curve;
}
export type Along = (typeof ALONG)[number];
export type Curve = (typeof CURVES)[number];

export const ALONG = ["context", "batch", "dtype", "device"] as const;
export const CURVES = ["cache", "prefill", "decode", "first", "next"] as const;
export const DTYPES = ["float32", "bfloat16", "float16", "fp8", "int8", "int4", "mxfp4"];
export const OFF: Setting = {
  of: "", context: 0, batch: 1, dtype: "", cache: "", device: "", price: 0, tp: 1, pp: 1, ep: 1,
  train: false, lora: 0, recompute: false, shards: 1, beside: [], along: "context", curve: "cache",
};
export const MOST = 6; // models side by side
const NAME = /^[\w.-]{1,64}$/;
const RANGE: Partial<Record<keyof Setting, [number, number]>> = { context: [1, 2 ** 24], batch: [1, 65_536], tp: [1, 4096], pp: [1, 4096], ep: [1, 4096], lora: [1, 65_536], shards: [1, 1 << 20] };

// "context:4096 device:x beside:a,b", without the defaults.
export function written(s: Setting): string {
  const words = Object.entries(s).map(([key, value]) => [key, Array.isArray(value) ? value.join() : String(value), String(OFF[key as keyof Setting])] as const);
  return words.filter(([, value, off]) => value !== off).map(([key, value]) => `${key}:${value}`).join(" ");
}

export function read(text: string): Setting {
  const s: Setting = { ...OFF, beside: [] };
  for (const word of text.split(" ")) {
    const at = word.indexOf(":"), key = word.slice(0, at) as keyof Setting, value = word.slice(at + 1), n = Number(value), range = RANGE[key];
    if (range) { if (Number.isInteger(n) && n >= range[0] && n <= range[1]) Object.assign(s, { [key]: n }); }
    else if (key === "price") s.price = n > 0 && n < 1e6 ? n : 0;
    else if (key === "dtype" || key === "cache") { if (DTYPES.includes(value)) s[key] = value; }
    else if (key === "of" || key === "device") { if (NAME.test(value)) s[key] = value; }
    else if (key === "train" || key === "recompute") s[key] = value === "true";
    else if (key === "along") s.along = ALONG.find((a) => a === value) ?? s.along;
    else if (key === "curve") s.curve = CURVES.find((c) => c === value) ?? s.curve;
    else if (key === "beside") s.beside = [...new Set(value.split(",").filter((id) => NAME.test(id)))].slice(0, MOST - 1);
  }
  return s;
}

// For one model, with the type of its weights said; own: what it runs in, "" where it is not opened.
export const settled = (s: Setting, own: string): Setting => ({ ...s, dtype: s.dtype || (DTYPES.includes(own) ? own : "bfloat16") });

export type Query = Record<string, string | number>;

// The dtype of the KV cache: the set one, or the weights', unless that is too coarse for it.
const pastOf = (s: Setting): string => s.cache || (s.dtype === "int4" || s.dtype === "mxfp4" ? "bfloat16" : s.dtype);

// The settings that a bill depends on.
export const query = (s: Setting): Query => ({ batch: s.batch, dtype: s.dtype, cache: pastOf(s), ...(s.device ? { device: s.device } : {}), ...(s.context ? { context: s.context } : {}) });

export const devices = (s: Split): number => s.pp * Math.max(s.tp, s.ep);

// One device is counted as such, several by what each holds and does.
export const ranks = (s: Setting): Query => (devices(s) > 1 ? { ranks: `tp=${s.tp},pp=${s.pp},ep=${s.ep}` } : {});

// One device with all of a model, in the form of several.
export function alone({ bounds: b, layers, parameters }: Bill): Ranks | undefined {
  if (b.device === undefined || b.weights === undefined || b.cache === undefined || b.fits === undefined) return undefined;
  const stage: Stage = { layers: [0, layers], parameters: parameters.total, weights: b.weights, cache: b.cache, sent: {} };
  const pace = (p: Phase | undefined): Pace | undefined => p && { ...p, stages: [p.seconds] };
  const [prefill, decode] = [pace(b.prefill), pace(b.decode)];
  return { ranks: 1, split: { tp: 1, pp: 1, ep: 1 }, stages: [stage], bounds: { held: memoryOf(stage), fits: b.fits, ...(prefill ? { prefill } : {}), ...(decode ? { decode } : {}) } };
}

export const memoryOf = (s: Stage): number => s.weights + s.cache;

// The number of the stage whose ranks hold most: it sets whether all fits.
export const fullest = (split: Ranks): number => split.stages.reduce((best, s, i, all) => (memoryOf(s) > memoryOf(all[best] ?? s) ? i : best), 0);

// What is asked of it besides.
export const viewed = (s: Setting): Query => ({
  ...ranks(s), ...(s.price > 0 && s.device ? { price: s.price } : {}),
  ...(s.train ? { train: "true", ...(s.lora ? { lora: s.lora } : {}), ...(s.recompute ? { recompute: "true" } : {}), ...(s.shards > 1 ? { shards: s.shards } : {}) } : {}),
});

// A situation as a setting; settings that it lacks stay.
export const meant = ({ model, context, batch, dtype, cache, device, split }: Situation, s: Setting): Setting => ({ ...OFF, of: model, context, batch, dtype, cache, device, ...split, price: s.price, beside: s.beside, along: s.along, curve: s.curve });
