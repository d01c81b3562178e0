// The entry point of the workbench.

export default {
  render({ model, el }) {
    const shell = workbenchPanel({ model, root: el });
    return () => shell.destroy();
  },
};
