// The tour: places on the page, each with one sentence that has numbers of this run, and one thing to do.
// A station is found by axes and ops, so that a family that is added later has its tour at once; what a run lacks is left out.

import type { Place } from "../link";
import { terms, training } from "../run/api";
import { lastLogits } from "../run/last";
import { blocks } from "../run/river";
import { role } from "../run/role";
import { routers, routes } from "../run/routing";
import { slice } from "../run/slices";
import { axes, type Run, type Tensor } from "../run/types";
import { count, number, percent } from "../tensor/number";
import { visible, type Key } from "../messages";
import { labels, now } from "../state.svelte";

type Numbers = Record<string, string | number>;
// shows: the tensors that it speaks of.
export interface Station { says: Key; asks: Key; place: Partial<Place>; target: string; numbers: () => Promise<Numbers>; shows: readonly Tensor[] }

export const HOT = 2; // the temperature that the tour sets

const at = (t: Tensor, where: Record<string, number>): string[] => axes(t).map((a, i) => String(Math.min(where[a] ?? 0, (t.shape[i] ?? 1) - 1)));
const size = (t: Tensor, letter: string): number => t.shape[axes(t).indexOf(letter)] ?? 1;
const ends = (t: Tensor): number => t.shape.at(-1) ?? 1;

// The last axis of a tensor, whole, at these indices of the others.
async function row(run: Run, t: Tensor, where: Record<string, number>): Promise<ArrayLike<number>> {
  return (await slice(run.run, t.n, [...at(t, where).slice(0, -1), ":"].join())).values;
}

// Of the last token's row in all heads: the head and the other token with the largest share.
async function strongest(run: Run, pattern: Tensor): Promise<{ T: number; H: number; S: number; share: number }> {
  const T = size(pattern, "T") - 1;
  let best = { T, H: 0, S: 0, share: -1 };
  for (let H = 0; H < Math.min(64, size(pattern, "H")); H++) {
    const shares = await row(run, pattern, { T, H });
    for (let S = 0; S < shares.length; S++) if (S !== T && (shares[S] ?? 0) > best.share) best = { T, H, S, share: shares[S] ?? 0 };
  }
  return best;
}

const piece = (t: Tensor, letter: string, i: number): string => labels(t, letter)?.[i] ?? String(i);

export function stations(run: Run): Station[] {
  const all = run.tensors, found: Station[] = [], inBlocks = blocks(all), first = inBlocks[0], own = first?.tensors ?? [];
  const add = (says: Key, asks: Key, place: Partial<Place>, target: string, numbers: () => Numbers | Promise<Numbers>, shows: readonly (Tensor | undefined)[] = []): void => { found.push({ says, asks, place, target, numbers: async () => numbers(), shows: shows.filter((t) => t !== undefined) }); };
  const tile = (t: Tensor): string => `.river [data-path="${CSS.escape(t.path)}"]`, opened = (t: Tensor): string => `aside[aria-label="${CSS.escape(visible(t.path))}"]`;
  const last = (t: Tensor): number => size(t, "T") - 1;
  const embed = all.find((t) => t.result === "embedding" && axes(t).at(-1) === "D"), answer = run.steps[0]?.answers[0], logits = all.findLast((t) => t.path === "logits");
  const norm = own.find((t) => role(t) === "norm"), normed = all.find((t) => t.path === norm?.inputs[0]), query = own.find((t) => role(t) === "q" && axes(t).includes("H"));
  const scores = own.find((t) => t.result === "scores"), pattern = own.find((t) => t.result === "shares" && axes(t).includes("S")), mixed = own.find((t) => t.result === "attention");
  const sum = own.find((t) => t.result === "sum" && t.inputs.length === 2), parts = (sum?.inputs ?? []).map((path) => all.find((t) => t.path === path));
  const leaves = own.findLast((t) => t.result === "sum" && t.inputs.length > 1 && axes(t).at(-1) === "D"), fed = (leaves?.inputs ?? []).map((path) => all.find((t) => t.path === path) as Tensor);
  const neurons = own.findLast((t) => axes(t).at(-1) === "F" && axes(t).includes("T")), begins = all[all.findIndex((t) => t === own[0]) - 1], router = routers(all)[0];

  add("page.tour.ids", "page.tour.ids.do", {}, "section ol:has(.token)", () => ({ count: run.ids.length, piece: run.pieces.at(-1) ?? "", id: run.ids.at(-1) ?? 0 }));
  if (embed) add("page.tour.embed", "page.tour.embed.do", {}, tile(embed), async () => ({ token: piece(embed, axes(embed).includes("S") ? "S" : "T", (embed.shape.at(-2) ?? 1) - 1), width: ends(embed), value: number((await row(run, embed, { T: last(embed), S: size(embed, "S") - 1 }))[0]) }), [embed]);
  if (begins) add("page.tour.stream", "page.tour.stream.do", {}, tile(begins), () => ({ tokens: begins.shape.at(-2) ?? 1, width: ends(begins) }));
  if (norm?.stats && normed?.stats) add("page.tour.norm", "page.tour.norm.do", {}, tile(norm), () => ({ before: number(normed.stats?.absmax), after: number(norm.stats?.absmax) }));
  if (query) add("page.tour.query", "page.tour.query.do", {}, tile(query), () => ({ heads: size(query, "H"), width: ends(query) }), [query, ...(["k", "v"] as const).map((one) => own.find((t) => role(t) === one && axes(t).includes("T")))]);
  if (scores?.terms && pattern) add("page.tour.scores", "page.tour.scores.do", { tensor: scores.path }, opened(scores), async () => {
    const s = await strongest(run, pattern), sum = await terms(run.run, scores.n, at(scores, { ...s }).map(Number)), line = await row(run, scores, { ...s });
    return { head: s.H, token: piece(scores, "T", s.T), seen: piece(scores, "S", s.S), count: sum.count, value: number(line[s.S]), cell: at(scores, { ...s }).join() };
  });
  if (pattern) add("page.tour.pattern", "page.tour.pattern.do", { tensor: pattern.path }, opened(pattern), async () => {
    const s = await strongest(run, pattern);
    return { head: s.H, token: piece(pattern, "T", s.T), seen: piece(pattern, "S", s.S), share: percent(s.share), cell: at(pattern, { ...s }).join() };
  }, [pattern]);
  if (pattern && mixed) add("page.tour.mix", "page.tour.mix.do", {}, tile(mixed), async () => {
    const s = await strongest(run, pattern);
    return { head: s.H, token: piece(mixed, "T", s.T), width: ends(mixed), value: number((await row(run, mixed, { T: s.T, H: s.H }))[0]) };
  }, [mixed]);
  if (sum && parts[0] && parts[1]) add("page.tour.sum", "page.tour.sum.do", {}, tile(sum), async () => {
    const [x, y, z] = await Promise.all([parts[0], parts[1], sum].map(async (t) => number((await row(run, t as Tensor, { T: last(sum) }))[0])));
    return { token: piece(sum, "T", last(sum)), before: x ?? "", added: y ?? "", after: z ?? "" };
  }, [parts[0], parts[1], sum]);
  if (neurons) add("page.tour.neurons", "page.tour.neurons.do", {}, tile(neurons), async () => ({ width: ends(neurons), token: piece(neurons, "T", last(neurons)), count: Array.from(await row(run, neurons, { T: last(neurons) })).filter((x) => x > 0).length }), [neurons]);
  if (router) add("page.tour.experts", "page.tour.experts.do", { view: "experts", block: router.block }, "main .panes", async () => {
    const { chosen, tokens } = await routes(run.run, router);
    return { block: router.part, experts: router.experts, count: chosen[0]?.length ?? 0, token: run.pieces[tokens - 1] ?? "", list: (chosen[tokens - 1] ?? []).join(", ") };
  }, router.scores);
  if (leaves && leaves !== sum && fed.every((t) => t !== undefined)) add("page.tour.out", "page.tour.out.do", {}, tile(leaves), async () => {
    const first = await Promise.all([...fed, leaves].map(async (t) => number((await row(run, t, { T: last(leaves) }))[0])));
    return { token: piece(leaves, "T", last(leaves)), sum: first.slice(0, -1).join(" + "), after: first.at(-1) ?? "" };
  }, [...fed, leaves]);
  const end = inBlocks.at(-1);
  if (first && end && first !== end && own.at(-1)?.stats && end.tensors.at(-1)?.stats) add("page.tour.blocks", "page.tour.blocks.do", {}, `[data-block="${CSS.escape(end.path)}"]`, () => ({ count: inBlocks.length, before: number(own.at(-1)?.stats?.absmax), after: number(end.tensors.at(-1)?.stats?.absmax) }));
  if (logits && answer) {
    const best = { vocab: count(ends(logits)), piece: answer.picked.piece };
    add("page.tour.logits", "page.tour.logits.do", {}, tile(logits), () => ({ ...best, value: number(answer.picked.logit) }));
    add("page.tour.answer", "page.tour.answer.do", {}, "section:has(> [data-picked])", () => ({ ...best, probability: percent(answer.picked.probability ?? NaN) }));
    add("page.tour.next", "page.tour.next.do", { view: "next", trial: `temperature:${HOT}` }, ".stages", async () => {
      const x = Array.from((await lastLogits(run.run, all, answer))?.values ?? []), top = x.reduce((a, b) => Math.max(a, b), -Infinity), sum = x.reduce((n, l) => n + Math.exp((l - top) / HOT), 0);
      return { ...best, hot: HOT, probability: percent(Math.exp(((x[answer.picked.id] ?? NaN) - top) / HOT) / sum) };
    });
  }
  const late = end?.tensors.find((t) => t.result === "shares" && axes(t).includes("S"));
  if (end && late) add("page.tour.heads", "page.tour.heads.do", { view: "attention", block: end.path }, "main .panes", async () => {
    const s = await strongest(run, late);
    return { block: end.path, count: size(late, "H"), head: s.H, token: piece(late, "T", s.T), seen: piece(late, "S", s.S), share: percent(s.share) };
  });
  if (mixed && answer && run.prompt !== null) add("page.tour.change", "page.tour.change.do", { view: "change", tensor: mixed.path }, "main form", () => ({ piece: answer.picked.piece, value: number(answer.picked.logit) }));
  if (now.training) add("page.tour.learning", "page.tour.learning.do", { view: "learning" }, "main .head", async () => {
    const { name, taken, panels } = await training(0), losses = panels.find((p) => p.kind === "lines")?.series[0]?.values ?? [];
    return { name: visible(name), steps: count(taken), first: number(losses[0] ?? NaN), last: number(losses.at(-1) ?? NaN) };
  });
  return found;
}
