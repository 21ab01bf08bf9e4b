// Draws the lanes of the visible rows on a canvas. Phases differ in height and pattern as well as
// in colour: waiting is thin, work is thick.

export const PHASES = {
  queued: { label: "queued", height: 0.15 },
  slot: { label: "waiting for a slot", height: 0.15 },
  prompt: { label: "reading the prompt", height: 0.4 },
  model: { label: "model at work", height: 0.4 },
  thinking: { label: "writing", height: 0.7 },
  tools: { label: "tools", height: 0.7, striped: true },
  children: { label: "waiting for children", height: 0.15 },
  merge: { label: "waiting for merge", height: 0.4, striped: true },
  checks: { label: "checks", height: 0.7 },
  person: { label: "waiting for a person", height: 0.9, striped: true },
  paused: { label: "paused", height: 0.15 },
};

export function colors(element) {
  const style = getComputedStyle(element);
  const found = { text: style.getPropertyValue("--faint"), line: style.getPropertyValue("--line") };
  for (const name in PHASES) found[name] = style.getPropertyValue(`--${name}`);
  return found;
}

const STEPS = [0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 21600, 86400];

function label(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 6000) return `${Math.round(seconds / 6) / 10} min`;
  return `${Math.round(seconds / 360) / 10} h`;
}

// `span` is [from, to] in seconds since the start; `top` is the height of the axis.
export function draw(canvas, { rows, lanes, first, rowHeight, offset, top, start, span, now, palette, width, height }) {
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const scale = width / (span[1] - span[0]);
  const x = (time) => (time - start - span[0]) * scale;

  const step = STEPS.find((step) => step * scale >= 70) ?? STEPS.at(-1);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (let at = Math.ceil(span[0] / step) * step; at <= span[1]; at += step) {
    const left = Math.round((at - span[0]) * scale) + 0.5;
    context.fillStyle = palette.line;
    context.fillRect(left, top - 6, 1, height);
    context.fillStyle = palette.text;
    context.fillText(label(at), left + 4, top / 2);
  }
  context.save();
  context.beginPath();
  context.rect(0, top, width, height - top);
  context.clip();
  rows.forEach((row, index) => {
    const y = top + (first + index) * rowHeight - offset;
    const agents = row.members ?? [row.agent];
    context.globalAlpha = agents.length > 1 ? 0.55 : 1;
    // Of a large group, as many as there are pixels to tell apart.
    const every = Math.max(1, Math.floor(agents.length / 400));
    for (let i = 0; i < agents.length; i += every) {
      for (const [phase, from, to] of lanes.get(agents[i].id) ?? []) {
        const left = x(from);
        const right = x(to ?? now);
        if (right < 0 || left > width) continue;
        const { height: share, striped } = PHASES[phase];
        const tall = Math.max(2, share * (rowHeight - 8));
        const begin = Math.max(-1, left);
        const long = Math.max(1, Math.min(width + 1, right) - begin);
        context.fillStyle = palette[phase];
        context.fillRect(begin, y + (rowHeight - tall) / 2, long, tall);
        if (striped && long > 6 && agents.length === 1) stripe(context, begin, y + (rowHeight - tall) / 2, long, tall);
      }
    }
  });
  context.globalAlpha = 1;
  context.restore();
}

function stripe(context, x, y, width, height) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = "rgba(255,255,255,.35)";
  context.lineWidth = 2;
  for (let at = x - height; at < x + width; at += 7) {
    context.beginPath();
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
    context.stroke();
  }
  context.restore();
}
