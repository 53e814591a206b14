// Tokens that a run is given instead of drawing them, as a link holds them: "0:337 2:12", ids by step.

export function read(text: string): Record<string, number> {
  const forced: Record<string, number> = {};
  for (const word of text.split(" ")) {
    const match = /^(\d{1,3}):(\d{1,9})$/.exec(word);
    if (match?.[1] && match[2]) forced[Number(match[1])] = Number(match[2]);
  }
  return forced;
}

export const written = (forced: Record<string, number>): string => Object.entries(forced).map(([step, id]) => `${step}:${id}`).join(" ");

// Those before a step; the run may be shorter than a link says.
export const before = (text: string, step: number): Record<string, number> => Object.fromEntries(Object.entries(read(text)).filter(([k]) => Number(k) < step));
