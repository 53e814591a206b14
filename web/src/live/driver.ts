// Runs a page's file in node, for the tests that compare it with Python: `driver FILE.html OUT` reads requests from standard input, and
// writes to OUT a JSON of their documents, with the numbers of every tensor in base64.

import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { packed } from "../run/recorded";
import { parse } from "../tensor/safetensors";
import { Tokenizer } from "./tokenizer";
import { Kernels } from "./kernels";
import { lensOf, mapOf } from "./live_map";
import { LiveModel, LiveRun, NoNumber, type Asked } from "./live_run";
import { termsOf } from "./live_terms";
import { whyOf } from "./live_why";
import { Plan } from "./plan";
import type { LiveDocument } from "./present";

const [, , file = "", out = ""] = process.argv, text = readFileSync(file, "utf8");
const inside = (id: string): string => new RegExp(`id="${id}">([^<]*)</script>`).exec(text)?.[1] ?? "";
const bytes = (id: string): Uint8Array<ArrayBuffer> => Uint8Array.from(Buffer.from(inside(id), "base64"));
const document = JSON.parse(inside("live")) as LiveDocument;
const kernels = await Kernels.of(bytes("kernels")), plan = new Plan(kernels, document.plan), model = new LiveModel(document, plan, new Tokenizer(document));
const files = document.chunks?.map((c) => new Uint8Array(readFileSync(join(dirname(file), c.file)))) ?? [bytes("weights")];
for (const one of files) plan.fillWith(parse(one.buffer).tensors);
if (plan.lacking !== undefined) throw new RangeError(plan.lacking);
interface Request extends Omit<Asked, "ids" | "forced"> { prompt: string; forced?: Record<string, number>; tensors?: boolean; cells?: [number, number[]][] }
const requests = JSON.parse(readFileSync(0, "utf8")) as { runs: Request[]; texts: string[]; timed: number };

const answers = requests.runs.map(({ forced = {}, tensors = false, cells = [], ...request }) => {
  let run: LiveRun;
  try {
    run = new LiveRun(model, { ...request, ids: model.ids(request.prompt), forced: new Map(Object.entries(forced).map(([k, id]) => [Number(k), id])) });
  } catch (fault) {
    if (!(fault instanceof NoNumber)) throw fault;
    return { broken: [fault.path, fault.at, fault.step] };
  }
  const numbers = run.steps.map((s) => Object.fromEntries([...s.values].map(([path, x]) => [path, packed(new Uint8Array(x.buffer, x.byteOffset, x.byteLength))])));
  return { run: run.document(), bytes: run.bytes, terms: cells.map(([n, at]) => termsOf(run, n, at)), ...(tensors ? { numbers, steps: run.steps.map((_, k) => ({ tensors: run.tensors(k), map: mapOf(run, k), lens: lensOf(run, k, run.blanks[0] ?? -1, run.new[k] ?? 0, 5), why: whyOf(run, k, run.blanks[0] ?? -1, run.new[k] ?? 0) })) } : {}) };
});
const memory = kernels.memory.byteLength, began = performance.now();
plan.run(Array.from({ length: requests.timed }, (_, i) => ({ token: 0, position: i % document.longest, length: document.longest, edits: [] })), () => {});
writeFileSync(out, JSON.stringify({ answers, memory, ids: requests.texts.map((t) => model.ids(t)), shown: document.pieces.map((p, id) => (p === null ? "" : model.tokenizer.shown(id))), rate: (1000 * requests.timed) / (performance.now() - began) }));
