// Numbers as people read them; the same rules as the command line's (documents/number.py), so that one value looks the same everywhere.

const EXACT = 10; // significant digits that tell any two float32 apart, and one

// number(-2.1139) is -2.114, number(12.339) is 12.34, number(0.0000123) is 1.2e-5
export function number(x: number | null | undefined): string {
  if (x === null || x === undefined) return "–";
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x > 0 ? "∞" : "-∞";
  const a = Math.abs(x);
  if (a === 0) return "0";
  if (!(a >= 0.0005 && a < 99999.5)) {
    const [mantissa, exponent] = x.toExponential(a < 1 ? 1 : 3).split("e");
    return `${mantissa}e${Number(exponent)}`;
  }
  return rounded(x, a < 9.9995 ? 3 : a < 99.995 ? 2 : a < 999.95 ? 1 : 0);
}

// To decimals, and halfway between two to the even one, as Python does: rounded(0.0625, 3) is 0.062, rounded(0.1875, 3) is 0.188.
function rounded(x: number, decimals: number): string {
  const scaled = x * 10 ** decimals, below = Math.floor(scaled);
  const half = Number.isInteger(x * 2 ** (decimals + 1)) && scaled - below === 0.5;
  return half ? ((below % 2 === 0 ? below : below + 1) / 10 ** decimals).toFixed(decimals) : x.toFixed(decimals);
}

// signed(0.4127) is +0.413
export const signed = (x: number): string => (x > 0 ? "+" : "") + number(x);

// The shortest decimal number that gives back the very bits.
export function exact(x: number, dtype: string): string {
  if (Number.isNaN(x)) return "NaN";
  if (Object.is(x, -0)) return "-0";
  if (!Number.isFinite(x)) return x < 0 ? "-∞" : "∞";
  if (dtype === "float64" || Number.isInteger(x)) return String(x);
  for (let digits = 1; digits < EXACT; digits++) {
    const short = Number(x.toPrecision(digits));
    if (Math.fround(short) === x) return String(short);
  }
  return String(x);
}

// 16512 -> 16,512
export const count = (n: number): string => n.toString().replace(/\B(?=(\d{3})+$)/g, ",");

// In `digits` significant figures without zeros at the end, as Python's g: general(1.500, 3) is 1.5, general(12345, 3) is 1.23e+04
function general(x: number, digits: number): string {
  if (x === 0 || !Number.isFinite(x)) return number(x);
  const exponent = Math.floor(Math.log10(Math.abs(x))), short = (text: string): string => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (exponent >= -4 && exponent < digits) {
    const fixed = short(rounded(x, digits - 1 - exponent));
    return Math.abs(Number(fixed)) < 10 ** digits ? fixed : general(Number(fixed), digits);
  }
  const [mantissa = "", power] = x.toExponential(digits - 1).split("e"), n = Number(power);
  return `${short(mantissa)}e${n < 0 ? "-" : "+"}${String(Math.abs(n)).padStart(2, "0")}`;
}

// Amounts as documents/amount.py writes them, so that one number looks the same in a terminal and here; vectors.json compares them.

const UNITS = ["", "K", "M", "G", "T", "P", "E", "Z", "Y"];

// scaled(70272, "B") is 70.27 KB
export function scaled(n: number, unit: string): string {
  let place = 0;
  for (; Math.abs(n) >= 999.95 && place < UNITS.length - 1; place++) n /= 1000;
  return `${general(n, 4)} ${UNITS[place] ?? ""}${unit}`.trimEnd();
}

// 1374976 -> 1.375 M; for captions, where the exact count stands in the tile
export const amount = (n: number): string => scaled(n, "");
export const bytes = (n: number): string => scaled(n, "B");
export const flops = (n: number): string => scaled(n, "FLOP");

// 1234.56 -> 1,235; 0.012345 -> 0.01235: rates and prices
export const figures = (x: number): string => (x >= 1000 ? count(Number(rounded(x, 0))) : general(x, 4));

// 0.0123 -> 12.3 ms
export function seconds(s: number): string {
  const [size, unit] = s >= 1 ? [1, "s"] : s >= 1e-3 ? [1e-3, "ms"] : s >= 1e-6 ? [1e-6, "µs"] : [1e-9, "ns"];
  return `${general(s / size, 3)} ${unit}`;
}

export const percent = (x: number): string => `${number(100 * x)}%`;

// 128×512
export const shape = (sizes: readonly number[]): string => sizes.join("×") || "1";
