export { showPage as default } from "../page.js";
