import { mount } from "svelte";
import App from "./App.svelte";
import "./page.css";
import { apply } from "./settings.svelte";
import { open } from "./state.svelte";

apply();
mount(App, { target: document.getElementById("page") as HTMLElement });
void open();
