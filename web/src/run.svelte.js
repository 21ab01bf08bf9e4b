// One run that the page shows: its changes so far, and its state now or at a chosen event.
import { flushSync } from "svelte";
import { follow } from "./api.js";
import { apply, emptyState, foldUntil } from "./fold.js";

const REDRAW_MS = 200;

export class RunFeed {
  version = $state(0); // Grows whenever the state has changed; the state itself is not tracked.
  live = $state(false);
  connection = $state("loading");
  reconnected = $state(false);
  problem = $state("");
  at = $state(null); // The event that is shown; null for the latest.
  texts = $state({}); // What models are writing, by agent.

  constructor(id, at) {
    this.id = id;
    this.at = at;
    this.log = [];
    this.head = emptyState();
    this.past = emptyState();
    this.timer = 0;
    this.pause = 0;
    this.close = follow(id, {
      changes: (changes) => this.add(changes),
      live: (live) => (this.live = live),
      state: (state) => {
        if (this.connection === "lost" && state === "open") this.reconnected = true;
        if (state === "open") this.problem = "";
        if (state === "lost") this.reconnected = false;
        this.connection = state;
      },
      problem: (text) => (this.problem = text),
      text: ({ agent, text, start }) => (this.texts[agent] = start ? text : (this.texts[agent] ?? "") + text),
    });
  }

  add(changes) {
    for (const change of changes) {
      this.log.push(change);
      apply(this.head, change);
      if (change.type === "model.replied") delete this.texts[change.agent];
    }
    this.timer ||= setTimeout(() => this.redraw(), this.pause);
  }

  // A large tree takes longer to draw, and is drawn less often: at most a fifth of the time.
  redraw() {
    const before = performance.now();
    flushSync(() => this.version++);
    this.timer = 0;
    this.pause = Math.max(REDRAW_MS, 4 * (performance.now() - before));
  }

  get last() {
    return this.log.length ? this.log.at(-1).seq : 0;
  }

  // The state that is shown.
  get state() {
    if (this.at === null || this.at >= this.last) return this.head;
    if (this.past.seq > this.at) this.past = emptyState();
    const from = this.past.seq;
    if (from === 0) this.past = foldUntil(this.log, this.at);
    else for (const change of this.log) if (change.seq > from && change.seq <= this.at) apply(this.past, change);
    return this.past;
  }

  change(seq) {
    let low = 0;
    let high = this.log.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.log[middle].seq <= seq) low = middle;
      else high = middle - 1;
    }
    return this.log[low];
  }

  // The nearest event before or after the shown one that is a step of the kind.
  step(kind, direction) {
    const matches = {
      event: () => true,
      turn: (change) => change.type === "turn.started",
      agent: (change) => change.type === "agent.subagent_created" || change.type === "agent.subagent_closed",
    }[kind];
    const now = this.at ?? this.last;
    const found =
      direction > 0
        ? this.log.find((change) => change.seq > now && matches(change))
        : this.log.findLast((change) => change.seq < now && matches(change));
    if (found) this.at = found.seq;
    else if (direction > 0) this.at = null;
  }
}
