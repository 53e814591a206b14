// Every view once: its name in a link, its title, when a run has something for it, and what shows it. The page, its row of links and a saved
// file read this list; the first view is the one that stands in for an absent one.

import type { Component } from "svelte";
import type { Key } from "./messages";
import { kept } from "./run/cache";
import { recorded } from "./run/recorded";
import { embedded, served } from "./live/present";
import { routers } from "./run/routing";
import type { Run, Tensor } from "./run/types";
import { now, repeats } from "./state.svelte";
import Attention from "./views/Attention.svelte";
import Budget from "./views/Budget.svelte";
import Cache from "./views/Cache.svelte";
import Change from "./views/Change.svelte";
import Chat from "./views/Chat.svelte";
import Exhibits from "./views/Exhibits.svelte";
import Experts from "./views/Experts.svelte";
import Learning from "./views/Learning.svelte";
import Life from "./views/Life.svelte";
import RunMap from "./views/RunMap.svelte";
import NextToken from "./views/NextToken.svelte";
import Tokenize from "./views/Tokenize.svelte";

// tensors: of the run's first step.
export interface View { name: string; title: (run: Run) => Key; there: (run: Run, tensors: readonly Tensor[]) => boolean; component: Component<{ run: Run }> }

const encoder = (run: Run): boolean => run.kind === "encoder";

export const VIEWS: readonly [View, ...View[]] = [
  { name: "map", title: () => "page.view.map", there: (_, tensors) => tensors.some((t) => t.dims === "B T D" && t.inputs.length > 1 && /\blayers\.\d+\.\w+$/.test(t.path)), component: RunMap },
  { name: "life", title: () => "page.view.life", there: () => true, component: Life },
  { name: "attention", title: () => "page.view.attention", there: (run, tensors) => run.values && tensors.some((t) => t.result === "shares" && t.dims.includes("S")), component: Attention },
  { name: "experts", title: () => "page.view.experts", there: (run, tensors) => run.values && routers(tensors).length > 0, component: Experts },
  { name: "next", title: (run) => (encoder(run) ? "page.view.blank" : "page.view.next"), there: (run) => run.values && run.steps.some((s) => s.answers.length > 0), component: NextToken },
  { name: "chat", title: () => "page.view.chat", there: (run) => served && run.values && now.models.some((m) => m.name === run.model && m.chat !== null), component: Chat },
  { name: "cache", title: () => "page.view.cache", there: (run, tensors) => run.values && !encoder(run) && run.steps.length > 0 && kept(tensors).length > 0, component: Cache },
  { name: "budget", title: () => "page.view.budget", there: () => served || "catalog" in (recorded ?? embedded ?? { answers: {} }).answers, component: Budget },
  { name: "change", title: () => "page.view.change", there: (run) => recorded === null && run.values && repeats(run) && run.steps.length > 0, component: Change },
  { name: "learning", title: () => "page.view.learning", there: () => (recorded ? "training" in recorded.answers : now.training), component: Learning },
  { name: "tokens", title: () => "page.view.tokens", there: () => served && (now.tokenizer !== null || now.models.some((m) => m.prompt !== null)), component: Tokenize },
  { name: "exhibits", title: () => "page.view.exhibits", there: () => (recorded ? "exhibits" in recorded.answers : served), component: Exhibits },
];

// The views that a run has something for, in order; a link may name any other.
export const views = (run: Run, tensors: readonly Tensor[]): View[] => VIEWS.filter((view) => view.there(run, tensors));
