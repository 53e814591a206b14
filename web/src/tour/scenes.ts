// The story of a first visit: eight scenes. Each is a station of the tour, with its numbers, behind a sentence that needs none.

import type { Key } from "../messages";
import type { Station } from "./stations";

// stations: those that a scene may take, the first that a run has.
const SCENES: readonly { name: string; title: Key; tells: Key; stations: readonly Key[] }[] = [
  { name: "cut", title: "page.story.cut", tells: "page.story.cut.tells", stations: ["page.tour.ids"] },
  { name: "embed", title: "page.story.embed", tells: "page.story.embed.tells", stations: ["page.tour.embed"] },
  { name: "ask", title: "page.story.ask", tells: "page.story.ask.tells", stations: ["page.tour.query"] },
  { name: "look", title: "page.story.look", tells: "page.story.look.tells", stations: ["page.tour.pattern"] },
  { name: "mix", title: "page.story.mix", tells: "page.story.mix.tells", stations: ["page.tour.mix"] },
  { name: "think", title: "page.story.think", tells: "page.story.think.tells", stations: ["page.tour.neurons", "page.tour.experts"] },
  { name: "add", title: "page.story.add", tells: "page.story.add.tells", stations: ["page.tour.out", "page.tour.sum"] },
  { name: "choose", title: "page.story.choose", tells: "page.story.choose.tells", stations: ["page.tour.answer"] },
];

export interface Scene { name: string; title: Key; tells: Key; station: Station }

// The scenes that a run has, in order, from its tour's stations.
export const scenes = (all: readonly Station[], kind: string | null): Scene[] => SCENES.flatMap(({ stations, ...scene }) => {
  const station = stations.map((key) => all.find((s) => s.says === key)).find((s) => s !== undefined);
  return station ? [{ ...scene, tells: scene.name === "choose" && kind === "encoder" ? "page.story.choose.blank" : scene.tells, station }] : [];
});
