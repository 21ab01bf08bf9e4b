// The rows of the tree: agents, and groups of siblings that look alike, as in the terminal.
// A failed agent is never hidden: it has a row, or the row above it counts it.

const STATES = ["failed", "running", "stopped", "waiting", "done"];
const MAX_UNGROUPED = 6;
const MIN_GROUP = 3;

export const SYMBOLS = { failed: "✗", running: "●", stopped: "■", waiting: "○", done: "✓" };

// The state of a run whose process has died: its journal does not say that the agents have stopped.
export function withoutProcess(state) {
  const agents = new Map();
  for (const [id, agent] of state.agents) {
    const open = agent.state === "running" || agent.state === "waiting";
    agents.set(id, open ? { ...agent, state: "stopped", activity: "abandoned" } : agent);
  }
  return { ...state, agents };
}

// Totals of each agent with all its descendants.
export function totals(state) {
  const found = new Map();
  for (const agent of state.agents.values()) {
    found.set(agent.id, { tokens: agent.tokens, cost: agent.cost_usd, agents: 1, failed: 0 });
  }
  // Children come after their parents, so going backwards adds each subtree once.
  for (const agent of [...state.agents.values()].reverse()) {
    const own = found.get(agent.id);
    const parent = found.get(agent.parent);
    if (!parent) continue;
    parent.tokens += own.tokens;
    parent.cost += own.cost;
    parent.agents += own.agents;
    parent.failed += own.failed + (agent.state === "failed" ? 1 : 0);
  }
  return found;
}

export function treeRows(state, sums, expanded, query = "") {
  const rows = [];
  const root = state.agents.values().next().value;
  if (!root) return rows;
  if (query) {
    const words = query.toLowerCase();
    for (const agent of state.agents.values()) {
      if (`${agent.path} ${agent.title} ${agent.error}`.toLowerCase().includes(words)) {
        rows.push({ key: agent.id, id: agent.id, agent, depth: 0, count: 1, leaf: true });
      }
    }
    return rows;
  }
  const add = (agent, depth) => {
    const children = state.children.get(agent.id) ?? [];
    const failed = sums.get(agent.id).failed;
    const open = expanded.get(agent.id) ?? (agent.parent == null || agent.state !== "done" || failed > 0);
    rows.push({ key: agent.id, id: agent.id, agent, depth, count: 1, leaf: !children.length, open, failed });
    if (!open || !children.length) return;
    if (children.length <= MAX_UNGROUPED) {
      for (const id of children) add(state.agents.get(id), depth + 1);
      return;
    }
    for (const group of groupsOf(state, sums, children)) {
      if (group.members.length < MIN_GROUP) {
        for (const member of group.members) add(member, depth + 1);
        continue;
      }
      const key = `${agent.id} ${group.key}`;
      const shown = expanded.get(key) ?? false;
      rows.push({ ...group, key, depth: depth + 1, count: group.members.length, open: shown, leaf: false });
      if (shown) for (const member of group.members) add(member, depth + 2);
    }
  };
  add(root, 0);
  return rows;
}

function groupsOf(state, sums, children) {
  const groups = new Map();
  for (const id of children) {
    const agent = state.agents.get(id);
    let text = "";
    if (agent.state === "failed") text = agent.error || agent.status;
    else if (agent.state === "stopped") text = agent.activity;
    else if (agent.state === "running") text = agent.title;
    else if (agent.state === "done" && sums.get(id).failed) text = "!";
    const key = `${agent.state} ${agent.role} ${text}`;
    let group = groups.get(key);
    if (!group) groups.set(key, (group = { key, state: agent.state, role: agent.role, text, members: [], tokens: 0 }));
    group.members.push(agent);
    group.tokens += sums.get(id).tokens;
  }
  return STATES.flatMap((name) => [...groups.values()].filter((group) => group.state === name));
}

// The agent that failed first on the way down from the root: the cause, not its effects.
export function rootCause(state) {
  let agent = state.agents.values().next().value;
  let found = agent && agent.state === "failed" ? agent : null;
  while (agent) {
    const failed = (state.children.get(agent.id) ?? [])
      .map((id) => state.agents.get(id))
      .filter((child) => child.state === "failed")
      .sort((a, b) => a.closed_at - b.closed_at);
    if (!failed.length) return found;
    found = agent = failed[0];
  }
  return found;
}
