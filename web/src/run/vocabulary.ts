// Texts of the token ids that a run's document has.

import type { Run } from "./types";

export function known(run: Run): [number, string][] {
  const candidates = run.steps.flatMap((s) => s.answers.flatMap((a) => [...a.candidates, a.picked].map((c): [number, string] => [c.id, c.piece])));
  return [...run.ids.map((id, i): [number, string] => [id, run.pieces[i] ?? ""]), ...run.new.map((id, i): [number, string] => [id, run.new_pieces[i] ?? ""]), ...candidates];
}
