// What the pointer does on the picture: a click, a drag, a lasso, a pinch, or a place in the minimap.

const CLICK_PX = 5; // a shorter drag is a click

/**
 * @typedef {[number, number]} Point
 * @param {{ stage: HTMLElement, tip: HTMLElement, listen: Listen, isInMap: (at: Point) => boolean, jump: (at: Point) => void,
 *   hover: (x: number, y: number) => void, unhover: () => void, pan: (dx: number, dy: number) => void,
 *   zoomBy: (x: number, y: number, factor: number) => void, lasso: (from: Point, to: Point) => void,
 *   click: (at: Point, isMore: boolean, isTouch: boolean) => void, schedule: () => void }} parts
 */
export function gestures({ stage, tip, listen, isInMap, jump, hover, unhover, pan, zoomBy, lasso, click, schedule }) {
  let gesture = null; // a drag: pan, lasso, minimap or a touch that may be a tap
  const fingers = new Map();
  /** @returns {Point} */
  const point = (event) => {
    const box = stage.getBoundingClientRect();
    return [event.clientX - box.left - stage.clientLeft, event.clientY - box.top - stage.clientTop];
  };

  function press(event) {
    if (event.button !== 0 || tip.contains(event.target)) return;
    const here = point(event);
    fingers.set(event.pointerId, here);
    if (fingers.size > 1) {
      gesture = { kind: "pinch" };
    } else if (isInMap(here)) {
      gesture = { kind: "map" };
      jump(here);
    } else {
      const kind = event.shiftKey ? "lasso" : event.pointerType === "touch" ? "tap" : "pan";
      gesture = { kind, start: here, here, moved: 0 };
    }
    if (event.pointerType !== "touch") stage.setPointerCapture(event.pointerId);
  }

  function move(event) {
    const here = point(event);
    const before = fingers.get(event.pointerId);
    if (!before) {
      if (event.pointerType === "touch" || tip.contains(event.target)) return;
      if (isInMap(here)) unhover();
      else hover(...here);
      return;
    }
    fingers.set(event.pointerId, here);
    if (!gesture) return;
    const { kind, start } = gesture;
    if (kind === "pinch") return pinch(event.pointerId, before, here);
    if (kind === "map") return jump(here);
    gesture.moved = Math.max(gesture.moved, Math.hypot(here[0] - start[0], here[1] - start[1]));
    gesture.here = here;
    if (kind === "lasso") schedule();
    else if (kind === "pan" && gesture.moved >= CLICK_PX) pan(here[0] - before[0], here[1] - before[1]);
  }

  function pinch(id, before, here) {
    const other = [...fingers].find(([key]) => key !== id)?.[1];
    if (!other) return;
    const apart = (q) => Math.max(Math.hypot(q[0] - other[0], q[1] - other[1]), 1);
    pan((here[0] - before[0]) / 2, (here[1] - before[1]) / 2);
    zoomBy((here[0] + other[0]) / 2, (here[1] + other[1]) / 2, apart(here) / apart(before));
  }

  function release(event) {
    const done = gesture;
    fingers.delete(event.pointerId);
    if (fingers.size) return;
    gesture = null;
    if (!done?.start) return;
    const here = point(event);
    const isLasso = done.kind === "lasso";
    if (done.moved < CLICK_PX) click(here, isLasso, event.pointerType === "touch");
    else if (isLasso) lasso(done.start, here);
  }

  function cancel(event) {
    fingers.delete(event.pointerId);
    gesture = null;
    schedule();
  }

  listen(stage, "pointerdown", press);
  listen(stage, "pointermove", move);
  listen(stage, "pointerup", release);
  listen(stage, "pointercancel", cancel);
  listen(stage, "pointerleave", () => gesture || unhover());
  // Two fingers zoom the picture. One finger scrolls the page.
  for (const event of ["touchstart", "touchmove"]) {
    listen(stage, event, (e) => e.touches.length > 1 && e.preventDefault(), { passive: false });
  }

  const corners = () => (gesture?.kind === "lasso" ? [gesture.start, gesture.here] : null);
  return {
    point,
    corners, // of the lasso, null without one
    // Ends a lasso, and returns whether there was one.
    endLasso() {
      const hasLasso = Boolean(corners());
      if (hasLasso) gesture = null;
      return hasLasso;
    },
  };
}
