// The number behind a draw, from a seed and a step alone: the engine's own (ops/sampling/uniform.py), SplitMix64 in whole numbers.

const MASK = (1n << 64n) - 1n;

function splitmix(state: bigint, n: bigint): bigint {
  let z = (state + (n + 1n) * 0x9e3779b97f4a7c15n) & MASK;
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return z ^ (z >> 31n);
}

// From 0 up to but without 1, a multiple of 2^-53.
export function uniform(seed: number, step: number): number {
  return Number(splitmix(splitmix(0n, BigInt(seed)), BigInt(step)) >> 11n) * 2 ** -53;
}
