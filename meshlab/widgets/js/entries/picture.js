import { picturePanel } from "../picture.js";
import { renderOf } from "../widget.js";

export default { render: renderOf(picturePanel) };
