// The state of a run as of any event. The server folds the journal and sends what each event
// changes; adding up these changes gives the same state as `retinue.fold`, without its rules.

export function emptyState() {
  return { seq: 0, time: 0, run: {}, agents: new Map(), children: new Map(), lanes: new Map(), requests: new Map(), plan: null };
}

export function apply(state, change) {
  if (change.run) Object.assign(state.run, change.run);
  if (change.type === "run.resumed") restartLanes(state, state.time, change.time);
  if (change.spans) carve(state.lanes.get(change.agent), change);
  for (const id in change.agents) {
    const fields = change.agents[id];
    const agent = state.agents.get(id);
    if (agent) Object.assign(agent, fields);
    else create(state, { ...fields });
    if (fields.phase !== undefined) enter(state, id, fields.phase, change.time);
  }
  if (change.type === "approval.requested") state.requests.set(change.seq, { seq: change.seq, ...change.payload });
  if (change.type.startsWith("plan.")) applyPlan(state, change);
  state.seq = change.seq;
  state.time = change.time;
  return state;
}

export function foldUntil(log, seq) {
  const state = emptyState();
  for (const change of log) {
    if (change.seq > seq) break;
    apply(state, change);
  }
  return state;
}

function create(state, agent) {
  state.agents.set(agent.id, agent);
  if (agent.parent == null) return;
  if (!state.children.has(agent.parent)) state.children.set(agent.parent, []);
  state.children.get(agent.parent).push(agent.id);
}

// Lanes: for each agent, [phase, from, to] in order; `to` is null for what goes on.

function enter(state, id, phase, time) {
  const lane = state.lanes.get(id) ?? [];
  state.lanes.set(id, lane);
  end(lane, time);
  if (phase) lane.push([phase, time, null]);
}

function end(lane, time) {
  const last = lane.at(-1);
  if (!last || last[2] !== null) return;
  if (last[1] < time) last[2] = time;
  else lane.pop();
}

// What the agent was doing turns out to be several things, known only when they are over.
function carve(lane, change) {
  const last = lane?.at(-1);
  if (!last || last[2] !== null) return;
  const [phase, from] = last;
  lane.pop();
  const total = change.spans.reduce((sum, [, seconds]) => sum + seconds, 0);
  let at = Math.max(from, change.time - total);
  if (at > from) lane.push([phase, from, at]);
  for (const [name, seconds] of change.spans) {
    const until = Math.min(change.time, at + seconds);
    if (until > at) lane.push([name, at, until]);
    at = until;
  }
  lane.push([phase, change.time, null]);
}

function restartLanes(state, ended, now) {
  for (const lane of state.lanes.values()) {
    const last = lane.at(-1);
    if (!last || last[2] !== null) continue;
    const phase = last[0];
    end(lane, ended);
    lane.push([phase, now, null]);
  }
}

// The plan of a run: its steps with their forecast, and what became of them.

function applyPlan(state, { type, payload, time }) {
  const plan = (state.plan ??= { goal: "", steps: new Map(), forecast: null });
  if (type === "plan.adopted") {
    plan.goal ||= payload.plan.goal;
    plan.forecast ??= payload.forecast ?? null;
    const expected = new Map((payload.forecast?.steps ?? []).map((step) => [step.step, step]));
    for (const step of payload.plan.steps) {
      plan.steps.set(step.name, { ...step, forecast: expected.get(step.name), state: "waiting" });
    }
    return;
  }
  const step = plan.steps.get(payload.step) ?? { name: payload.step, title: "review" };
  plan.steps.set(payload.step, step);
  if (type === "plan.step_started") {
    step.state = "running";
    step.started_at ??= time;
  } else {
    step.state = payload.status === "completed" ? "done" : "failed";
    step.ended_at = time;
    step.agent = payload.sub_agent_id ?? "";
    step.reason = payload.reason ?? "";
  }
}

// The steps on the longest path, by what they took, or else by the forecast.
export function criticalPath(plan) {
  const best = new Map();
  const visit = (name, seen = new Set()) => {
    if (best.has(name)) return best.get(name);
    const step = plan.steps.get(name);
    if (!step || seen.has(name)) return { length: 0, path: [] };
    const before = (step.depends_on ?? []).map((need) => visit(need, new Set([...seen, name])));
    const longest = before.reduce((a, b) => (b.length > a.length ? b : a), { length: 0, path: [] });
    const took = step.ended_at ? step.ended_at - step.started_at : (step.forecast?.duration_s ?? 0);
    const found = { length: longest.length + took, path: [...longest.path, name] };
    best.set(name, found);
    return found;
  };
  let longest = { length: -1, path: [] };
  for (const name of plan.steps.keys()) {
    const found = visit(name);
    if (found.length > longest.length) longest = found;
  }
  return new Set(longest.path);
}
