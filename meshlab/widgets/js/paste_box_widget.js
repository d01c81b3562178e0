// The widget PasteBox.

export default { render: dom.widgetOf(pasteBoxPanel, "meshlab-paste") };
