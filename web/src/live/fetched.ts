// Weights in files beside the page: each is fetched, checked against its SHA-256, and handed on before the next but one is asked for.

import { say } from "../messages";
import { Refused } from "../run/refused";
import { parse, type Stored } from "../tensor/safetensors";
import { sha256 } from "./hash";
import { loading } from "./loading.svelte";

export interface Chunk { file: string; bytes: number; sha256: string }

export async function fetched(chunks: readonly Chunk[], take: (tensors: ReadonlyMap<string, Stored>) => void): Promise<void> {
  if (location.protocol === "file:") throw new Refused(say("page.live.folder"));
  [loading.done, loading.all] = [0, chunks.length];
  try {
    let next = chunks[0] && quietly(chunkOf(chunks[0]));
    for (let i = 0; i < chunks.length; i++) {
      const own = next, after = chunks[i + 1];
      next = after && quietly(chunkOf(after));
      if (own) take(parse(await own).tensors);
      loading.done = i + 1;
    }
  } finally {
    loading.all = 0;
  }
}

// A promise whose fault is told when it is awaited, if it is.
function quietly<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}

async function chunkOf({ file, sha256: expected }: Chunk): Promise<ArrayBuffer> {
  const answer = await fetch(new URL(file, document.baseURI)).catch((fault: unknown) => { throw missing(file, String(fault)); });
  if (!answer.ok) throw missing(file, `HTTP ${answer.status}`);
  const bytes = await answer.arrayBuffer().catch((fault: unknown) => { throw missing(file, String(fault)); }), digest = await sha256(new Uint8Array(bytes));
  if (digest !== expected) throw new Refused(say("page.live.chunk", { file, found: digest, expected }));
  return bytes;
}

const missing = (file: string, why: string): Refused => new Refused(say("page.live.fetched", { file, found: why }));
