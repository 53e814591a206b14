// What a measurement of a model on this machine tells: the document of `pellucid bench --json`, as much of it as the page shows.

export interface Beside { path: string; layers: number; seconds: number; bound: number; ratio: number | null; sets: string | null }
export interface Timed { seconds: number; bound: number; ratio: number; error: number; tokens_per_second: number; runs: number; planned: boolean; eager: number; parts: Beside[] }
export interface Rate { median: number; best: number }
export interface Measured {
  model: string;
  setting: { context: number; dtype: string };
  limits: { cpu: string; threads: number; read: Record<string, Rate>; product: Record<string, Rate>; date: string };
  phases: Record<string, Timed>;
}
export interface Measuring { running: { model: string; done: number; of: number } | null; latest: Record<string, Measured> }
