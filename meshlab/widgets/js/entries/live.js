import { runPanel } from "../run.js";
import { widgetOf } from "../widget.js";

export default { render: widgetOf(runPanel, "meshlab-live") };
