// Bundles each widget into one script and one sheet, because anywidget takes one of each. The files lie in the repository, so
// that an installation needs no Node. `--check` compares them with a fresh build.
//
// One file for all widgets would be half as large in the repository. But every display of a widget has its own copy, and
// a curve is a tenth of the workbench.

import { readFile, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { build } from "esbuild";

const HERE = import.meta.dirname ?? new URL(".", import.meta.url).pathname;
const TARGET = join(HERE, "..", "static");
const GEOMETRY =
  /^(?:destroy|hostOfNic|barHost|coreRiser|nicWidth|railHeight|(?:cell|box)(?:Height|Width)|unit(?:Rows|Width|Head|Pad|Height|Gap)|pod(?:Width|Rows|Head|Height))$/;
const entries = (await readdir(join(HERE, "entries"))).sort();

/** @param {string} entry */
async function bundleOf(entry) {
  const { outputFiles } = await build({
    entryPoints: [join(HERE, "entries", entry)],
    bundle: true,
    write: false,
    minify: true,
    // The names of a picture's geometry and of the contract of panels, which no other code reads.
    mangleProps: entry === "workbench.js" ? GEOMETRY : undefined,
    legalComments: "none",
    charset: "utf8",
    target: "es2022",
    format: "iife",
    globalName: entry === "page.js" ? "page" : "widget",
  });
  return outputFiles[0].text;
}

const bundles = new Map(
  await Promise.all(entries.map(async (entry) => /** @type {const} */ ([entry, await bundleOf(entry)]))),
);
if (process.argv.includes("--check")) {
  const names = (await readdir(TARGET)).sort();
  const stale = names.filter((name) => !bundles.has(name));
  for (const [name, text] of bundles) {
    if (!names.includes(name) || (await readFile(join(TARGET, name), "utf8")) !== text) stale.push(name);
  }
  if (stale.length) {
    console.error(`Not as built from the sources: ${stale.join(", ")}. Run: npm --prefix meshlab/widgets/js run build`);
    process.exit(1);
  }
} else {
  for (const name of await readdir(TARGET).catch(() => [])) if (!bundles.has(name)) await rm(join(TARGET, name));
  for (const [name, text] of bundles) {
    await writeFile(join(TARGET, name), text);
    console.log(`${name.padEnd(16)} ${(text.length / 1024).toFixed(1).padStart(6)} KiB`);
  }
}
