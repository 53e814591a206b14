// The colour maps, each once in GLSL and once here, from the same stops: blue-white-red for signed values, by night blue-black-red, and viridis for shares of one.

export type Scheme = "signed" | "night" | "share";
export type Rgb = readonly [number, number, number];

export const STOPS: Record<Scheme, readonly Rgb[]> = {
  signed: [[33, 102, 172], [103, 169, 207], [209, 229, 240], [247, 247, 247], [253, 219, 199], [239, 138, 98], [178, 24, 43]],
  night: [[146, 197, 255], [67, 135, 226], [38, 75, 128], [36, 38, 46], [122, 45, 40], [222, 84, 64], [255, 170, 150]],
  share: [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]],
};
export const NAN: Rgb = [255, 0, 255];
export const INFINITE: readonly [Rgb, Rgb] = [[0, 0, 0], [255, 200, 0]]; // below, above

// Where a value lies on its scale, 0 to 1; limit: the greatest magnitude, which is the end of the scale. Signed values go by the root of
// their magnitude if `root` is set: a residual stream has outliers beside which all else would be white.
export function place(x: number, limit: number, scheme: Scheme, root: boolean): number {
  const share = limit > 0 ? x / limit : 0, t = root && scheme !== "share" ? Math.sign(share) * Math.sqrt(Math.abs(share)) : share;
  return Math.min(1, Math.max(0, scheme !== "share" ? (t + 1) / 2 : t));
}

// Writes the colour of a value, opaque, where a pixel's four bytes begin.
export function paint(out: Uint8ClampedArray | number[], at: number, x: number, limit: number, scheme: Scheme, root: boolean): void {
  out[at + 3] = 255;
  if (Number.isFinite(x)) {
    const stops = STOPS[scheme], where = place(x, limit, scheme, root) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(where)), part = where - i;
    const low = stops[i] as Rgb, high = stops[i + 1] as Rgb;
    for (let c = 0; c < 3; c++) out[at + c] = Math.round((low[c] as number) + ((high[c] as number) - (low[c] as number)) * part);
  } else {
    const odd = Number.isNaN(x) ? NAN : INFINITE[x < 0 ? 0 : 1];
    for (let c = 0; c < 3; c++) out[at + c] = odd[c] as number;
  }
}

export function colour(x: number, limit: number, scheme: Scheme, root = false): Rgb {
  const out = [0, 0, 0, 0];
  paint(out, 0, x, limit, scheme, root);
  return out.slice(0, 3) as unknown as Rgb;
}

// The map as a gradient, from the least to the greatest.
export const gradient = (scheme: Scheme): string => `linear-gradient(90deg, ${STOPS[scheme].map(css).join(", ")})`;

export const css = ([r, g, b]: Rgb): string => `rgb(${r} ${g} ${b})`;

// Black or white, whichever stands out more from this colour: at least 4.5 to 1.
export function ink(colour: Rgb): string {
  const [r, g, b] = colour.map((c) => (c <= 10 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4)) as unknown as Rgb;
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}
