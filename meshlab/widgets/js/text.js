// Numbers as text, as in units.py.

export const THIN = "\u2009";

export const count = (n) => n.toLocaleString("en");

export const percent = (share) => `${(100 * share).toFixed(2)}%`;

/** @type {(separator: string, parts: any[]) => string} The parts that are not empty, as one text. */
export const joined = (separator, parts) => parts.filter(Boolean).join(separator);

export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

// The same as format_size, format_time_us and format_bandwidth in units.py.
export function sizeText(bytes) {
  if (bytes < 1024) return `${Math.floor(bytes)}${THIN}B`;
  let power = Math.min(Math.floor(Math.log2(bytes) / 10), 4);
  let value = bytes / 1024 ** power;
  if (power < 4 && Math.round(value * 100) / 100 >= 1024) [power, value] = [power + 1, value / 1024];
  return `${Number(value.toFixed(2))}${THIN}${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

export function threeDigits(value) {
  if (value === 0) return "0";
  const digits = Math.min(3, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function timeText(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 1e-3) return `${threeDigits(seconds * 1e6)}${THIN}µs`;
  return seconds < 1 ? `${threeDigits(seconds * 1e3)}${THIN}ms` : `${threeDigits(seconds)}${THIN}s`;
}

export const rateText = (gbs) => (Number.isFinite(gbs) ? `${threeDigits(gbs)}${THIN}GB/s` : "–");

// The least and the largest of the known values. The first is larger without any.
export function rangeOf(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

// "0–7, 16, 24–31, …"
export function runsText(ranks, most) {
  const parts = [];
  for (let i = 0; i < ranks.length;) {
    let j = i;
    while (j + 1 < ranks.length && ranks[j + 1] === ranks[j] + 1) j++;
    if (parts.length === most) return `${parts.join(", ")}, …`;
    parts.push(j > i + 1 ? `${ranks[i]}–${ranks[j]}` : ranks.slice(i, j + 1).join(", "));
    i = j + 1;
  }
  return parts.join(", ");
}
