// The settings of sampling as a person moves them: what each may be, and how a link holds them.

import { GREEDY, OFF, type Sampling } from "./stages";

export interface Range { min: number; max: number; step: number }

export const RANGES: Record<keyof Sampling, Range> = {
  temperature: { min: 0, max: 3, step: 0.05 }, top_k: { min: 0, max: 200, step: 1 }, top_p: { min: 0.05, max: 1, step: 0.01 }, min_p: { min: 0, max: 0.5, step: 0.005 },
  repetition: { min: 0.5, max: 2, step: 0.05 }, presence: { min: -2, max: 2, step: 0.1 }, frequency: { min: -2, max: 2, step: 0.1 }, seed: { min: 0, max: 2 ** 53 - 1, step: 1 },
};

export const NAMES = Object.keys(RANGES) as (keyof Sampling)[];

export const alike = (a: Sampling, b: Sampling): boolean => NAMES.every((n) => a[n] === b[n]);

// "temperature:0.7 top_k:5", without what is off; a temperature of 1 is written, for "" is greedy: the likeliest token
export const written = (s: Sampling): string => (alike(s, GREEDY) ? "" : NAMES.filter((n) => n === "temperature" || s[n] !== OFF[n]).map((n) => `${n}:${s[n]}`).join(" "));

export function read(text: string): Sampling {
  if (text === "") return { ...GREEDY };
  const s = { ...OFF };
  for (const word of text.split(" ")) {
    const [name, text] = word.split(":"), key = NAMES.find((n) => n === name), value = Number(text);
    if (key && text && value >= RANGES[key].min && value <= RANGES[key].max && (RANGES[key].step < 1 || Number.isInteger(value))) s[key] = value;
  }
  return s;
}
