// Angles of rotary positions by a rotation's settings, as ops/rotate.py computes them: the base, and the ways in which models stretch it.

type Settings = Readonly<Record<string, unknown>>;

const number = (settings: Settings, name: string): number => Number(settings[name] ?? NaN);
const clamp = (x: number, low: number, high: number): number => Math.min(Math.max(x, low), high);

// The radians a token of a pair. total: the tokens of the text when its row was read. NaN for a scaling that is not known here.
export function frequency(settings: Settings, pair: number, total: number): number {
  return settings["backwards"] === true ? -forward(settings, pair, total) : forward(settings, pair, total);
}

function forward(settings: Settings, pair: number, total: number): number {
  const theta = number(settings, "theta"), width = number(settings, "width"), plain = theta ** ((-2 * pair) / width);
  const factor = number(settings, "factor"), original = number(settings, "original");
  switch (settings["scaling"]) {
    case undefined: return plain;
    case "linear": return plain / factor;
    case "proportional": return pair < number(settings, "turning") ? plain / factor : 0;
    case "llama3": {
      const low = number(settings, "low"), part = clamp(((original * plain) / (2 * Math.PI) - low) / Math.max(number(settings, "high") - low, 1e-30), 0, 1);
      return plain * part + (plain / factor) * (1 - part);
    }
    case "yarn": {
      const at = (turns: number): number => (width * Math.log(original / (turns * 2 * Math.PI))) / (2 * Math.log(theta));
      const [fast, slow] = [at(number(settings, "fast")), at(number(settings, "slow"))], whole = settings["truncate"] === true;
      const low = Math.max(whole ? Math.floor(fast) : fast, 0), high = Math.min(whole ? Math.ceil(slow) : slow, width - 1);
      const kept = 1 - clamp((pair - low) / Math.max(high - low, 0.001), 0, 1);
      return (plain / factor) * (1 - kept) + plain * kept;
    }
    case "dynamic": {
      const longer = (factor * Math.max(total, original)) / original - (factor - 1);
      return (theta * longer ** (width / (width - 2))) ** ((-2 * pair) / width);
    }
    case "longrope": return plain / Number((settings[total > original ? "long" : "short"] as number[] | undefined)?.[pair] ?? NaN);
    default: return NaN;
  }
}

// The cos and sin of a pair at a position, times what YaRN and LongRoPE multiply them by.
export function turnOf(settings: Settings, position: number, pair: number, total: number): [number, number] {
  const angle = position * frequency(settings, pair, total), amount = Number(settings["amount"] ?? 1);
  return [Math.cos(angle) * amount, Math.sin(angle) * amount];
}
