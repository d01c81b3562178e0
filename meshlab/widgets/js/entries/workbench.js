import { workbenchPanel } from "../workbench.js";
import { renderOf } from "../widget.js";

export default { render: renderOf(workbenchPanel) };
