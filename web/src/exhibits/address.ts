// An exhibit's settings in an address, and the address of a run behind an exhibit.

import type { ControlDocument, ExhibitRunDocument } from "./documents";
import * as edits from "../run/edits";
import * as switches from "../run/switches";
import { NOWHERE, written as link } from "../link";

export type Settings = Record<string, string | number>;

const MOST = 16; // as the server's limit

// Any text may stand in a link; the server judges names and values.
export function read(text: string): Settings {
  let parsed: unknown;
  try { parsed = JSON.parse(text || "{}"); } catch { return {}; }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) return {};
  return Object.fromEntries(Object.entries(parsed).filter((pair): pair is [string, string | number] => typeof pair[1] === "string" || typeof pair[1] === "number").slice(0, MOST));
}

// Only what differs from the controls' own values, in their order.
export function written(settings: Settings, controls: readonly ControlDocument[]): string {
  const own = controls.flatMap(({ name, value }) => { const set = settings[name]; return set === undefined || set === value ? [] : [[name, set] as const]; });
  return own.length > 0 ? JSON.stringify(Object.fromEntries(own)) : "";
}

// Where a number of a panel stands: a tensor of one of the exhibit's runs, and its index there, [] for the whole tensor.
export interface TensorPlace { path: string; cell: readonly number[]; run: number }

// The tile of that tensor. undefined for a run with changes, which the view of changes shows beside the plain one.
export function tile(runs: readonly ExhibitRunDocument[], at: TensorPlace): string | undefined {
  const run = runs[at.run];
  return run === undefined || run.changes.length > 0 ? undefined : address(run, { tensor: at.path, cell: at.cell.join() });
}

// The view that shows a run: with changes the one that compares. undefined for a change that no address can hold.
export function address(run: ExhibitRunDocument, at: { tensor: string; cell: string } = { tensor: "", cell: "" }): string | undefined {
  const changes = run.changes.map(edits.parsed);
  if (changes.some((e) => e === undefined)) return undefined;
  const list = changes.flatMap((e) => e ?? []);
  return link({ ...NOWHERE, view: list.length > 0 ? "change" : "life", model: run.model, with: switches.written(run.switches), prompt: run.prompt, steps: run.steps, edits: edits.written(list), ...at });
}
