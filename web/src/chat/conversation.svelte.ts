// The conversations of this page, one tree for each model: they stay while the page does, whatever view is shown.

import { answerOf, Refused } from "../run/api";
import { RANGES, read, written } from "../sampling/settings";
import * as switches from "../run/switches";
import type { Run } from "../run/types";
import { place } from "../state.svelte";
import { say } from "../messages";
import { add, begun, changed, given, path, ROOT, sibling, until, type Message, type Reply, type Tree } from "./tree";

export const MOST = 256, NEW = 128; // new tokens of an answer: the most, and those of the first

// The settings that the next answer is drawn by: those that are tried, else the run's.
export const current = (): string => (place.trial === "" ? place.sampling : written(read(place.trial)));

export class Conversation {
  tree: Tree = $state.raw(begun());
  draft = $state("");
  most = $state(NEW);
  drawing = $state(-1); // the answer that is drawn; -1: none
  private ends: AbortController | undefined;
  private drawn = 0; // answers that chance took part in: each has a seed of its own

  constructor(readonly model: string, readonly switches: readonly string[]) {}

  get shown(): Message[] { return path(this.tree); }
  get busy(): boolean { return this.drawing >= 0; }

  // The draft becomes a message, and is answered. A question that failed before its first token stays as another version of it.
  async send(text = this.draft): Promise<void> {
    if (text.trim() === "" || this.busy) return;
    if (text === this.draft) this.draft = "";
    const last = this.shown.at(-1) as Message, failed = last.reply !== null && last.reply.fault !== "" && last.reply.tokens.length === 0;
    await this.ask(failed ? (this.tree.messages[last.parent] as Message).parent : last.id, text);
  }

  // Another version of a message. A user's is answered; behind another system message the first question is asked again.
  async edit(message: Message, text: string): Promise<void> {
    this.stop();
    if (message.role === "user") return this.ask(message.parent, text);
    const next = message.role === "system" ? this.shown[1] : undefined;
    if (message.role === "system" && !next) { // nothing is behind it yet
      this.tree = changed(this.tree, message.id, { text });
      return;
    }
    this.tree = add(this.tree, message.parent, message.role, text);
    if (next) await this.ask(this.tree.messages.length - 1, next.text);
  }

  async again(answer: Message): Promise<void> {
    if (!this.busy) await this.answer(answer.parent);
  }

  // Another conversation beside this one, under the same system message.
  begin(): void {
    this.stop();
    if (this.shown.length > 1) this.tree = add(this.tree, ROOT, "system", this.shown[0]?.text ?? "");
  }

  turn(message: Message, by: number): void {
    this.tree = sibling(this.tree, message.id, by);
  }

  stop(): void {
    if (!this.busy) return;
    this.reply(this.drawing, { ended: "stopped" });
    this.ends?.abort();
    this.drawing = -1;
  }

  private async ask(parent: number, text: string): Promise<void> {
    this.tree = add(this.tree, parent, "user", text);
    await this.answer(this.tree.messages.length - 1);
  }

  private reply(id: number, fields: Partial<Reply>): void {
    const reply = this.tree.messages[id]?.reply;
    if (reply) this.tree = changed(this.tree, id, { reply: { ...reply, ...fields } });
  }

  private async answer(parent: number): Promise<void> {
    const ends = new AbortController(), set = read(current());
    const sampling = written(set.temperature === 0 ? set : { ...set, seed: Math.min(RANGES.seed.max, set.seed + this.drawn++) });
    const messages = given(until(this.tree, parent));
    this.tree = add(this.tree, parent, "assistant", "", { tokens: [], ended: "", fault: "", sampling });
    const id = this.tree.messages.length - 1;
    [this.ends, this.drawing] = [ends, id];
    try {
      for await (const event of answerOf(this.model, this.switches, messages, sampling, this.most, ends.signal)) {
        if (ends.signal.aborted) return;
        const m = this.tree.messages[id] as Message, reply = m.reply as Reply;
        if (event.error) throw new Refused(event.error.message);
        if (event.prompt) this.reply(id, { prompt: event.prompt });
        if (event.token) this.tree = changed(this.tree, id, { text: m.text + event.token.text, reply: { ...reply, tokens: [...reply.tokens, event.token] } });
        if (event.end) this.tree = changed(this.tree, id, { text: m.text + event.end.text, reply: { ...reply, ended: event.end.ended, proposed: event.end.proposed ?? 0, accepted: event.end.accepted ?? 0 } });
      }
      if (!ends.signal.aborted && this.tree.messages[id]?.reply?.ended === "") throw new TypeError();
    } catch (fault) {
      if (!ends.signal.aborted) this.reply(id, { ended: "failed", fault: fault instanceof Refused ? fault.message : say("page.chat.gone") });
    } finally {
      if (this.drawing === id) this.drawing = -1;
    }
  }
}

const all = new Map<string, Conversation>();

// The conversation with the model that ran, with its switches.
export function conversation(run: Run): Conversation {
  const key = `${run.model} ${switches.written(run.switches)}`;
  if (!all.has(key)) all.set(key, new Conversation(run.model, run.switches));
  return all.get(key) as Conversation;
}
