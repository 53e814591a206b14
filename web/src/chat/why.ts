// From a token of an answer to the run that made it: the same ids, the same settings, at the step that drew it.

import * as forced from "../sampling/forced";
import { go, now, run, turn } from "../state.svelte";
import type { Reply } from "./tree";

// The prompt of that run: the text if the model read it as it stands, and a field of one line holds it; else the ids.
function promptOf({ prompt }: Reply): string {
  if (!prompt) return "";
  return prompt.rule === "template" || /^#|[\r\n]/.test(prompt.text) ? `#${prompt.ids.join(" ")}` : prompt.text;
}

// Open Life at the step of a token. The run draws as the answer did; only if its tokens come out differently, which a cache that was read
// again may do, is it given the answer's own.
export async function openStep(reply: Reply, index: number): Promise<void> {
  const ids = reply.tokens.slice(0, index + 1).map((t) => t.answer.picked.id);
  go({ prompt: promptOf(reply), steps: ids.length, step: 0, sampling: reply.sampling, trial: "", forced: "", position: -1, block: "", tensor: "", cell: "" });
  await run();
  if (now.fault === "" && now.run && ids.some((id, k) => now.run?.new[k] !== id)) {
    go({ forced: forced.written(Object.fromEntries(ids.map((id, k) => [k, id]))) });
    await run();
  }
  if (now.fault !== "") return;
  go({ view: "life" });
  scrollTo({ top: 0 });
  await turn(index);
}
