// The edits of a page: all go through one queue in their order, each with a version. An answer of Python has the version of
// the last edit that it includes, so what is typed or sent later is neither dropped nor overwritten by it.

/** @type {WeakMap<Model, EditQueue>} */
const queues = new WeakMap();

/**
 * The queue of a model, which all its displays share.
 * @param {Model} model
 * @returns {EditQueue}
 */
export function queueOf(model) {
  let queue = queues.get(model);
  if (!queue) queues.set(model, (queue = makeQueue(model)));
  return queue;
}

/**
 * @param {Model} model
 * @returns {EditQueue}
 */
function makeQueue(model) {
  let version = 0;
  /** @type {{ version: number, answer: string, content: Record<string, any> }[]} */
  let waiting = [];

  // The version of the last edit that the value of a trait includes.
  const included = (answer) => model.get(answer)?.edit ?? 0;

  function settle() {
    waiting = waiting.filter((edit) => edit.version > included(edit.answer));
    return waiting;
  }
  // After a reload of the page, Python has versions already.
  const next = () => (version = Math.max(version, ...["_view", "_panel", "_bench", "_runs"].map(included)) + 1);

  return {
    next,
    push(content, answer = "_panel") {
      const seen = included(answer);
      next();
      waiting.push({ version, answer, content });
      model.send?.({ edit: version, seen, ...content });
      return version;
    },
    waiting: (answer = "_panel") => settle().filter((edit) => edit.answer === answer),
    isWaiting: (edit) => settle().some((one) => one.version === edit),
  };
}
