// A tensor's role, by its path and axes alone: one colour per role, everywhere, which page.css gives. No family's name is known here.

import { axes, type Tensor } from "./types";

export type Role = "q" | "k" | "v" | "attention" | "ffn" | "router" | "residual" | "norm";

export type Letter = "q" | "k" | "v";

// Whether a name is one of queries, keys or values: q_rot, k_shared, and a latent, which keys and values are made from.
export function letter(name: string): Letter | undefined {
  const first = /^(q|kv?|latent|v)(?:_|$)/.exec(name)?.[1];
  return first === undefined ? undefined : first === "q" || first === "v" ? first : "k";
}

// A formula cut at the names of queries, keys and values, and of their weights: "q_rot·k_rotᵀ / √32".
export function lettered(formula: string): { text: string; letter: Letter | undefined }[] {
  return formula.split(/(\b(?:[Wb]_)?(?:q|kv?|latent|v)(?:_\w+)?\b)/).filter(Boolean).map((text) => ({ text, letter: letter(text.replace(/^[Wb]_/, "")) }));
}

const ROUTING = new Set<Tensor["result"]>(["gates", "corrected scores", "choice", "expert shares", "shares"]);

export function role(t: Pick<Tensor, "path" | "dims" | "result">): Role {
  const name = t.path.split(".").at(-1) ?? "", last = axes(t).at(-1) ?? "";
  const own = letter(name);
  if (own) return own;
  if (/norm$/.test(name)) return "norm";
  if (last === "E" || last === "A" || (ROUTING.has(t.result) && !/S/.test(t.dims))) return "router";
  if (/\.(attn|conv|delta|mamba|cross)(\.|$)/.test(`.${t.path}`)) return "attention";
  if (/\.ffn(\.|$)/.test(`.${t.path}`)) return "ffn";
  return "residual";
}
