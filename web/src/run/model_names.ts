// Names of models as a menu shows them: of a long path its end, since that tells one folder from another.

// name: of one model of `all`; most: characters. A path loses what is before one of its folders, and a folder's long name its middle, as long as no other model would be shown the same.
export function shownName(name: string, all: readonly string[], most: number): string {
  const own = short(name, most);
  return all.some((other) => other !== name && short(other, most) === own) ? name : own;
}

function short(name: string, most: number): string {
  const letters = [...name];
  if (letters.length <= most) return name;
  const starts = letters.flatMap((c, i) => (c === "/" || c === "\\" ? [i] : [])), start = starts.find((i) => i > 0 && letters.length - i + 1 <= most);
  if (start !== undefined) return `…${letters.slice(start).join("")}`;
  const end = Math.ceil((most - 1) / 2) + 4, last = letters.slice((starts.at(-1) ?? -1) + 1), head = Math.max(0, most - 1 - end);
  return `${last.slice(0, head).join("")}…${last.slice(-end).join("")}`;
}
