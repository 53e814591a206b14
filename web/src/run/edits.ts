// Edits of a run: a part of a tensor, and the value put there. A link may hold them, so every field is checked.

export type How = "to" | "times" | "prompt";
export interface Edit { path: string; at: string; how: How; value: string } // value: a number, or the prompt whose tensor is put there

const MOST = 16;
const AT = /^(\d{1,9}|\d{0,9}:\d{0,9})(,(\d{1,9}|\d{0,9}:\d{0,9}))*$/;

export const sound = (e: Edit): boolean =>
  e.path.length > 0 && e.path.length < 200 && AT.test(e.at) && (e.how === "prompt" ? e.value.length > 0 && e.value.length <= 4000 : e.value.trim() !== "" && Number.isFinite(Number(e.value)));

export const written = (edits: readonly Edit[]): string => (edits.length > 0 ? JSON.stringify(edits.map((e) => [e.path, e.at, e.how, e.value])) : "");

export function read(text: string): Edit[] {
  let parsed: unknown = [];
  try { parsed = JSON.parse(text || "[]"); } catch { return []; }
  if (!Array.isArray(parsed)) return [];
  return parsed.slice(0, MOST).flatMap((one: unknown) => {
    if (!Array.isArray(one) || one.length !== 4 || !one.every((w) => typeof w === "string")) return [];
    const [path, at, how, value] = one as [string, string, string, string], edit = { path, at, how: how as How, value };
    return ["to", "times", "prompt"].includes(how) && sound(edit) ? [edit] : [];
  });
}

// The edit as a change's text, which the server reads.
export function changeText(e: Edit): string {
  const value = e.how === "prompt" ? `= from ${JSON.stringify(e.value)}` : `${e.how === "to" ? "=" : "*="} ${Number(e.value)}`;
  return `${e.path}[${e.at}] ${value}`;
}
