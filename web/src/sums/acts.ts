// Activations as curves. The number of a cell is the run's; the line through it is drawn by these, which a test compares with the ops.

export type Act = (x: number) => number;

const sigmoid: Act = (x) => 1 / (1 + Math.exp(-x));
const tanhGelu = (x: number, root: number): number => 0.5 * x * (1 + Math.tanh(root * (x + 0.044715 * x ** 3)));

// The error function: its series near 0, its continued fraction beyond.
export function erf(x: number): number {
  const a = Math.abs(x);
  if (a > 6) return Math.sign(x);
  if (a < 2.5) {
    let term = a, sum = a;
    for (let n = 1; n < 60; n++) {
      term *= (-a * a) / n;
      sum += term / (2 * n + 1);
    }
    return (Math.sign(x) * 2 * sum) / Math.sqrt(Math.PI);
  }
  let fraction = 0;
  for (let n = 60; n > 0; n--) fraction = n / 2 / (a + fraction);
  return Math.sign(x) * (1 - Math.exp(-a * a) / (Math.sqrt(Math.PI) * (a + fraction)));
}

const ACTS: Record<string, Act> = {
  relu: (x) => Math.max(x, 0),
  relu2: (x) => Math.max(x, 0) ** 2,
  silu: (x) => x * sigmoid(x),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => tanhGelu(x, Math.sqrt(2 / Math.PI)),
  gelu_bloom: (x) => tanhGelu(x, 0.79788456),
  clamped: (x) => Math.min(x, 7) * sigmoid(1.702 * Math.min(x, 7)),
  sigmoid,
};

export const act = (name: string): Act | undefined => ACTS[name];

// The points of a curve around x, in order.
export function points(of: Act, x: number, count = 121): { x: number; y: number }[] {
  const low = Math.min(-4, x - 1), high = Math.max(4, x + 1);
  return Array.from({ length: count }, (_, i) => low + ((high - low) * i) / (count - 1)).map((at) => ({ x: at, y: of(at) }));
}
