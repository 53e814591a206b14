// What the server counts of a model: the document of `pellucid count --json`, as much of it as the page shows.

export interface Part { path: string; layers: number; flops: number; bytes: number; seconds: number; sets: string }
export interface Phase { seconds: number; parts: Part[] }
export interface Bounds { device: string; memory: number; weights: number; cache: number; fits: boolean; devices: number; largest_batch: number | null; longest_context: number | null; prefill: Phase; decode: Phase }
export interface Textbook { formula: string; value: number; counted: number; because: Record<string, number> }

export interface Bill {
  model: string;
  attention: string;
  layers: number;
  setting: { context: number; batch: number; weights: string; cache: string; device: string | null };
  parameters: { total: number; active: number; buffers: number; by_part: Record<string, number> };
  bytes: { total: number; by_part: Record<string, number> };
  cache: { bytes_per_token?: number; bytes?: number; other_kinds?: { kind: string; bytes_per_token: number; bytes: number }[] };
  flops: Record<string, number>;
  textbook: Record<string, Textbook>;
  bounds: Partial<Bounds>;
  notes: string[];
  formulas?: Record<string, string>;
}

export interface Catalog {
  models: { id: string; name: string; disclosed: boolean; statements: { claim: string; status: string }[] | null }[];
  devices: { id: string; name: string; memory: number; bandwidth: number; peak: Record<string, number>; source: string; date: string }[];
}

export interface Setting { context: number; batch: number; dtype: string; device: string; beside: string[] }

export const DTYPES = ["float32", "bfloat16", "float16", "fp8", "int8", "int4"];
const OFF: Setting = { context: 0, batch: 1, dtype: "bfloat16", device: "", beside: [] };
export const MOST = 6; // models side by side

// "context:4096 device:x beside:a,b"; what is as at first is left out. Context 0 is the model's own.
export function written(s: Setting): string {
  const words = [["context", s.context || ""], ["batch", s.batch === 1 ? "" : s.batch], ["dtype", s.dtype === OFF.dtype ? "" : s.dtype], ["device", s.device], ["beside", s.beside.join()]] as const;
  return words.filter(([, v]) => v !== "").map(([k, v]) => `${k}:${v}`).join(" ");
}

export function read(text: string): Setting {
  const s: Setting = { ...OFF, beside: [] };
  for (const word of text.split(" ")) {
    const at = word.indexOf(":"), key = word.slice(0, at), value = word.slice(at + 1), n = Number(value);
    if (key === "context" && Number.isInteger(n) && n > 0 && n <= 2 ** 24) s.context = n;
    else if (key === "batch" && Number.isInteger(n) && n > 0 && n <= 65_536) s.batch = n;
    else if (key === "dtype" && DTYPES.includes(value)) s.dtype = value;
    else if (key === "device" && /^[\w.-]{1,64}$/.test(value)) s.device = value;
    else if (key === "beside") s.beside = [...new Set(value.split(",").filter((id) => /^[\w.-]{1,64}$/.test(id)))].slice(0, MOST - 1);
  }
  return s;
}
