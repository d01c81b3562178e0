// The entry point of the picture as a widget of its own.

export default {
  render({ model, el }) {
    const panel = picturePanel({ model, root: el });
    return () => panel.destroy();
  },
};
