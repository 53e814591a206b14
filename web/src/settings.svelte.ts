// Settings that outlive the page: language, theme, whether colours go by the root of magnitudes and the residual stream has one scale, the tour's station, and whether the story was offered and answered. The language comes from ?lang=, else the stored one, else the browser's.

import { flush } from "./address";
import type { Scheme } from "./draw/colour";
import { embedded } from "./live/present";
import { recorded } from "./run/recorded";

type Theme = "light" | "dark";

const kept = (key: string): string | null => { try { return localStorage.getItem(`pellucid.${key}`); } catch { return null; } };
const keep = (key: string, value: string): void => { try { localStorage.setItem(`pellucid.${key}`, value); } catch { /* a page from a file has no storage */ } };

function language(): "en" | "zh" {
  const chosen = new URLSearchParams(location.search).get("lang") ?? recorded?.language ?? embedded?.language ?? kept("language") ?? navigator.language;
  return chosen.toLowerCase().startsWith("zh") ? "zh" : "en";
}

function theme(): Theme {
  const chosen = kept("theme");
  return chosen === "light" || chosen === "dark" ? chosen : matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export const settings = $state({ language: language(), theme: theme(), root: kept("root") !== "false", together: kept("together") === "true", tour: Number(kept("tour")) || 1, met: kept("met") === "true" });

// The colour map of signed numbers in the chosen theme.
export const toned = (scheme: Scheme): Scheme => (scheme === "signed" && settings.theme === "dark" ? "night" : scheme);

export function apply(): void {
  document.documentElement.lang = settings.language === "zh" ? "zh-Hans" : "en";
  document.documentElement.dataset.theme = settings.theme;
}

export function choose(change: Partial<typeof settings>): void {
  Object.assign(settings, change);
  for (const [key, value] of Object.entries(change)) keep(key, String(value));
  flush();
  const address = new URL(location.href);
  if (change.language && address.searchParams.has("lang")) { // which would be read first when the address is opened again
    address.searchParams.set("lang", change.language);
    history.replaceState(null, "", address);
  }
  apply();
}
