// Panels as widgets.

import { div, keepKeys, listeners } from "./dom.js";
import { followTheme } from "./theme.js";

/**
 * The widget of a panel, which gets the names of the changed traits, once per message.
 * @param {PanelMaker} makePanel
 * @param {string} name The class of its root
 * @returns {Render}
 */
export function widgetOf(makePanel, name) {
  return ({ model, el }) => {
    const { listen, stop } = listeners();
    const root = div(`meshlab meshlab-run ml-run-alone ${name}`);
    el.append(root);
    const unfollow = followTheme(root);
    const releaseKeys = keepKeys(el);
    const panel = makePanel({ model, root, listen, shell: { root, send: (content) => model.send?.(content) } });
    /** @type {Set<string>} */
    let changed = new Set();
    /** @type {[string, () => void][]} */
    const handlers = makePanel.traits.map((trait) => {
      const note = () => {
        if (!changed.size) {
          queueMicrotask(() => {
            const names = changed;
            changed = new Set();
            if (root.parentNode) panel.update(names);
          });
        }
        changed.add(trait);
      };
      return [`change:${trait}`, note];
    });
    for (const [event, handler] of handlers) model.on(event, handler);
    return () => {
      for (const [event, handler] of handlers) model.off(event, handler);
      stop();
      unfollow();
      releaseKeys();
      panel.destroy();
      root.remove();
    };
  };
}

/**
 * The widget of a panel that has its own root and listens to the model.
 * @param {(parts: { model: Model, root: HTMLElement }) => { destroy(): void }} makePanel
 * @returns {Render}
 */
export function renderOf(makePanel) {
  return ({ model, el }) => {
    const panel = makePanel({ model, root: el });
    const releaseKeys = keepKeys(el);
    return () => {
      releaseKeys();
      panel.destroy();
    };
  };
}
