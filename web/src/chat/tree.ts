// A conversation with all its branches: each message knows the one before it, and each place the branch that is shown. Nothing is ever dropped.

import type { ChatPromptDocument, ChatTokenDocument } from "./chat_documents";

export type Role = "system" | "user" | "assistant";

// How an answer was drawn. sampling: as a link holds it; ended: "" while it is drawn, "stopped" by hand; fault: why it failed.
// proposed, accepted: tokens that a draft or the text itself proposed, and those of them that came in the step of the token before.
export interface Reply { prompt?: ChatPromptDocument; tokens: readonly ChatTokenDocument[]; ended: "" | "stop" | "length" | "stopped" | "failed"; fault: string; sampling: string; proposed?: number; accepted?: number }

// id: its place in the tree's list. reply: null for what was written by hand.
export interface Message { id: number; parent: number; role: Role; text: string; reply: Reply | null }

// chosen: of each message the one behind it that is shown.
export interface Tree { messages: readonly Message[]; chosen: Readonly<Record<number, number>> }

export const ROOT = -1; // before every system message

// A message behind another, which is shown from now on.
export function add(tree: Tree, parent: number, role: Role, text: string, reply: Reply | null = null): Tree {
  const id = tree.messages.length;
  return { messages: [...tree.messages, { id, parent, role, text, reply }], chosen: { ...tree.chosen, [parent]: id } };
}

// The tree with one conversation, which has an empty system message and nothing else.
export const begun = (): Tree => add({ messages: [], chosen: {} }, ROOT, "system", "");

// The messages that are shown, the oldest first.
export function path(tree: Tree): Message[] {
  const shown: Message[] = [];
  for (let at = tree.chosen[ROOT]; at !== undefined; at = tree.chosen[at]) shown.push(tree.messages[at] as Message);
  return shown;
}

// A message and those before it, the oldest first.
export function until(tree: Tree, id: number): Message[] {
  const all: Message[] = [];
  for (let m = tree.messages[id]; m; m = tree.messages[m.parent]) all.unshift(m);
  return all;
}

// The versions of a message, in the order in which they were made.
export const versions = (tree: Tree, id: number): Message[] => tree.messages.filter((m) => m.parent === tree.messages[id]?.parent);

// Show a neighbour of a message; beyond the first and the last there is none.
export function sibling(tree: Tree, id: number, by: number): Tree {
  const all = versions(tree, id), next = all[all.findIndex((m) => m.id === id) + by];
  return next ? { ...tree, chosen: { ...tree.chosen, [next.parent]: next.id } } : tree;
}

export const changed = (tree: Tree, id: number, fields: Partial<Pick<Message, "text" | "reply">>): Tree =>
  ({ ...tree, messages: tree.messages.map((m) => (m.id === id ? { ...m, ...fields } : m)) });

// What the model is given: without an empty system message, and without answers that ended before their first token.
export const given = (messages: readonly Message[]): { role: Role; content: string }[] =>
  messages.filter((m) => (m.role !== "system" || m.text !== "") && m.reply?.tokens.length !== 0).map((m) => ({ role: m.role, content: m.text }));

// Tokens a second, between the first and the last; NaN of fewer than two.
export function pace(reply: Reply): number {
  const first = reply.tokens[0]?.seconds ?? NaN, last = reply.tokens.at(-1)?.seconds ?? NaN;
  return last > first ? (reply.tokens.length - 1) / (last - first) : NaN;
}
