// The views that a run has something for, in order; a link may name any other.

import type { Key } from "../messages";
import { kept } from "./cache";
import { routers } from "./routing";
import type { Run, Tensor } from "./types";

// fixed: the run stands in a file, which asks no server; catalogued: the file holds the catalogue.
export function views(run: Run, tensors: readonly Tensor[], fixed: boolean, catalogued: boolean): [string, Key][] {
  const blanks = run.kind === "encoder";
  const all: [string, Key, boolean][] = [
    ["life", "page.view.life", true],
    ["attention", "page.view.attention", run.values && tensors.some((t) => t.op === "softmax" && t.dims.includes("S"))],
    ["experts", "page.view.experts", run.values && routers(tensors).length > 0],
    ["next", blanks ? "page.view.blank" : "page.view.next", run.values && run.steps.some((s) => s.answers.length > 0)],
    ["cache", "page.view.cache", run.values && !blanks && run.steps.length > 0 && kept(tensors).length > 0],
    ["budget", "page.view.budget", !fixed || catalogued],
    ["change", "page.view.change", run.values && run.prompt !== null && run.steps.length > 0 && !fixed],
  ];
  return all.filter(([, , there]) => there).map(([view, key]) => [view, key]);
}
