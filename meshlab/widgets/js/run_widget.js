// The widget LiveView: one run.

export default { render: dom.widgetOf(runPanel, "meshlab-live") };
