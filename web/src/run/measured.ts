// A measurement of a model on this machine: the fields of `pellucid bench --json` that the page shows.

export interface Beside { path: string; layers: number; seconds: number; bound: number; ratio: number | null; sets: string | null }
export interface Timed { seconds: number; bound: number; ratio: number | null; error: number | null; tokens_per_second: number; runs: number; planned: boolean; eager: number; parts: Beside[] }
export interface Rate { median: number; best: number }
export interface Measured {
  model: string;
  setting: { context: number; dtype: string };
  idle: { quiet: boolean; others: number | null; steadiness: number }; // a machine that was not quiet: times without ratios
  limits: { cpu: string; threads: number; read: Record<string, Rate>; product: Record<string, Rate>; date: string };
  phases: Record<string, Timed>;
}
export interface Measuring { running: { model: string; done: number; of: number } | null; latest: Record<string, Measured> }
