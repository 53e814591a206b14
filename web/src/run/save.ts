// The page as one file: its script and style inline, allowed by their hashes, and the run's answers and bytes as inert JSON.

import { settings } from "../settings.svelte";
import { written, type Place } from "../link";
import { say } from "../messages";
import { attribution, columnsOf, answered, lens, mapOf, models, pieces, tensor, tensors, training } from "./api";
import { download, nameOf } from "./download";
import { closed, inert, packed, readTensor, type Recorded } from "./recorded";
import type { Run, Tensor } from "./types";

const STEPS = 200; // recorded steps of a training, the newest
export const MOST = 64_000_000; // bytes of values: a file is read whole

const text = async (name: string): Promise<string> => (await fetch(new URL(`./${name}`, document.baseURI))).text();

async function hash(content: string): Promise<string> {
  return `sha256-${packed(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(content))))}`;
}

async function recording(run: Run, place: Place): Promise<Recorded> {
  const all: Tensor[] = [...run.tensors], known = await models();
  for (let k = 1; k < run.steps.length; k++) all.push(...(await tensors(run.run, k)));
  const size = all.reduce((n, t) => n + t.bytes, 0);
  if (size > MOST) throw new RangeError(say("page.large", { size, limit: MOST }));
  for (let k = 0; k < Math.max(1, run.steps.length); k++) await mapOf(run.run, k);
  for (const step of run.steps)
    for (const { row, picked } of step.answers) {
      await pieces(run.run, step.step, row, { temperature: 1 });
      await Promise.allSettled([lens(run.run, step.step, row, picked.id), attribution(run.run, step.step, row, picked.id)]); // a trace without its model has neither
    }
  const learning = typeof known.training === "string" || place.view === "learning";
  if (learning) for (const step of (await training(0)).watched.slice(-STEPS)) await training(step);
  const files = await Promise.all(all.map(async (t) => [t.n, readTensor(await tensor(run.run, t.n, t.shape.map(() => ":").join(), 0))] as const));
  const terms = await columnsOf(run.run);
  const own = { ...known, current: run.model, run: run.run, shipped: learning ? (known.shipped ?? null) : null, models: known.models.filter((m) => m.name === run.model) };
  const kept = [...answered].filter(([key]) => key.startsWith(`runs/${run.run}/`) || /^(count[/?]|catalog$|exhibits)/.test(key) || (learning && key.startsWith("training")));
  return {
    schema: 1, place: written({ ...place, tour: 0, scene: 0 }), language: settings.language,
    answers: { ...Object.fromEntries(kept), models: own, [`runs/${run.run}`]: run },
    terms, tensors: Object.fromEntries(files.map(([n, { stored, sha256 }]) => [n, { dtype: stored.dtype, shape: stored.shape, bytes: packed(stored.bytes), sha256 }])),
  };
}

export async function file(run: Run, place: Place): Promise<string> {
  const [page, style, icon, content] = await Promise.all([text("page.js"), text("page.css"), text("icon.svg"), recording(run, place)]);
  const script = closed(page), policy = `default-src 'none'; script-src '${await hash(script)}'; style-src '${await hash(style)}'; img-src data:; worker-src blob:; base-uri 'none'; form-action 'none'`;
  return [
    `<!doctype html>`, `<html lang="en">`, `<head>`, `<meta charset="utf-8" />`, `<meta http-equiv="Content-Security-Policy" content="${policy}" />`,
    `<meta name="viewport" content="width=device-width, initial-scale=1" />`, `<meta name="color-scheme" content="light dark" />`,
    `<link rel="icon" href="data:image/svg+xml;base64,${packed(new TextEncoder().encode(icon))}" />`, `<title>Pellucid</title>`, `<style>${style}</style>`, `</head>`,
    `<body>`, `<div id="page"></div>`, `<script type="application/json" id="recorded">${inert(content)}</script>`, `<script type="module">${script}</script>`, `</body>`, `</html>`, ``,
  ].join("\n");
}

export async function save(run: Run, place: Place): Promise<void> {
  download(new Blob([await file(run, place)], { type: "text/html" }), nameOf(run, "html"));
}
