// The server, as functions. Every request carries the token that the opened address brought; it leaves the address at once.

import type { Settings } from "../exhibits/address";
import type { ExhibitDocument, ExhibitListDocument, TrainingDocument } from "../exhibits/documents";
import type { ChatEventDocument } from "../chat/chat_documents";
import { settings } from "../settings.svelte";
import type { Bill, Catalog, Counted, Point, Query, Reason } from "./bill";
import { Columns, cellOf } from "./columns";
import type { CellPartsDocument, CodeDocument, LensDocument, ProgressDocument, ReuseDocument, SweepDocument, SwitchDocument, TurnsDocument, WeightTileDocument, WhyDocument } from "./documents";
import type { DifferencesDocument } from "./difference_documents";
import type { MapDocument } from "./map_documents";
import { attributed, type Attribution } from "./lens";
import type { Measured, Measuring } from "./measured";
import { RecordedTerms } from "./recorded_terms";
import { recorded, unpacked, type Carried } from "./recorded";
import { Refused } from "./refused";
import { answer as computed, part } from "../live/answers";
import { embedded, served } from "../live/present";
import { before } from "../sampling/forced";
import { read } from "../sampling/settings";
import { say } from "../messages";
import type { TokensDocument } from "./token_documents";
import type { Models, Run, Stats, Tensor, Terms, Weight } from "./types";

const TOGETHER = 4; // requests in flight: a browser allows six to a host, and one more must always pass
const KEPT = "pellucid.token";
const token = bring();

function bring(): string {
  const fragment = new URLSearchParams(location.hash.slice(1)), brought = fragment.get("token");
  fragment.delete("token");
  if (brought !== null && served) history.replaceState(null, "", `${location.pathname}${location.search}${fragment.size ? `#${fragment}` : ""}`);
  const own = brought !== null && /^[\w-]+$/.test(brought) ? brought : null; // anything may stand in a link, and not all of it in a header
  try {
    if (own === null) return sessionStorage.getItem(KEPT) ?? "";
    sessionStorage.setItem(KEPT, own);
  } catch { /* without storage the token lives as long as the page */ }
  return own ?? "";
}

export { Refused };

let running = 0;
const waiting: (() => void)[] = [];

async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  if (recorded) throw new Refused(say("page.saved.absent"));
  if (embedded) throw new Refused(say("page.live.served", { model: embedded.model }));
  while (running >= TOGETHER) await new Promise<void>((go) => waiting.push(go));
  running++;
  try {
    const url = new URL(`./api/${path}`, document.baseURI);
    url.searchParams.set("lang", settings.language);
    const answer = await fetch(url, { ...init, headers: { ...init.headers, Authorization: `Bearer ${token}` } });
    if (!answer.ok) throw new Refused(await reason(answer));
    return answer;
  } finally {
    running--;
    waiting.shift()?.();
  }
}

async function reason(answer: Response): Promise<string> {
  try {
    return ((await answer.json()) as { error: { message: string } }).error.message;
  } catch {
    return `HTTP ${answer.status}`;
  }
}

// Answers by request, for the saved file.
export const answered = new Map<string, unknown>();
const REMEMBERED = 2000;

async function json<T>(path: string, init?: RequestInit): Promise<T> {
  const key = typeof init?.body === "string" ? `${path} ${init.body}` : path;
  if (recorded && key in recorded.answers) return recorded.answers[key] as T;
  if (embedded) return computed(path, typeof init?.body === "string" ? JSON.parse(init.body) : undefined) as Promise<T>;
  const answer = (await (await ask(path, init)).json()) as T;
  if (answered.delete(key) || answered.size < REMEMBERED || answered.delete(answered.keys().next().value as string)) answered.set(key, answer);
  return answer;
}

export const models = (): Promise<Models> => json("models");

// The run of training at a recorded step, the newest where it is 0.
export const training = (step: number): Promise<TrainingDocument> => json(`training${step > 0 ? `?step=${step}` : ""}`);

export const tileOf = (step: number, weight: string, cell: string): Promise<WeightTileDocument> => json(`training/tile?${query({ step, weight, cell })}`);

export const moved = (step: number, weight: string, cell: string): Promise<WhyDocument> => json(`training/why?${query({ step, weight, cell })}`);

// A request's prompt: a text, or for a model without a tokenizer token ids, as "#1 2 3".
const given = (prompt: string): object => (/^#\s*\d+([\s,]+\d+)*\s*$/.test(prompt) ? { ids: (prompt.match(/\d+/g) ?? []).map(Number) } : { prompt });

// A text, or ids as "#1 2 3", as tokens. model: whose tokenizer, or the tokenizer that was opened.
export const tokens = (model: string, prompt: string, special: boolean): Promise<TokensDocument> => json("tokens", { method: "POST", body: JSON.stringify({ model, ...given(prompt), special }), headers: { "Content-Type": "application/json" } });

// sampling: as a link holds it; "" takes the likeliest token. waiter: by which `progress` finds the run.
export function start(model: string, prompt: string, steps: number, sampling: string, switches: readonly string[] = [], changes: readonly string[] = [], forced = "", signal?: AbortSignal, waiter = ""): Promise<Run> {
  const taken = before(forced, steps);
  const body = JSON.stringify({ model, ...given(prompt), new: steps, ...(sampling === "" ? {} : { sampling: read(sampling) }), ...(switches.length > 0 ? { with: switches } : {}), ...(changes.length > 0 ? { changes } : {}), ...(Object.keys(taken).length > 0 ? { forced: taken } : {}) });
  return json("runs", { method: "POST", body, headers: { "Content-Type": "application/json", ...named(waiter) }, ...(signal ? { signal } : {}) });
}

// A run's request names itself, since a server may have several tabs.
const named = (waiter: string): Record<string, string> => (waiter === "" ? {} : { "X-Pellucid-Waiter": waiter });

// How far the run of that request has come. It is not remembered.
export const progress = async (waiter: string): Promise<ProgressDocument> => (await ask("runs", { headers: named(waiter) })).json() as Promise<ProgressDocument>;

// The events of a conversation's next answer as they come, until it is aborted.
export async function* answerOf(model: string, switches: readonly string[], messages: readonly object[], sampling: string, most: number, signal: AbortSignal): AsyncGenerator<ChatEventDocument> {
  const body = JSON.stringify({ model, messages, new: most, sampling: read(sampling), ...(switches.length > 0 ? { with: switches } : {}) });
  const { body: stream } = await ask("chats", { method: "POST", body, headers: { "Content-Type": "application/json" }, signal });
  const reader = (stream as ReadableStream<Uint8Array>).getReader(), decoder = new TextDecoder();
  for (let text = "", end = -1; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    while ((end = text.indexOf("\n\n")) >= 0) {
      yield JSON.parse(text.slice("data: ".length, end)) as ChatEventDocument;
      text = text.slice(end + 2);
    }
  }
}

const query = (parameters: Query): string => new URLSearchParams(Object.entries(parameters).map(([k, v]) => [k, String(v)])).toString();

export const catalog = (): Promise<Catalog> => json("catalog");

export const count = (model: string, setting: Query): Promise<Bill> => json(`count?${query({ model, ...setting })}`);

// A number's formula and those of what it is made of; a model's tensors; its numbers along one setting.
export const why = async (model: string, setting: Query, path: string): Promise<Reason[]> => (await json<{ why: Reason[] }>(`count/why?${query({ model, ...setting, path })}`)).why;
export const counted = async (model: string, setting: Query): Promise<Counted[]> => (await json<{ weights: Counted[] }>(`count/weights?${query({ model, ...setting })}`)).weights;
export const along = async (model: string, setting: Query, what: string): Promise<Point[]> => (await json<{ points: Point[] }>(`count/along?${query({ model, ...setting, along: what })}`)).points;

// A measurement on this machine, which ends when it is aborted; and how far one has come. Neither is remembered.
export async function measure(model: string, signal: AbortSignal): Promise<Measured> {
  return (await ask("bench", { method: "POST", body: JSON.stringify({ model }), headers: { "Content-Type": "application/json" }, signal })).json() as Promise<Measured>;
}
export const measuring = async (): Promise<Measuring> => (await ask("bench")).json() as Promise<Measuring>;

// model: "" for the exhibit's own specimen.
export const exhibits = (): Promise<ExhibitListDocument> => json("exhibits");
export const exhibit = (name: string, model: string, settings: Settings): Promise<ExhibitDocument> =>
  json(`exhibits/${encodeURIComponent(name)}`, { method: "POST", body: JSON.stringify({ model, settings }), headers: { "Content-Type": "application/json" } });

export const switches = async (model: string): Promise<SwitchDocument[]> => (await json<{ switches: SwitchDocument[] }>(`switches?${query({ model })}`)).switches;

// run: whose switches made weights of its own; "" for the model as it is.
const whose = (model: string, run: string): Query => (run === "" ? { model } : { model, run });
export const weights = async (model: string, run: string): Promise<Weight[]> => (await json<{ weights: Weight[] }>(`weights?${query(whose(model, run))}`)).weights;

// Texts of a step's likeliest tokens, and of the one that these settings draw.
export async function pieces(run: string, step: number, row: number, sampling: object, top = 1000): Promise<[number, string][]> {
  const body = JSON.stringify({ sampling, row, top });
  const answer = await json<{ rows: { id: number; piece: string }[] }>(`runs/${run}/steps/${step}/sample`, { method: "POST", body, headers: { "Content-Type": "application/json" } });
  return answer.rows.map((r) => [r.id, r.piece]);
}

// For a row, -1 the last: the logit lens after each block, and each part's addition to a token's logit.
const spot = (row: number, id: number): string => query({ ...(row < 0 ? {} : { row }), id });
export const lens = (run: string, step: number, row: number, id: number): Promise<LensDocument> => json(`runs/${run}/steps/${step}/lens?${spot(row, id)}`);
export const attribution = async (run: string, step: number, row: number, id: number): Promise<Attribution> => attributed(await json(`runs/${run}/steps/${step}/attribution?${spot(row, id)}`));

// The steps up to this one on one screen.
export const mapOf = (run: string, step: number): Promise<MapDocument> => json(`runs/${run}/steps/${step}/map`);

export const turns = (run: string, part: string, at: number, key: number, head: number, step: number): Promise<TurnsDocument> => json(`runs/${run}/turns?${query({ part, query: at, key, head, step })}`);

// What a cell is made of; the code behind a tensor, with lines that make the cell again.
export const parts = (run: string, n: number, cell: readonly number[]): Promise<CellPartsDocument> => json(`runs/${run}/tensors/${n}/parts?cell=${cell.join()}`);
export const code = (run: string, n: number, cell: readonly number[] | undefined): Promise<CodeDocument> => json(`code?${query({ run, tensor: n, ...(cell ? { cell: cell.join() } : {}) })}`);

// The terms of a run's cells that a page in a file carries.
export const columnsOf = async (run: string): Promise<Carried> => {
  const { bytes, told, cells } = (await (await ask(`runs/${run}/columns`)).json()) as Carried;
  return { bytes, told, cells };
};

export const reuse = (run: string, prompt: string): Promise<ReuseDocument> =>
  json(`runs/${run}/reuse`, { method: "POST", body: JSON.stringify(given(prompt)), headers: { "Content-Type": "application/json" } });

// Cells of the prompt `clean` put into the prompt `changed`, one after another, and a number of each run.
export async function sweep(model: string, switches: readonly string[], clean: string, changed: string, how: { over: string; by: string; words: readonly [string, string] }): Promise<SweepDocument> {
  const body = JSON.stringify({ model, clean, changed, over: how.over, by: how.by, ...(how.words[0] === "" ? {} : { metric: how.words }), ...(switches.length > 0 ? { with: switches } : {}) });
  return json("sweeps", { method: "POST", body, headers: { "Content-Type": "application/json" } });
}

export const differences = (run: string, other: string): Promise<DifferencesDocument> => json<DifferencesDocument>(`runs/${run}/differences?${query({ other })}`);

export async function difference(run: string, n: number, other: string, m: number, at: string, level: string): Promise<ArrayBuffer> {
  const path = `runs/${run}/tensors/${n}/difference?${query({ other, m, at, level })}`;
  return embedded ? part(path) : (await ask(path)).arrayBuffer();
}

export const kept = (run: string): Promise<Run> => json(`runs/${run}`);

export const tensors = async (run: string, step: number): Promise<Tensor[]> => (await json<{ tensors: Tensor[] }>(`runs/${run}/steps/${step}`)).tensors;

let columns: Columns | undefined, made: RecordedTerms | undefined;

export async function terms(run: string, n: number, cell: readonly number[]): Promise<Terms> {
  const key = `runs/${run}/tensors/${n}/terms?cell=${cell.join()}`, shape = recorded?.tensors[n]?.shape;
  if (!recorded?.terms || !shape || key in recorded.answers) return json(key);
  columns ??= Columns.of(unpacked(recorded.terms.bytes));
  const result = columns.terms(n, cellOf(shape, cell)) ?? (made ??= new RecordedTerms(recorded.answers[`runs/${run}`] as Run, columns)).terms(n, cell);
  if (result) return result;
  throw new Refused(recorded.terms.told > 0 ? say("page.beyond", { told: recorded.terms.told, cells: recorded.terms.cells }) : say("page.untold"));
}

// The range of a tensor's values, if the run's document lacks it, or of a weight's.
export const stats = async (run: string, n: number): Promise<Stats> => (await json<{ stats: Stats }>(`runs/${run}/tensors/${n}/stats`)).stats;
export const weightStats = async (model: string, run: string, path: string): Promise<Stats> => (await json<{ stats: Stats }>(`weights/tensor/stats?${query({ ...whose(model, run), path })}`)).stats;

export async function tensor(run: string, n: number, at: string, level: number): Promise<ArrayBuffer> {
  const path = `runs/${run}/tensors/${n}?at=${at}&level=${level}`;
  return embedded ? part(path) : (await ask(path)).arrayBuffer();
}

export async function weight(model: string, run: string, path: string, at: string, level: number): Promise<ArrayBuffer> {
  const request = `weights/tensor?${query({ ...whose(model, run), path, at, level })}`;
  return embedded ? part(request) : (await ask(request)).arrayBuffer();
}
