// Switches of a run: fields in which the model that runs differs from the one that is named. A link may hold any text; the server judges it.

import type { SwitchDocument } from "./documents";

const MOST = 16, LONGEST = 200; // as the server's limits

export const read = (text: string): string[] => text.split(";").map((one) => one.trim()).filter((one) => one !== "" && one.length <= LONGEST).slice(0, MOST);

export const written = (switches: readonly string[]): string => switches.join("; ");

export const nameOf = (one: string): string => (one.split("=")[0] ?? "").trim();

// Of one field the newest counts.
export const added = (switches: readonly string[], one: string): string[] => [...switches.filter((s) => nameOf(s) !== nameOf(one)), one];

// What a path may be set to: "layers.0.attn.scale" as "layers.*.attn.scale".
export const offer = (all: readonly SwitchDocument[], path: string): SwitchDocument | undefined => {
  const general = path.trim().replace(/\.\d+(?=\.)/g, ".*");
  return all.find((s) => s.path === general);
};
