// Protobuf JSON in, text with units out. 64-bit integers come as strings, NaN and infinities as words, absent fields as undefined.

// null for what is absent; NaN, Infinity and -Infinity stay what they are.
export function number(value) {
  return value === undefined || value === null ? null : Number(value);
}

export const MISSING = '–';

// Four significant digits, never an exponent between 1e-3 and 1e6.
export function significant(value) {
  if (value === null) return MISSING;
  if (Number.isNaN(value)) return 'NaN';
  if (!Number.isFinite(value)) return value > 0 ? '+∞' : '−∞';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace('e+', 'e').replaceAll('-', '−');
  const digits = Math.max(0, Math.min(6, 3 - Math.floor(Math.log10(size))));
  return value.toFixed(digits).replace('-', '−');
}

export function integer(value) {
  const n = number(value);
  return n === null ? MISSING : n.toLocaleString('en', {maximumFractionDigits: 0}).replaceAll(',', '\u202f');
}

// Seconds as a person says them.
export function span(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return MISSING;
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${(s / 3600).toFixed(1)} h`;
  return `${Math.round(s / 86400)} d`;
}

// "3.5s" -> 3.5
export function durationSeconds(text) {
  return typeof text === 'string' && text.endsWith('s') ? number(text.slice(0, -1)) : null;
}

// RFC 3339 -> milliseconds, null if absent or no time.
export function timeMs(text) {
  const ms = Date.parse(text ?? '');
  return Number.isNaN(ms) ? null : ms;
}

export function clock(text) {
  const ms = timeMs(text);
  if (ms === null) return MISSING;
  const iso = new Date(ms).toISOString();
  return `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC`;
}

export const ACTIONS = ['HALT', 'RESTART', 'WATCH', 'UNKNOWN', 'CONTINUE'];  // worst first

export function actionOf(verdict) {
  return ACTIONS.includes(verdict?.action) ? verdict.action : 'UNKNOWN';
}

export const SEVERITIES = ['CRITICAL', 'WARNING', 'INFO'];

export function severityOf(incident) {
  return SEVERITIES.includes(incident.severity) ? incident.severity : 'INFO';
}

// "loss_spike" + "normalizer_blowup" -> "loss spike: normalizer blowup"
export function conditionText(incident) {
  const words = (text) => text.replaceAll('_', ' ');
  return incident.kind ? `${words(incident.condition ?? '')}: ${words(incident.kind)}` : words(incident.condition ?? '');
}

export function evidenceText(evidence) {
  const value = number(evidence.value) ?? 0;
  if (evidence.text && value === 0 && !evidence.unit) return evidence.text;
  const shown = `${Number.isInteger(value) ? integer(value) : significant(value)}${evidence.unit ? ` ${evidence.unit}` : ''}`;
  return evidence.text ? `${shown} (${evidence.text})` : shown;
}
