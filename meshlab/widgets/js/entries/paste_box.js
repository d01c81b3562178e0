import { pasteBoxPanel } from "../paste_box.js";
import { widgetOf } from "../widget.js";

export default { render: widgetOf(pasteBoxPanel, "meshlab-paste") };
