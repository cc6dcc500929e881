// Numbers as people read them. An unknown number is a dash, never a zero.

const NONE = "–";

/** Whole numbers with commas. */
export const count = (value) => (value == null ? NONE : Math.round(value).toLocaleString("en-US"));

/** Seconds with a unit that fits. */
export function seconds(value) {
  if (value == null) return NONE;
  if (value < 0.9995e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 0.9995) return `${precise(value * 1e3)} ms`;
  if (value < 120) return `${precise(value)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

/** Dollars, small ones with enough digits to be told apart. */
export function dollars(value) {
  if (value == null) return NONE;
  if (value === 0) return "$0";
  if (Math.abs(value) < 0.01) return `$${value.toFixed(Math.min(12, 1 - Math.floor(Math.log10(Math.abs(value)))))}`;
  return `$${value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: value < 10 ? 3 : 2 })}`;
}

/** A share of 0 to 1. */
export const percent = (value) => (value == null || Number.isNaN(value) ? NONE : `${precise(value * 100)} %`);

/** Bytes by powers of 1,024. */
export function bytes(value) {
  if (value == null) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value ? Math.min(units.length - 1, Math.floor(Math.log2(value) / 10)) : 0;
  return `${precise(value / 1024 ** power)} ${units[power]}`;
}

/** Three digits that matter. */
export function precise(value) {
  const size = Math.abs(value);
  if (size >= 1000) return count(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : size >= 1 ? value.toFixed(2) : size === 0 ? "0" : value.toPrecision(2);
}

/** "1 block", "2 blocks". */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
