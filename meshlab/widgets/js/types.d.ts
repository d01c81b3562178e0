// Types that several modules use. `tsc` checks the JavaScript with them; nothing of this reaches a browser.

/** The model of anywidget, or that of a saved page, which has no `send`. */
interface Model {
  get(name: string): any;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(event: string, handler: (...values: any[]) => void): void;
  off(event: string, handler: (...values: any[]) => void): void;
  send?(content: object, callbacks?: object, buffers?: ArrayBuffer[]): void;
}

/** Draws a widget, and returns the function that removes it. */
type Render = (parts: { model: Model; el: HTMLElement }) => () => void;

/** Adds an event handler that is removed with the widget. */
type Listen = (
  target: EventTarget,
  event: string,
  handler: (event: any) => unknown,
  options?: AddEventListenerOptions,
) => void;

interface Panel {
  /** The names of the changed traits. The first call has all of them. */
  update(changed: Set<string>): void;
  destroy(): void;
}

interface PanelParts {
  model: Model;
  root: HTMLElement;
  listen: Listen;
  shell: Shell;
}

/** Fills `root` with a panel that shows `traits`. */
interface PanelMaker {
  (parts: PanelParts): Panel;
  traits: string[];
}

/** What a panel may ask of the widget around it. A panel of a run needs only the first two. */
interface Shell {
  root: HTMLElement;
  send(content: object): void;
  [name: string]: any;
}

/** The edits of a page in their order, see queue.js. */
interface EditQueue {
  /** A new version, without an edit. */
  next(): number;
  /** Sends an edit, which waits until the trait `answer` includes it. Returns its version. */
  push(content: Record<string, any>, answer?: string): number;
  /** The edits that the trait `answer` does not include yet. */
  waiting(answer?: string): { version: number; content: Record<string, any> }[];
  /** Whether the edit of a version has no answer yet. */
  isWaiting(edit: number | null | undefined): boolean;
}

/** What Python sends about the machine, unpacked. */
interface Scene {
  [name: string]: any;
}

/** The mesh on the machine: the rank and the group of every device. */
interface View {
  rank: Int32Array;
  group: Int32Array;
  members(group: number): number[];
  [name: string]: any;
}

/** The load of every kind of link for one axis. */
interface Loads {
  links: any[];
  by: Record<string, any>;
  [name: string]: any;
}

/** Left, top, width and height in pixels. */
type Box = [number, number, number, number];
