// Generated: python -m pellucid.documents.generated

import type { AnswerDocument } from "../run/documents";

export interface ChatEndDocument {
  ended: "stop" | "length"; // a token that ends a text, or no more are asked for or have a place
  text: string; // that was held back
  proposed?: number; // tokens that were proposed, by the text itself or by a draft, if any were
  accepted?: number; // of them, those that came in the step of the token before
}

export interface ChatEventDocument {
  prompt?: ChatPromptDocument;
  token?: ChatTokenDocument;
  end?: ChatEndDocument;
  error?: FaultDocument;
}

export interface ChatPromptDocument {
  model: string;
  rule: "template" | "joined" | "last"; // without a template: all messages as one text, or the last alone
  text: string; // that the rule makes of the messages
  ids: number[];
  pieces: string[]; // of the ids, as they are shown
  page: number; // rows of a page: full ones are read again from the prefix cache
}

export interface ChatTokenDocument {
  text: string; // that it adds to the answer; empty while a character is incomplete, and of a token that is no text
  answer: AnswerDocument; // by the model's own distribution, before any setting of sampling
  reused: number; // rows of the prompt that the prefix cache had
  seconds: number; // since the answer began
}

export interface FaultDocument {
  message: string;
  type: string;
  param: string | null;
  code: string;
}
