// One selection for all views, held in the address: model, prompt, step, block, head, position, tensor, cell.

import { untrack } from "svelte";
import { flush, forget, push, replace } from "./address";
import { framed, served } from "./live/present";
import { kept, models, start, tensors, weights } from "./run/api";
import { recorded } from "./run/recorded";
import type { Spot } from "./run/sources";
import * as settings from "./sampling/settings";
import { asTensor } from "./run/slices";
import * as switches from "./run/switches";
import { pieceOf } from "./run/map";
import { axes, type ModelEntry, type Run, type Tensor } from "./run/types";
import * as trails from "./sums/trail";
import type { Stop } from "./sums/trail";
import { NOWHERE, read, written, type Place } from "./link";
import { say, visible } from "./messages";

export const place: Place = $state({ ...NOWHERE });
// The state that all views share: the run, the request in progress, and the sources of the cell under the pointer. Answers are replaced and
// never changed, so nothing watches their parts: a river reads them a hundred thousand times.
class Now {
  run: Run | null = $state.raw(null);
  models: ModelEntry[] = $state.raw([]);
  training = $state(false); // there is a run of training to show
  shipped = $state(""); // the name of that run, if it ships with the package
  tokenizer: string | null = $state(null); // the tokenizer that the server was opened with, alone
  busy = $state(false);
  request: { halt: () => void; waiter: string } | null = $state.raw(null); // the one in progress, where a server computes it: what ends it, and its name
  fault = $state("");
  standing = $state(false); // the run that is shown stands in for the page's first one, which was refused
  tensors: Record<number, Tensor[]> = $state.raw({}); // by step
  weights: Tensor[] = $state.raw([]);
  lit: Map<string, Spot> = $state.raw(new Map());
}
export const now = new Now();

// A change of these adds an entry to the browser's history; any other replaces the current one.
const IDS = "#0 1 2 3 4"; // the first prompt of a model without a tokenizer
const RERUN: (keyof Place)[] = ["model", "with", "prompt", "steps", "sampling", "forced"]; // a change of these needs another run
const STATIONS: (keyof Place)[] = ["view", "model", "with", "prompt", "tensor", "exhibit", "on", "controls", "tour"];

export function go(change: Partial<Place>): void {
  const next = { ...place, ...change };
  if (next.trail !== "" && !("trail" in change) && trails.indexOf(trails.read(next.trail), stop(next)) < 0) change = { ...change, trail: "" }; // another cell is on no trail
  const station = STATIONS.some((key) => key in change && change[key] !== place[key]) || ("scene" in change && (change.scene === 0) !== (place.scene === 0)); // the story is one entry
  Object.assign(place, change);
  const address = `#${written(place)}`;
  if (framed) return;
  if (station) push(address);
  else replace(address);
}

// A place as a stop of a trail.
export const stop = ({ tensor, cell, step }: Pick<Place, "tensor" | "cell" | "step">): Stop => ({ path: tensor, cell, step });

// Open the cell that a number comes from, as the next stop of the trail, or a stop of it.
export async function follow(next: Stop, trail = trails.followed(trails.read(place.trail), stop(place), next)): Promise<void> {
  go({ view: "life", tensor: next.path, cell: next.cell, step: next.step, trail: trails.written(trail) });
  await loadStep();
}

// The model or recorded run that the server was opened with.
let first: { model: string; run: Run | null } = { model: "", run: null };
// A run's prompt as a link has it: its text, else its ids.
export const promptOf = (run: Run): string => run.prompt ?? (run.ids.length > 0 ? `#${run.ids.join(" ")}` : "");
// A recorded run is shown until another model is chosen; its own may not be loaded.
const recording = (): Run | null => (place.model === (first.run?.model ?? first.model) ? first.run : null);

// Fields that a link lacks, and models that are not loaded, become those of the start.
function settle(): void {
  const model = now.models.find((m) => m.name === place.model) ?? now.models.find((m) => m.name === (first.run?.model ?? first.model));
  place.model = model?.name ?? first.run?.model ?? "";
  const run = recording();
  place.prompt ||= run ? promptOf(run) : (model?.prompt ?? IDS);
}

// Fetch the models' documents again, in the current language.
export const refreshModels = (): Promise<void> => models().then((answer) => { now.models = answer.models; }, () => undefined);

export async function open(): Promise<void> {
  Object.assign(place, read(recorded && location.hash.length < 2 ? recorded.place : location.hash));
  addEventListener("pagehide", flush);
  addEventListener("popstate", () => {
    forget();
    const before = { ...place };
    Object.assign(place, read(location.hash));
    settle();
    if (RERUN.some((key) => before[key] !== place[key])) return void run();
    if (now.run) keepSelection(now.run);
    void turn(place.step);
  });
  try {
    const answer = await models();
    now.models = answer.models;
    now.shipped = answer.shipped ?? "";
    now.tokenizer = answer.tokenizer ?? null;
    const trained = typeof answer.training === "string";
    now.training = trained || now.shipped !== "";
    if (!recorded && (trained || now.tokenizer) && !new URLSearchParams(location.hash.slice(1)).has("view")) place.view = trained ? "learning" : "tokens"; // what it was opened for
    first = { model: answer.current, run: answer.run === null ? null : await kept(answer.run) };
    settle();
    const run = recording();
    if (run) [place.prompt, place.with] = [promptOf(run), switches.written(run.switches)];
  } catch (fault) {
    now.fault = messageOf(fault);
    return;
  }
  await run();
}

// Another run, with the settings of sampling that were tried last.
export async function ask(change: Partial<Place>): Promise<void> {
  go({ ...change, ...(place.trial === "" ? {} : { sampling: settings.written(settings.read(place.trial)), trial: "" }) });
  await run();
}

let latest = 0;

// The newest answer counts; an older one that comes later is dropped.
export async function run(): Promise<void> {
  const mine = ++latest, ended = new AbortController();
  if (now.busy) now.request?.halt(); // else the server would compute that run first
  now.busy = true;
  const waiter = `${performance.timeOrigin}-${mine}`; // when this tab was loaded, to a tenth of a millisecond
  now.request = served ? { halt: () => ended.abort(), waiter } : null;
  now.fault = "";
  try {
    const own = recording(), answer = own && fits(own) ? own : (await start(place.model, place.prompt, place.steps, place.sampling, switches.read(place.with), [], place.forced, ended.signal, served ? waiter : ""));
    if (mine === latest) take(answer);
  } catch (fault) {
    if (mine === latest) now.fault = ended.signal.aborted ? say("page.halted") : messageOf(fault);
    if (mine === latest && !now.run && !ended.signal.aborted) await standIn(() => mine === latest, ended.signal);
  } finally {
    if (mine === latest) now.busy = false;
  }
}

// The page's first run was refused: the model's own first prompt runs, with the switches if they allow it, so that there are views to go on with.
async function standIn(wanted: () => boolean, signal: AbortSignal): Promise<void> {
  const own = recording(), prompt = now.models.find((m) => m.name === place.model)?.prompt ?? IDS, list = switches.read(place.with);
  for (const switched of list.length > 0 ? [list, []] : [list]) {
    try {
      const run = own ?? (await start(place.model, prompt, 1, "", switched, [], "", signal));
      if (wanted()) take(run, true);
      return;
    } catch { /* the first refusal is the one that is shown */ }
  }
}

const fits = (run: Run): boolean => place.prompt === promptOf(run) && place.with === switches.written(run.switches);

// True if the run can be made again: a recorded one of ids may be of a model that is not loaded.
export const repeats = (run: Run): boolean => run.prompt !== null || now.models.some((m) => m.name === run.model);

// The model that ran, with its switches.
export const ran = (run: Run): string => (run.switches.length > 0 ? say("page.with.model", { model: visible(run.model), switches: visible(switches.written(run.switches)) }) : visible(run.model));

// True if the shown run is not the requested one, which was refused.
export const astray = (): boolean => now.fault !== "" && now.run !== null && (!fits(now.run) || place.model !== now.run.model);

// Back to the run that is shown.
export function back(): void {
  if (!now.run) return;
  now.fault = "";
  go({ model: now.run.model, with: switches.written(now.run.switches), prompt: promptOf(now.run) });
}

// A run becomes what all views show. standing: it stands in for the one of the address, which stays there.
function take(run: Run, standing = false): void {
  now.run = run;
  now.standing = standing;
  now.tensors = { 0: run.tensors };
  now.weights = [];
  const own = run.switches.length > 0 ? run.run : ""; // a switch may have made weights, which no other run has
  if (now.models.some((m) => m.name === run.model)) void weights(run.model, own).then((all) => { if (now.run?.run === run.run) now.weights = all.filter((w) => run.values && w.shape.length > 0).map((w) => asTensor(run.model, own, w)); }, () => undefined);
  if (!standing && place.with !== switches.written(run.switches)) { // as the server read them
    place.with = switches.written(run.switches);
    if (!framed) replace(`#${written(place)}`);
  }
  keepSelection(run);
  if (place.step > 0) void turn(place.step);
}

// Of the selection stays what the run has.
function keepSelection(run: Run): void {
  place.step = Math.min(place.step, Math.max(0, run.steps.length - 1));
  place.position = Math.min(place.position, run.ids.length - 1);
  if (place.tensor && !run.tensors.some((t) => t.path === place.tensor || t.weights.includes(place.tensor))) place.tensor = place.cell = "";
  if (!run.tensors.some((t) => t.path.startsWith(`${place.block}.`))) place.block = "";
}

// The tensors of the first `steps` steps, one after the other.
export async function load(steps: number): Promise<void> {
  const run = untrack(() => now.run);
  for (let k = 1; run && k < steps && now.run === run; k++) {
    if (untrack(() => now.tensors[k])) continue;
    const loaded = await tensors(run.run, k);
    if (now.run === run) now.tensors = { ...now.tensors, [k]: loaded };
  }
}

// Show a step; the tensors of a later one are fetched when it is first shown.
export async function turn(step: number): Promise<void> {
  go({ step });
  await loadStep();
}

async function loadStep(): Promise<void> {
  const run = now.run, step = place.step;
  if (!run || now.tensors[step]) return;
  try {
    const loaded = await tensors(run.run, step);
    if (now.run === run) now.tensors = { ...now.tensors, [step]: loaded };
  } catch (fault) {
    now.fault = messageOf(fault);
  }
}

export const messageOf = (fault: unknown): string => (fault instanceof Error ? fault.message : String(fault));

// The tensors of the chosen step.
export const seen = (): Tensor[] => now.tensors[place.step] ?? [];

// The tensor of a step, or the weight, at a path. A mixture's experts have weights under the paths of what they make: a cell tells which is meant.
export function tensorAt({ path, cell, step }: Stop): Tensor | undefined {
  const all = [now.tensors[step]?.find((t) => t.path === path), now.weights.find((w) => w.path === path)].filter((t) => t !== undefined);
  return all.find((t) => t.shape.length === cell.split(",").length) ?? all[0];
}
export const opened = (): Tensor | undefined => tensorAt(stop(place));

const TEXTS = new WeakMap<Run, { given: string[]; made: string[] }>();

// A run's tokens as they are shown, those of the prompt and those that it made.
function texts(run: Run): { given: string[]; made: string[] } {
  const shown = (ids: readonly number[], pieces: readonly string[]): string[] => ids.map((id, i) => pieceOf({ id, piece: pieces[i] ?? "" }));
  const known = TEXTS.get(run) ?? { given: shown(run.ids, run.pieces), made: shown(run.new, run.new_pieces) };
  TEXTS.set(run, known);
  return known;
}

// The pieces that a step's rows stand for, by axis letter, or ids where there is no piece; a decoder beside an encoder begins with a token that is no text.
export function labels(t: Tensor, letter: string): string[] | undefined {
  const run = now.run, size = t.shape[axes(t).indexOf(letter)] ?? 0;
  if (!run) return undefined;
  const own = run.kind === "encoder-decoder" && !t.path.startsWith("encoder.") && !(letter === "S" && /\.cross\./.test(t.path)) && t.path !== "source";
  const { given, made } = texts(run);
  const fed = own ? 0 : given.length - 1, all = own ? ["▸", ...made] : [...given, ...made];
  if (letter === "S") return size <= all.length ? all.slice(0, size) : undefined;
  if (letter !== "T") return undefined;
  if (t.step === 0) return size === fed + 1 ? all.slice(0, size) : undefined;
  return size === 1 ? [all[fed + t.step] ?? ""] : undefined;
}
