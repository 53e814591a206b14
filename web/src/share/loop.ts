// A short film of the map: each step's map is swept in from the left, and held with its answer.

import { imageOf, type Drawn } from "./picture";

const SWEEP = 1100, HOLD = 700, FRAME = 33, FAINT = 0.12; // ms; ms; ms; opacity before the sweep
const SLICE = 250, WAIT = 20_000; // ms: of a part of the file; for the first part, and the last, on a busy machine
const TYPES = ["video/webm;codecs=vp9", "video/webm;codecs=vp8", "video/webm"];

const type = (): string | undefined => (typeof MediaRecorder === "undefined" ? undefined : TYPES.find((t) => MediaRecorder.isTypeSupported(t)));
export const films = (): boolean => type() !== undefined && typeof HTMLCanvasElement.prototype.captureStream === "function";

// maps: one for each step, of any sizes.  paper: the colour below them.
export async function film(maps: readonly Drawn[], paper: string): Promise<Blob> {
  const images = await Promise.all(maps.map(imageOf));
  const even = (n: number): number => 2 * Math.ceil(n / 2), canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  if (!context) throw new RangeError("2d");
  [canvas.width, canvas.height] = [even(Math.max(...maps.map((m) => m.width))), even(Math.max(...maps.map((m) => m.height)))];
  const recorder = new MediaRecorder(canvas.captureStream(1000 / FRAME), { mimeType: type() ?? "video/webm", videoBitsPerSecond: 4_000_000 }), parts: Blob[] = [];
  recorder.ondataavailable = (e) => { if (e.data.size > 0) parts.push(e.data); };
  const ended = new Promise<void>((take) => { recorder.onstop = () => take(); });
  const draw = (now: number): void => {
    const n = Math.min(maps.length - 1, Math.floor(now / (SWEEP + HOLD))), image = images[n], { width, height } = maps[n] ?? { width: 0, height: 0 };
    if (!image) return;
    context.fillStyle = paper;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.globalAlpha = FAINT;
    context.drawImage(image, 0, 0, width, height);
    context.globalAlpha = 1;
    context.save();
    context.beginPath();
    context.rect(0, 0, width * Math.min(1, (now - n * (SWEEP + HOLD)) / SWEEP), canvas.height);
    context.clip();
    context.drawImage(image, 0, 0, width, height);
    context.restore();
  };
  const show = async (now: number): Promise<void> => {
    draw(now);
    await new Promise((go) => setTimeout(go, FRAME));
  };
  // A film that is stopped before its encoder has written anything has no pictures, and plays nowhere.
  const written = async (now: number): Promise<void> => {
    const before = parts.length, start = performance.now();
    while (parts.length === before && performance.now() - start < WAIT) await show(now);
  };
  draw(0);
  recorder.start(SLICE);
  await written(0);
  const start = performance.now(), all = maps.length * (SWEEP + HOLD);
  for (let now = 0; now < all; now = performance.now() - start) await show(now);
  await written(all - 1);
  recorder.stop();
  await ended;
  return new Blob(parts, { type: "video/webm" });
}
