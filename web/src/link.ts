// A view as the fragment of its address and back. Every field of a link is checked: its text may be anything.

export interface Place {
  view: string;
  model: string;
  with: string; // its switches, as "norm=none; layers.*.attn.scale=1"
  prompt: string;
  steps: number;
  step: number;
  block: string;
  head: number;
  position: number; // of a token; "token" in an address is the server's
  tensor: string;
  cell: string;
  trail: string; // how that cell was reached from another: "logits 0,4,77; norm 0,4,7"
  sampling: string; // of the run
  forced: string; // tokens that it is given, as "0:337 2:12"
  trial: string; // settings that are tried on its logits, and that the next run takes
  why: boolean; // the answer is taken apart
  budget: string;
  edits: string;
  against: string; // the prompt of a run to compare with, and its model where that is another
  other: string;
  sweep: string; // cells of another prompt that are put into the run's, one after another
  exhibit: string; // its name, the model that it runs on where that is not its own, and its settings
  on: string;
  controls: string;
  text: string; // of the view of tokens, the tokenizer that reads it, and another beside
  by: string;
  beside: string;
  special: boolean; // with the tokens that the tokenizer adds
  trained: number; // the recorded step of a training, 0 the newest
  weight: string; // of which a cell is explained, as "layers.2.ffn.down.weight 5,17"
  tour: number; // of a station, from 1; 0 is no tour
  scene: number; // of the story, from 1; 0 is no story
}

export const NOWHERE: Place = { view: "map", model: "", with: "", prompt: "", steps: 1, step: 0, block: "", head: 0, position: -1, tensor: "", cell: "", trail: "", sampling: "", forced: "", trial: "", why: false, budget: "", edits: "", against: "", other: "", sweep: "", exhibit: "", on: "", controls: "", text: "", by: "", beside: "", special: true, trained: 0, weight: "", tour: 0, scene: 0 };
const LONGEST = 60_000; // characters of a prompt in a link: as many ids as a run may have
const RIVER = ["tensor", "cell", "block", "tour"] as const; // an address with one of these and no view is of the cards
const NUMBERS = { steps: [1, 256], step: [0, 255], head: [0, 4095], position: [-1, 1_000_000], trained: [0, 1_000_000_000], tour: [0, 99], scene: [0, 8] } as const;

// Only what differs from where the page opens, and the view of the cards, without which they would not open.
export function written(place: Place): string {
  const fields = new URLSearchParams();
  for (const [key, value] of Object.entries(place)) if (value !== NOWHERE[key as keyof Place] || (key === "view" && RIVER.some((one) => place[one] !== NOWHERE[one]))) fields.set(key, String(value));
  return fields.toString();
}

export function read(fragment: string): Place {
  const fields = new URLSearchParams(fragment.replace(/^#/, "")), place: Place = { ...NOWHERE };
  for (const key of ["view", "model", "with", "prompt", "block", "tensor", "cell", "trail", "sampling", "forced", "trial", "budget", "edits", "against", "other", "sweep", "exhibit", "on", "controls", "text", "by", "beside", "weight"] as const) {
    const text = fields.get(key);
    if (text !== null && text.length <= LONGEST) place[key] = text;
  }
  for (const [key, [low, high]] of Object.entries(NUMBERS)) {
    const n = Number(fields.get(key) ?? NaN);
    if (Number.isInteger(n) && n >= low && n <= high) place[key as keyof typeof NUMBERS] = n;
  }
  place.why = fields.get("why") === "true";
  place.special = fields.get("special") !== "false";
  if (!/^\d+(,\d+)*$/.test(place.cell)) place.cell = "";
  if (!fields.has("view") && RIVER.some((key) => place[key] !== NOWHERE[key])) place.view = "life";
  return place;
}
