// Edits of a run: a part of a tensor, and the value put there. A link may hold them, so every field is checked.

export type How = "to" | "times" | "prompt" | "tensor" | "plus";
// at: an index of every axis, or axes by letter; "" for the whole tensor.  value: a number, the prompt whose tensor is put there, or the path of a tensor
// of the same run that is put there ("tensor") or added ("plus").  path: PATH.in is what the part at PATH reads
export interface Edit { path: string; at: string; how: How; value: string }

const MOST = 16;
const AT = /^(\d{1,9}|\d{0,9}:\d{0,9})(,(\d{1,9}|\d{0,9}:\d{0,9}))*$/;
const LETTERED = /^([A-Z](\+[A-Z])*=[-+\d:,]{1,40}(, ?(?=[A-Z])|$))+$/; // H=3, T=-1
const CHANGE = /^\s*([^\s[\]]+?)\s*(?:\[([^\]]*)\])?\s*(\*=|\+=|=)\s*(?:from\s+("(?:[^"\\]|\\.)*")|(\S+))\s*$/;
const PATH = /^(?!.*\.safetensors)[A-Za-z_*][\w*]*(\.[\w*]+)*$/;
const HOW: readonly How[] = ["to", "times", "prompt", "tensor", "plus"];
const ENTERS = ".in"; // after a part's path: the rows that it reads

const HIDDEN = /^\s*[-−](inf|∞)\s*$/; // a score that hides a key

// The number of an edit that sets or multiplies, NaN if it is none.
export const numberOf = (e: Edit): number => (e.how === "to" && HIDDEN.test(e.value) ? -Infinity : e.value.trim() === "" || !Number.isFinite(Number(e.value)) ? NaN : Number(e.value));
export const reads = (e: Edit): boolean => e.how === "tensor" || e.how === "plus";
// The path of the part whose rows an edit changes before it; undefined for a tensor.
export const entered = (path: string): string | undefined => (path.endsWith(ENTERS) ? path.slice(0, -ENTERS.length) : undefined);

export const sound = (e: Edit): boolean =>
  e.path.length > 0 && e.path.length < 200 && (e.at === "" || AT.test(e.at) || LETTERED.test(e.at)) && (e.how === "prompt" ? e.value.length > 0 && e.value.length <= 4000 : reads(e) ? e.value.length < 200 && PATH.test(e.value) : !Number.isNaN(numberOf(e)));

export const written = (edits: readonly Edit[]): string => (edits.length > 0 ? JSON.stringify(edits.map((e) => [e.path, e.at, e.how, e.value])) : "");

export function read(text: string): Edit[] {
  let parsed: unknown = [];
  try { parsed = JSON.parse(text || "[]"); } catch { return []; }
  if (!Array.isArray(parsed)) return [];
  return parsed.slice(0, MOST).flatMap((one: unknown) => {
    if (!Array.isArray(one) || one.length !== 4 || !one.every((w) => typeof w === "string")) return [];
    const [path, at, how, value] = one as [string, string, string, string], edit = { path, at, how: how as How, value };
    return HOW.includes(edit.how) && sound(edit) ? [edit] : [];
  });
}

// The edit as a change's text, which the server reads.
export function changeText(e: Edit): string {
  const value = e.how === "prompt" ? `= from ${JSON.stringify(e.value)}` : reads(e) ? `${e.how === "plus" ? "+=" : "="} ${e.value}` : `${e.how === "to" ? "=" : "*="} ${String(numberOf(e)).replace("Infinity", "inf")}`;
  return `${e.path}${where(e.at)} ${value}`;
}

export const where = (at: string): string => (at === "" ? "" : `[${at}]`);

// The edit of a change's text; undefined for one that no edit is.
export function parsed(text: string): Edit | undefined {
  const [, path = "", at = "", sign, prompt, value = ""] = CHANGE.exec(text) ?? [];
  if (prompt !== undefined && sign !== "=") return undefined;
  try {
    const how: How = prompt !== undefined ? "prompt" : sign === "+=" ? "plus" : sign === "*=" ? "times" : PATH.test(value) && value.includes(".") ? "tensor" : "to";
    const edit: Edit = { path, at: at.trim(), how, value: prompt !== undefined ? (JSON.parse(prompt) as string) : value };
    return sound(edit) ? edit : undefined;
  } catch { return undefined; }
}
