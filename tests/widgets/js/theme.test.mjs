// The scheme that a page announces, as each front end does.
import assert from "node:assert/strict";
import test from "node:test";
import { announcedScheme, luminanceOf } from "../../../meshlab/widgets/js/theme.js";

const node = (attributes = {}) => ({
  className: attributes.class ?? "",
  getAttribute: (name) => attributes[name] ?? null,
});
const scheme = (body, html = {}) => announcedScheme([node(body), node(html)]);

test("JupyterLab, Notebook and Voilà name it on the body", () => {
  assert.equal(scheme({ "data-jp-theme-light": "true", "data-jp-theme-name": "JupyterLab Light" }), "light");
  assert.equal(scheme({ "data-jp-theme-light": "false", "data-jp-theme-name": "JupyterLab Dark" }), "dark");
});

test("VS Code has classes, also for high contrast", () => {
  assert.equal(scheme({ class: "vscode-body vscode-dark" }), "dark");
  assert.equal(scheme({ class: "vscode-light" }), "light");
  assert.equal(scheme({ class: "vscode-high-contrast" }), "dark");
  assert.equal(scheme({ class: "vscode-high-contrast vscode-high-contrast-light" }), "light");
});

test("marimo and Colab name it on the body or on the root", () => {
  assert.equal(scheme({ class: "dark", "data-theme": "dark" }), "dark");
  assert.equal(scheme({}, { theme: "dark" }), "dark");
  assert.equal(scheme({ class: "light" }), "light");
});

test("a page may announce nothing, or a theme with another name", () => {
  assert.equal(scheme({}), null);
  assert.equal(scheme({ class: "darkroom" }, { "data-theme": "solarized" }), null);
  assert.equal(scheme({ class: "light dark" }), null);
});

test("JupyterLab's attribute counts more than a class of the page", () => {
  assert.equal(scheme({ "data-jp-theme-light": "true", class: "dark" }), "light");
});

test("luminance is that of WCAG", () => {
  assert.equal(luminanceOf([0, 0, 0]), 0);
  assert.equal(luminanceOf([255, 255, 255]).toFixed(6), "1.000000");
  assert.equal(luminanceOf([0x76, 0x76, 0x76]).toFixed(4), "0.1812");
});
