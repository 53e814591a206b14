// A tensor's role, by its path and axes alone: one colour per role, everywhere. No family's name is known here.

import { axes, type Tensor } from "./types";

export type Role = "q" | "k" | "v" | "attention" | "ffn" | "router" | "residual" | "norm";

const ROUTING = new Set<Tensor["result"]>(["gates", "corrected scores", "choice", "expert shares", "shares"]);

export function role(t: Pick<Tensor, "path" | "dims" | "result">): Role {
  const name = t.path.split(".").at(-1) ?? "", last = axes(t).at(-1) ?? "";
  if (/^q(_|$)/.test(name)) return "q";
  if (/^(k|kv|latent)(_|$)/.test(name)) return "k";
  if (/^v(_|$)/.test(name)) return "v";
  if (/norm$/.test(name)) return "norm";
  if (last === "E" || last === "A" || (ROUTING.has(t.result) && !/S/.test(t.dims))) return "router";
  if (/\.(attn|conv|delta|mamba|cross)(\.|$)/.test(`.${t.path}`)) return "attention";
  if (/\.ffn(\.|$)/.test(`.${t.path}`)) return "ffn";
  return "residual";
}
