// SHA-256 in hexadecimal, as Python writes it.

import { say } from "../messages";
import { Refused } from "../run/refused";

export const hex = (bytes: Uint8Array): string => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");

export async function sha256(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  if (!isSecureContext) throw new Refused(say("page.live.insecure"));
  return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
}
