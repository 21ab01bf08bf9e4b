export function count(number) {
  if (number < 1000) return String(number);
  for (const [size, unit] of [[1e3, "k"], [1e6, "M"], [1e9, "G"]]) {
    if (number < 999.5 * size || unit === "G") {
      const short = number / size;
      return (short < 99.95 ? short.toFixed(1) : short.toFixed(0)) + unit;
    }
  }
}

export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "";
  if (seconds < 99.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} m ${String(Math.round(seconds) % 60).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} m`;
}

export function money(amount) {
  if (!amount || amount <= 0) return "";
  return amount < 0.0001 ? "<$0.0001" : amount < 0.01 ? `$${amount.toFixed(4)}` : `$${amount.toFixed(2)}`;
}

export function plural(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

export function when(time) {
  return new Date(time * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

export function clock(time) {
  return new Date(time * 1000).toLocaleTimeString(undefined, { hour12: false });
}

// Controls of terminals, and marks that turn the direction of text, are shown and not obeyed.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

export function visible(text) {
  return String(text ?? "").replace(CONTROLS, "�");
}

export function shortName(agent) {
  const name = agent.parent == null ? agent.role : agent.path.slice(agent.path.lastIndexOf("/") + 1);
  return agent.host && agent.state === "running" ? `${name}@${agent.host}` : name;
}

export function elapsed(agent, now) {
  if (agent.started_at == null) return null;
  return (agent.closed_at ?? agent.paused_at ?? now) - agent.started_at;
}
