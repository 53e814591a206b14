import { expect, it } from "vitest";
import { shownName } from "./model_names";

it.each([
  ["pellucid/capitals", 30, "pellucid/capitals"],
  ["/reader/local/models/lantern_mist-random", 30, "…/models/lantern_mist-random"],
  ["/reader/local/models/lantern_mist-random", 22, "…/lantern_mist-random"],
  ["/reader/local/models/lantern_mist-random", 17, "lant…_mist-random"],
  ["C:\\models\\tiny\\lights", 16, "…\\tiny\\lights"],
  ["模型/很长的一个文件夹名字在这里", 12, "很…一个文件夹名字在这里"],
])("%s in %i letters is %s", (name, most, shown) => {
  expect(shownName(name, [name], most)).toBe(shown);
  expect([...shown].length).toBeLessThanOrEqual(most);
});

it("is never that of another model", () => {
  const all = ["/one/checkpoints/step-1000/model", "/two/checkpoints/step-1000/model", "/one/checkpoints/step-1000/other"];
  expect(all.map((name) => shownName(name, all, 28))).toEqual([all[0], all[1], "…/step-1000/other"].map((name) => name ?? ""));
});
