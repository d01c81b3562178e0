export { default } from "../curve_widget.js";
