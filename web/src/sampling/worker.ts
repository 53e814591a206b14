// The worker of view Next token: it is given logits once, and then settings.

import { sampled, type Logits } from "./sampled";
import type { Sampling } from "./stages";

export interface Work { logits?: Logits; setting: Sampling }

let logits: Logits | undefined;

self.onmessage = ({ data }: MessageEvent<Work>): void => {
  logits = data.logits ?? logits;
  if (logits) self.postMessage(sampled(logits, data.setting));
};
