// The worker of view Next token: it is given logits once, and then settings.

import { sampled, type Cumulative, type Logits, type Sampled } from "./sampled";
import type { Sampling } from "./stages";

export interface Work { logits?: Logits; setting: Sampling }
// curve: undefined if it is the one that was sent before, as under the slider of a cut.
export type Done = Omit<Sampled, "curve"> & { curve: Sampled["curve"] | undefined };

let logits: Logits | undefined, sent: Cumulative | null | undefined;

self.onmessage = ({ data }: MessageEvent<Work>): void => {
  logits = data.logits ?? logits;
  if (!logits) return;
  const made = sampled(logits, data.setting);
  self.postMessage({ ...made, curve: made.curve === sent ? undefined : made.curve } satisfies Done);
  sent = made.curve;
};
