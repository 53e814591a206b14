// The way that a number was followed back: cells from the answer towards its sources, as the address has them.

export interface Stop { path: string; cell: string; step: number }

const LONGEST = 64; // stops
const same = (a: Stop | undefined, b: Stop): boolean => a?.path === b.path && a.cell === b.cell && a.step === b.step;

// "logits 0,4,77; layers.0.attn.k 0,2,1,7@0": a step is named where it is not the first.
export const written = (stops: readonly Stop[]): string => stops.map(({ path, cell, step }) => `${path} ${cell}${step > 0 ? `@${step}` : ""}`).join("; ");

// A text that is no trail has no stops.
export function read(text: string): Stop[] {
  const out: Stop[] = [];
  for (const part of text === "" ? [] : text.split("; ")) {
    const match = /^(.+) (\d+(?:,\d+)*)(?:@(\d{1,3}))?$/u.exec(part);
    if (!match || out.length === LONGEST) return [];
    out.push({ path: match[1] ?? "", cell: match[2] ?? "", step: Number(match[3] ?? 0) });
  }
  return out;
}

export const indexOf = (stops: readonly Stop[], here: Stop): number => stops.findIndex((s) => same(s, here));

// A step further back. What lay behind stays if it is the same way, and goes if it is another.
export function followed(stops: readonly Stop[], here: Stop, next: Stop): Stop[] {
  const at = indexOf(stops, here), way = at < 0 ? [here] : stops.slice(0, at + 1);
  return same(stops[at + 1], next) && at >= 0 ? [...stops] : [...way, next].slice(-LONGEST);
}
